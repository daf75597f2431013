//! `engraft answer`: questions and contexts in as lines of JSON, one line of JSON out for each, in their
//! order.

use super::args::AnswerArgs;
use super::failure::Outcome;
use super::output::{Loading, json};
use super::texts::{reader, unreadable, wrong};
use engraft::core::policy::{HeadSpec, TokenHead};
use engraft::{Answer, AnswerOptions, Error};
use serde_json::{Map, Value, json};
use std::io::BufRead;

/// A question, where its answer is looked for, and what the answer begins with.
struct Line {
    question: String,
    context: String,
    answer: Map<String, Value>,
}

pub fn run(args: &AnswerArgs) -> Outcome {
    let (source, options) = args.model.read(None)?;
    let files = source.open()?;
    let spec = options.describe(&files)?;
    // Said before a weight is read.
    if !matches!(spec.head, HeadSpec::Tokens { of: TokenHead::Span, .. }) {
        let reason = "its head gives no spans; that of a ...ForQuestionAnswering does".into();
        return Err(Error::Architecture { op: "answer".into(), arch: spec.arch, reason }.into());
    }
    let mut loading = Loading::default();
    let model = options.progress(move |done, total| loading.show(done, total)).open(files)?;
    let mut how = AnswerOptions::new()
        .top_k(args.top_k)
        .max_answer_len(args.max_answer_len)
        .handle_impossible_answer(args.handle_impossible_answer)
        .max_seq_len(args.max_seq_len);
    how.doc_stride = args.doc_stride;
    let (name, lines) = reader(args.file.as_deref())?;
    for (i, text) in lines.lines().enumerate() {
        let text = text.map_err(|e| unreadable(&name, i + 1, e))?;
        if text.trim().is_empty() {
            continue;
        }
        let Line { question, context, mut answer } =
            parse(&text).map_err(|what| wrong(&name, i + 1, &what))?;
        let found = model.answer(&question, &context, &how).map_err(|e| match e {
            Error::Text { what } | Error::Request { what, .. } => wrong(&name, i + 1, &what),
            other => other,
        })?;
        answer.extend(report(&context, &found, args.top_k > 1));
        json(&Value::Object(answer))?;
    }
    Ok(())
}

/// The best answer, and with `all` every one of them.
fn report(context: &str, found: &[Answer], all: bool) -> Map<String, Value> {
    let one = |answer: &Answer| {
        let characters = |bytes: usize| context.get(..bytes).map_or(0, |text| text.chars().count());
        let fields = [
            ("answer", json!(answer.text)),
            ("score", json!(answer.score)),
            ("start", json!(characters(answer.bytes.start))),
            ("end", json!(characters(answer.bytes.end))),
        ];
        fields.map(|(name, value)| (name.to_string(), value)).into_iter().collect::<Map<_, _>>()
    };
    let nothing = || Map::from_iter([("answer".to_string(), Value::Null)]);
    let mut line = found.first().map_or_else(nothing, &one);
    if all {
        line.insert("answers".into(), found.iter().map(|answer| Value::Object(one(answer))).collect());
    }
    line
}

fn parse(line: &str) -> Result<Line, String> {
    let expected = "an object with `question` and `context` is expected";
    let mut fields = match serde_json::from_str(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(expected.into()),
        Err(e) => return Err(format!("{e}; {expected}")),
    };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(format!("an object needs `{name}`, a string that is not empty")),
    };
    let (question, context) = (text("question")?, text("context")?);
    let answer = fields.remove("id").map(|id| ("id".to_string(), id)).into_iter().collect();
    match fields.keys().next() {
        Some(other) => Err(format!("`{other}` is no field of a line; allowed: question, context, id")),
        None => Ok(Line { question, context, answer }),
    }
}
