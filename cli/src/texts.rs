//! `engraft embed`, `score` and `classify`: texts in as lines of JSON, one line of JSON out for each, in
//! their order.
//!
//! Lines are read and answered in groups, so that any number of them takes the memory of one group. A line is
//! a JSON string, or an object with `text` and, if wanted, an `id` of any kind that the answer repeats.

use super::args::{ClassifyArgs, EmbedArgs, LinesArgs, ModelArgs, ScoreArgs};
use super::failure::{Failure, Outcome};
use super::generate::shown;
use super::output::{Loading, json};
use engraft::core::policy::HeadSpec;
use engraft::{Classification, Error, TextGenerator};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;

/// Lines that are answered together.
const GROUP: usize = 32;
/// How many of them run at once: each has a place in the KV cache.
const SEQS: usize = 4;

/// A text and what its answer begins with.
struct Line {
    /// From 1.
    number: usize,
    ids: Vec<u32>,
    answer: Map<String, Value>,
}

pub fn embed(args: &EmbedArgs) -> Outcome {
    let model = open(&args.model, false)?;
    each_group(&args.lines, GROUP, &model, |lines| {
        let vectors = model.handle().embed(ids(lines), args.pooling.into(), !args.no_normalize)?;
        Ok(vectors.into_iter().map(|vector| json!({ "embedding": all_shown(&vector) })).collect())
    })
}

pub fn score(args: &ScoreArgs) -> Outcome {
    let model = open(&args.model, true)?;
    // One at a time: the logits of all tokens of a text are in memory until it is scored.
    each_group(&args.lines, 1, &model, |lines| {
        let all = model.handle().score(ids(lines))?;
        Ok(all.iter().map(|one| scores(one)).collect())
    })
}

pub fn classify(args: &ClassifyArgs) -> Outcome {
    let (source, options) = args.model.read(None)?;
    let files = source.open()?;
    // By the options' own policies, which a configuration may have added to.
    let spec = options.describe(&files)?;
    let HeadSpec::Labels { .. } = spec.head else {
        let reason = "its head gives no labels for a text; a sequence classifier's does".into();
        return Err(Error::Architecture { op: "classify".into(), arch: spec.arch, reason }.into());
    };
    let mut loading = Loading::default();
    let options = options.max_seqs(SEQS).progress(move |done, total| loading.show(done, total));
    let model = options.open(files)?;
    each_group(&args.lines, GROUP, &model, |lines| {
        let (logits, labels) = (model.handle().classify(ids(lines))?, model.labels());
        let all = logits.into_iter().filter_map(|logits| Some(labels?.classify(logits)));
        Ok(all.map(|one| labelled(&one)).collect())
    })
}

fn open(model: &ModelArgs, all_logits: bool) -> Result<TextGenerator, Failure> {
    let mut loading = Loading::default();
    let (source, options) = model.read(None)?;
    let options = if all_logits { options.all_logits(true) } else { options.max_seqs(SEQS) };
    Ok(options.progress(move |done, total| loading.show(done, total)).open(source)?)
}

fn ids(lines: &[Line]) -> Vec<Vec<u32>> {
    lines.iter().map(|line| line.ids.clone()).collect()
}

fn all_shown(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| shown(*x)).collect()
}

/// Log-probabilities of a text's tokens but the first, given those before.
fn scores(logprobs: &[f32]) -> Value {
    let sum: f64 = logprobs.iter().map(|p| f64::from(*p)).sum();
    let perplexity = (!logprobs.is_empty()).then(|| (-sum / logprobs.len() as f64).exp());
    json!({ "tokens": logprobs.len() + 1, "logprob": sum, "perplexity": perplexity, "logprobs": all_shown(logprobs) })
}

/// The labels of a text as JSON.
fn labelled(one: &Classification) -> Value {
    let best = one.best();
    let scores: Map<String, Value> = one.labels.iter().map(|l| (l.name.clone(), json!(l.score))).collect();
    json!({
        "label": best.map(|l| &l.name),
        "score": best.map(|l| l.score),
        "scores": scores,
        "logits": all_shown(&one.logits),
    })
}

/// Reads lines, answers them in groups of `size`, and prints an answer per line.
fn each_group(
    args: &LinesArgs,
    size: usize,
    model: &TextGenerator,
    mut answers: impl FnMut(&[Line]) -> Result<Vec<Value>, Error>,
) -> Outcome {
    let (name, reader) = reader(args.file.as_deref())?;
    let mut group = Vec::new();
    let mut finish = |group: &mut Vec<Line>| -> Outcome {
        if group.is_empty() {
            return Ok(());
        }
        let results = answers(group).map_err(|e| located(e, &name, group))?;
        for (line, result) in group.drain(..).zip(results) {
            let mut all = line.answer;
            all.extend(result.as_object().cloned().unwrap_or_default());
            json(&Value::Object(all))?;
        }
        Ok(())
    };
    for (i, text) in reader.lines().enumerate() {
        let text = text.map_err(|e| unreadable(&name, i + 1, e))?;
        if text.trim().is_empty() {
            continue;
        }
        let parsed = parse(&text, args.plain).and_then(|(text, answer)| {
            let ids = model.tokenizer().encode(&text, true).map_err(|e| e.to_string())?;
            Ok(Line { number: i + 1, ids, answer })
        });
        let line = match parsed {
            Ok(line) => line,
            Err(what) => {
                finish(&mut group)?;
                return Err(wrong(&name, i + 1, &what).into());
            }
        };
        group.push(line);
        if group.len() == size {
            finish(&mut group)?;
        }
    }
    finish(&mut group)
}

/// A file of lines, or standard input; its name comes first.
pub(super) fn reader(file: Option<&Path>) -> Result<(String, Box<dyn BufRead>), Error> {
    Ok(match file {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path).map_err(|e| Error::io(path, e))?;
            (path.display().to_string(), Box::new(BufReader::new(file)))
        }
        _ => ("standard input".into(), Box::new(stdin().lock())),
    })
}

/// The text of a line and what its answer begins with.
fn parse(line: &str, plain: bool) -> Result<(String, Map<String, Value>), String> {
    let mut answer = Map::new();
    if plain {
        return Ok((line.to_string(), answer));
    }
    match serde_json::from_str(line) {
        Ok(Value::String(text)) => Ok((text, answer)),
        Ok(Value::Object(mut fields)) => {
            let Some(Value::String(text)) = fields.remove("text") else {
                return Err("an object needs `text`, a string".into());
            };
            answer.extend(fields.remove("id").map(|id| ("id".into(), id)));
            match fields.keys().next() {
                Some(other) => Err(format!("`{other}` is no field of a line; allowed: text, id")),
                None => Ok((text, answer)),
            }
        }
        Ok(_) => Err("a JSON string or an object with `text` is expected".into()),
        Err(e) => {
            Err(format!("{e}; a JSON string or an object is expected (--plain takes lines as they are)"))
        }
    }
}

/// A line that is no text, or that the system does not give.
pub(super) fn unreadable(name: &str, number: usize, source: std::io::Error) -> Error {
    Error::io(format!("{name}, line {number}"), source)
}

/// An error that names a line.
pub(super) fn wrong(name: &str, number: usize, what: &str) -> Error {
    Error::text(format!("{name}, line {number}: {what}"))
}

/// An error about one text of a group names its line.
fn located(error: Error, name: &str, group: &[Line]) -> Error {
    match error {
        Error::Request { id, what } => {
            let number = usize::try_from(id).ok().and_then(|i| group.get(i)).map_or(0, |line| line.number);
            wrong(name, number, &what)
        }
        other => other,
    }
}
