//! `engraft embed`, `score` and `classify`: texts in as lines of JSON, one line of JSON out for each, in
//! their order.
//!
//! Lines are read and answered in groups, so that any number of them takes the memory of one group. A line is
//! a JSON string, or an object with `text` and, if wanted, an `id` of any kind that the answer repeats.

use super::args::{ClassifyArgs, EmbedArgs, LinesArgs, ModelArgs, ScoreArgs};
use super::failure::{Failure, Outcome};
use super::generate::{introduce, shown};
use super::lines::Lines;
use super::output::{Loading, json_with_first, note};
use engraft::engraft_core::policy::HeadSpec;
use engraft::{Classification, EmbedOptions, Error, Options, TextGenerator};
use serde_json::{Map, Value, json};

/// Lines that are answered together.
const GROUP: usize = 32;
/// How many of them run at once: each has a place in the KV cache.
const SEQS: usize = 4;

struct Line {
    /// From 1.
    number: usize,
    /// What its answer begins with.
    answer: Map<String, Value>,
    /// Its token ids, or what is wrong with it.
    ids: Result<Vec<u32>, String>,
}

pub fn embed(args: &EmbedArgs) -> Outcome {
    let model = open(&args.model, &args.lines, |options| options.max_seqs(SEQS))?;
    if args.model.is_demo() {
        note("warning: the demo model was made to continue texts, not to compare them; -m names a model");
    }
    let how = EmbedOptions::new().normalize(!args.no_normalize);
    let how = match args.pooling {
        Some(pooling) => how.pooling(pooling.into()),
        None => model.embed_options(&how)?,
    };
    each_group(
        &args.lines,
        GROUP,
        |text| model.tokenize_to_embed(text),
        |ids| {
            let vectors = model.handle().embed(ids, &how)?;
            let one = |vector: &Vec<f32>| numbers(vector).map(|all| json!({ "embedding": all }));
            Ok(vectors.iter().map(one).collect())
        },
    )
}

pub fn score(args: &ScoreArgs) -> Outcome {
    let model = open(&args.model, &args.lines, |options| options.logit_rows(usize::MAX))?;
    // One at a time: the logits of all tokens of a text are in memory until it is scored.
    each_group(
        &args.lines,
        1,
        |text| model.tokenize(text),
        |ids| {
            let all = model.handle().score(ids)?;
            Ok(all.iter().map(|one| scores(one)).collect())
        },
    )
}

pub fn classify(args: &ClassifyArgs) -> Outcome {
    let (source, options) = args.model.read(None)?;
    let files = source.open()?;
    // By the options' own policies, which a configuration may have added to.
    let spec = options.describe(&files)?;
    let HeadSpec::Labels { .. } = spec.head else {
        let reason = "the model has no classification head (expected ...ForSequenceClassification)".into();
        return Err(Error::Architecture { op: "classify".into(), arch: spec.arch, reason }.into());
    };
    let mut loading = Loading::default();
    let options = options.max_seqs(SEQS).truncate_texts(args.lines.truncate);
    let model = options.progress(move |done, total| loading.show(done, total)).open(files)?;
    introduce(&model, args.model.is_demo());
    each_group(
        &args.lines,
        GROUP,
        |text| model.tokenize(text),
        |ids| {
            let (logits, labels) = (model.handle().classify(ids)?, model.labels());
            let all = logits.into_iter().filter_map(|logits| Some(labels?.classify(logits)));
            Ok(all.map(|one| labeled(&one)).collect())
        },
    )
}

/// Loads the model, and says which it is.
fn open(
    model: &ModelArgs,
    lines: &LinesArgs,
    with: impl FnOnce(Options) -> Options,
) -> Result<TextGenerator, Failure> {
    let mut loading = Loading::default();
    let (source, options) = model.read(None)?;
    let options = with(options.truncate_texts(lines.truncate));
    let opened = options.progress(move |done, total| loading.show(done, total)).open(source)?;
    introduce(&opened, model.is_demo());
    Ok(opened)
}

/// What the model gives, as JSON; JSON has no infinities.
fn numbers(values: &[f32]) -> Result<Vec<f64>, String> {
    match values.iter().find(|x| !x.is_finite()) {
        Some(x) => Err(format!("the model gives {x} for this text")),
        None => Ok(values.iter().map(|x| shown(*x)).collect()),
    }
}

/// Log-probabilities of a text's tokens but the first, given those before.
fn scores(logprobs: &[f32]) -> Result<Value, String> {
    let sum: f64 = logprobs.iter().map(|p| f64::from(*p)).sum();
    let perplexity = (!logprobs.is_empty()).then(|| (-sum / logprobs.len() as f64).exp());
    let all = numbers(logprobs)?;
    Ok(json!({ "tokens": logprobs.len() + 1, "logprob": sum, "perplexity": perplexity, "logprobs": all }))
}

/// The labels of a text as JSON.
fn labeled(one: &Classification) -> Result<Value, String> {
    let (best, logits) = (one.best(), numbers(&one.logits)?);
    let scores: Map<String, Value> = one.labels.iter().map(|l| (l.name.clone(), json!(l.score))).collect();
    Ok(json!({
        "label": best.map(|l| &l.name),
        "score": best.map(|l| l.score),
        "scores": scores,
        "logits": logits,
    }))
}

/// What a text's answer is made of, or what is wrong with the text.
type Answer = Result<Value, String>;

/// Reads lines, answers them in groups of `size`, and prints an answer per line.
fn each_group(
    args: &LinesArgs,
    size: usize,
    tokenize: impl Fn(&str) -> Result<Vec<u32>, Error>,
    answers: impl Fn(Vec<Vec<u32>>) -> Result<Vec<Answer>, Error>,
) -> Outcome {
    let mut lines = Lines::open(args.file.as_deref())?;
    let mut group = Vec::new();
    while let Some((number, text)) = lines.next()? {
        let (text, answer) = parse(&text, args.plain);
        let ids = text.and_then(|text| tokenize(&text).map_err(|e| e.to_string()));
        group.push(Line { number, answer, ids });
        if group.len() == size {
            finish(&mut lines, &mut group, &answers)?;
        }
    }
    finish(&mut lines, &mut group, &answers)?;
    lines.end()
}

/// Answers a group of lines, in their order.
fn finish(
    lines: &mut Lines,
    group: &mut Vec<Line>,
    answers: impl Fn(Vec<Vec<u32>>) -> Result<Vec<Answer>, Error>,
) -> Outcome {
    let mut of_line: Vec<Option<Answer>> = Vec::new();
    let (mut good, mut places) = (Vec::new(), Vec::new());
    for (place, line) in group.iter_mut().enumerate() {
        match &mut line.ids {
            Ok(ids) => {
                good.push(std::mem::take(ids));
                places.push(place);
                of_line.push(None);
            }
            Err(what) => of_line.push(Some(Err(std::mem::take(what)))),
        }
    }
    // A text that is refused is refused before any of them runs: the others are asked again without it.
    let found = loop {
        if good.is_empty() {
            break Vec::new();
        }
        match answers(good.clone()) {
            Ok(found) => break found,
            Err(Error::Request { id, what }) if (id as usize) < good.len() => {
                good.remove(id as usize);
                of_line[places.remove(id as usize)] = Some(Err(what));
            }
            Err(other) => return Err(other.into()),
        }
    };
    for (place, answer) in places.into_iter().zip(found) {
        of_line[place] = Some(answer);
    }
    for (line, answer) in group.drain(..).zip(of_line) {
        match answer.unwrap_or_else(|| Err("the model gave no answer".into())) {
            Ok(answer) => {
                let mut all = line.answer;
                all.extend(answer.as_object().cloned().unwrap_or_default());
                json_with_first("id", all)?;
            }
            Err(what) => lines.fail(line.number, line.answer, &what)?,
        }
    }
    Ok(())
}

/// The text of a line, or what is wrong with it, and what its answer begins with.
fn parse(line: &str, plain: bool) -> (Result<String, String>, Map<String, Value>) {
    let mut answer = Map::new();
    if plain {
        return (Ok(line.to_string()), answer);
    }
    let text = match serde_json::from_str(line) {
        Ok(Value::String(text)) => Ok(text),
        Ok(Value::Object(mut fields)) => {
            answer.extend(fields.remove("id").map(|id| ("id".into(), id)));
            match (fields.remove("text"), fields.keys().next()) {
                (Some(Value::String(text)), None) => Ok(text),
                (Some(Value::String(_)), Some(other)) => {
                    Err(format!("`{other}` is no field of a line; allowed: text, id"))
                }
                _ => Err("an object needs `text`, a string".into()),
            }
        }
        Ok(_) => Err("a JSON string or an object with `text` is expected".into()),
        Err(e) => {
            Err(format!("{e}; a JSON string or an object is expected (--plain takes lines as they are)"))
        }
    };
    (text, answer)
}
