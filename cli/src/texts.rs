//! `engraft embed`, `score` and `classify`: texts in as lines of JSON, one line of JSON out for each, in
//! their order.
//!
//! Lines are read and answered in groups, so that any number of them takes the memory of one group. A line
//! is a JSON string, or an object with `text` and, if wanted, an `id` of any kind that the answer repeats.
//! Where an encoder reads the text, `score` wants a `target`, too: what its decoder writes.

use super::args::{ClassifyArgs, EmbedArgs, LinesArgs, ModelArgs, ScoreArgs};
use super::failure::{Failure, Outcome};
use super::generate::{introduce, shown};
use super::lines::Lines;
use super::output::{Loading, json_with_first, note};
use engraft::engraft_core::config::unique;
use engraft::engraft_core::policy::HeadSpec;
use engraft::{Classification, EmbedOptions, EncoderInput, Error, Options, TextGenerator};
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
    ids: Result<EncoderInput, String>,
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
        (GROUP, false),
        |Text { text, .. }| Ok(model.tokenize_to_embed(text)?.into()),
        |ids| {
            let vectors = model.handle().embed(ids, &how)?;
            let one = |vector: &Vec<f32>| numbers(vector).map(|all| json!({ "embedding": all }));
            Ok(vectors.iter().map(one).collect())
        },
    )
}

pub fn score(args: &ScoreArgs) -> Outcome {
    let model = open(&args.model, &args.lines, |options| options.logit_rows(usize::MAX))?;
    let pairs = model.info().encoder_layers > 0;
    if pairs && args.lines.plain {
        let what = "--plain: the model has an encoder, so a line needs a `target`, as JSON".into();
        return Err(Failure::Usage(what));
    }
    // One at a time: the logits of all tokens of a text are in memory until it is scored.
    each_group(
        &args.lines,
        (1, pairs),
        |Text { text, target }| match target {
            Some(target) => model.tokenize_pair(text, target),
            None => Ok(model.tokenize(text)?.into()),
        },
        |inputs| {
            // The first token of a text is given; of a target none is.
            let given = usize::from(model.info().encoder_layers == 0);
            let all = model.handle().score(inputs)?;
            Ok(all.iter().map(|one| scores(one, given)).collect())
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
    introduce(&model, &args.model);
    each_group(
        &args.lines,
        (GROUP, false),
        |Text { text, .. }| Ok(model.tokenize(text)?.into()),
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
    introduce(&opened, model);
    Ok(opened)
}

/// What the model gives, as JSON; JSON has no infinities.
fn numbers(values: &[f32]) -> Result<Vec<f64>, String> {
    match values.iter().find(|x| !x.is_finite()) {
        Some(x) => Err(format!("the model gives {x} for this text")),
        None => Ok(values.iter().map(|x| shown(*x)).collect()),
    }
}

/// Log-probabilities of a text's tokens behind those that are given.
fn scores(logprobs: &[f32], given: usize) -> Result<Value, String> {
    // The sum of none is -0.0.
    let sum = logprobs.iter().map(|p| f64::from(*p)).sum::<f64>() + 0.0;
    let perplexity = (!logprobs.is_empty()).then(|| (-sum / logprobs.len() as f64).exp());
    let all = numbers(logprobs)?;
    Ok(json!({ "tokens": logprobs.len() + given, "logprob": sum, "perplexity": perplexity, "logprobs": all }))
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

/// Reads lines (`pairs` of texts), answers them in groups of `size`, and prints an answer per line.
fn each_group(
    args: &LinesArgs,
    (size, pairs): (usize, bool),
    tokenize: impl Fn(Text<'_>) -> Result<EncoderInput, Error>,
    answers: impl Fn(Vec<EncoderInput>) -> Result<Vec<Answer>, Error>,
) -> Outcome {
    let mut lines = Lines::open(args.file.as_deref())?;
    let mut group = Vec::new();
    while let Some((number, text)) = lines.next()? {
        let (text, answer) = parse(&text, args.plain, pairs);
        let ids = text.and_then(|(text, target)| {
            tokenize(Text { text: &text, target: target.as_deref() }).map_err(|e| e.to_string())
        });
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
    answers: impl Fn(Vec<EncoderInput>) -> Result<Vec<Answer>, Error>,
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

/// What a line asks about.
struct Text<'a> {
    text: &'a str,
    /// What a decoder writes behind it.
    target: Option<&'a str>,
}

/// The text of a line and what is written behind it, or what is wrong.
pub(super) type Read = Result<(String, Option<String>), String>;

/// The text of a line and, of pairs, what is written behind it, or what is wrong with it; and what its answer
/// begins with.
pub(super) fn parse(line: &str, plain: bool, pairs: bool) -> (Read, Map<String, Value>) {
    let mut answer = Map::new();
    if plain {
        return (Ok((line.to_string(), None)), answer);
    }
    let (wanted, allowed) = match pairs {
        true => ("`text` and `target`, strings", "text, target, id"),
        false => ("`text`, a string", "text, id"),
    };
    let text = match unique::from_str(line) {
        Ok(Value::String(text)) if !pairs => Ok((text, None)),
        Ok(Value::Object(mut fields)) => {
            answer.extend(fields.remove("id").map(|id| ("id".into(), id)));
            let text = fields.remove("text");
            let target = if pairs { fields.remove("target") } else { None };
            match (text, target, fields.keys().next()) {
                (Some(Value::String(_)), _, Some(other)) => {
                    Err(format!("`{other}` is no field of a line; allowed: {allowed}"))
                }
                (Some(Value::String(text)), Some(Value::String(target)), None) => Ok((text, Some(target))),
                (Some(Value::String(text)), None, None) if !pairs => Ok((text, None)),
                _ => Err(format!("an object needs {wanted}")),
            }
        }
        Ok(_) if pairs => Err("an object with `text` and `target` is expected".into()),
        Ok(_) => Err("a JSON string or an object with `text` is expected".into()),
        Err(e) if pairs => Err(format!("{e}; an object is expected")),
        Err(e) => {
            Err(format!("{e}; a JSON string or an object is expected (--plain takes lines as they are)"))
        }
    };
    (text, answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pairs_need_both_texts_and_single_ones_take_no_second() {
        let (read, answer) = parse(r#"{"id": 7, "text": "a", "target": "b"}"#, false, true);
        assert_eq!((read.unwrap(), answer["id"].clone()), (("a".into(), Some("b".into())), json!(7)));
        let wrong = |line: &str, pairs: bool| parse(line, false, pairs).0.unwrap_err();
        assert!(wrong(r#"{"text": "a"}"#, true).contains("`text` and `target`"));
        assert!(wrong(r#""a""#, true).contains("an object with `text` and `target`"));
        assert!(wrong(r#"{"text": "a", "target": 3}"#, true).contains("strings"));
        assert!(wrong(r#"{"text": "a", "target": "b", "more": 1}"#, true).contains("`more` is no field"));
        assert!(wrong(r#"{"text": "a", "target": "b"}"#, false).contains("`target` is no field of a line"));
        assert_eq!(parse(r#""a""#, false, false).0.unwrap(), ("a".into(), None));
    }

    #[test]
    fn a_field_stands_once() {
        for (line, pairs) in
            [(r#"{"text": "a", "text": "b"}"#, false), (r#"{"target": "a", "target": "b"}"#, true)]
        {
            let error = parse(line, false, pairs).0.unwrap_err();
            assert!(error.contains("stands twice") && error.contains("expected"), "{error}");
        }
        let nested = parse(r#"{"text": "a", "id": {"b": 1, "b": 2}}"#, false, false).0.unwrap_err();
        assert!(nested.contains("`b` stands twice"), "{nested}");
    }

    #[test]
    fn the_score_of_nothing_is_no_negative_zero() {
        assert_eq!(scores(&[], 1).unwrap()["logprob"].to_string(), "0.0");
        assert_eq!(scores(&[-1.5], 1).unwrap()["logprob"].to_string(), "-1.5");
    }
}
