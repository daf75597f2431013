//! `engraft answer`: questions and contexts in as lines of JSON, one line of JSON out for each, in their
//! order.

use super::args::AnswerArgs;
use super::failure::Outcome;
use super::generate::introduce;
use super::lines::Lines;
use super::output::{Loading, json};
use engraft::engraft_core::config::unique;
use engraft::engraft_core::policy::{HeadSpec, TokenHead};
use engraft::{Answer, AnswerOptions, Error};
use serde_json::{Map, Value, json};

/// A question, and where its answer is looked for.
pub(super) struct Question {
    question: String,
    context: String,
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
    introduce(&model, &args.model);
    let mut lines = Lines::open(args.file.as_deref())?;
    while let Some((number, text)) = lines.next()? {
        let (asked, mut answer) = parse(&text);
        let Question { question, context } = match asked {
            Ok(asked) => asked,
            Err(what) => {
                lines.fail(number, answer, &what)?;
                continue;
            }
        };
        match model.answer(&question, &context, &how) {
            Ok(found) => {
                answer.extend(report(&context, &found, args.top_k > 1));
                json(&Value::Object(answer))?;
            }
            Err(Error::Text { what } | Error::Request { what, .. }) => lines.fail(number, answer, &what)?,
            Err(other) => return Err(other.into()),
        }
    }
    lines.end()
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

/// The question of a line, or what is wrong with it, and what its answer begins with.
pub(super) fn parse(line: &str) -> (Result<Question, String>, Map<String, Value>) {
    let expected = "an object with `question` and `context` is expected";
    let mut fields = match unique::from_str(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return (Err(expected.into()), Map::new()),
        Err(e) => return (Err(format!("{e}; {expected}")), Map::new()),
    };
    let answer = fields.remove("id").map(|id| ("id".to_string(), id)).into_iter().collect();
    (question(fields), answer)
}

fn question(mut fields: Map<String, Value>) -> Result<Question, String> {
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(format!("an object needs `{name}`, a string that is not empty")),
    };
    let (question, context) = (text("question")?, text("context")?);
    match fields.keys().next() {
        Some(other) => Err(format!("`{other}` is no field of a line; allowed: question, context, id")),
        None => Ok(Question { question, context }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_field_stands_once() {
        let line = r#"{"question": "a", "context": "b", "context": "c"}"#;
        let error = parse(line).0.map(drop).unwrap_err();
        assert!(error.contains("`context` stands twice"), "{error}");
        assert!(parse(r#"{"question": "a", "context": "b"}"#).0.is_ok());
    }
}
