//! Small JSON files with a size limit: a parsed value can be tens of times larger than its text.

use crate::{Error, Result};
use serde_json::Value;

/// Largest `config.json`, `generation_config.json` or `tokenizer_config.json`.
pub(super) const MAX_CONFIG: usize = 16 << 20;

/// `{}`.
pub(super) fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Parses a JSON object. serde_json limits the nesting to 128 levels.
pub(super) fn object(file: &str, bytes: &[u8], limit: usize) -> Result<Value> {
    if bytes.len() > limit {
        return Err(Error::format(
            file,
            format!("is {} bytes long; at most {limit} are allowed", bytes.len()),
        ));
    }
    let again = |e| match with_words(bytes) {
        Some(text) => serde_json::from_slice(&text).map_err(|_| e),
        None => Err(e),
    };
    let value: Value = serde_json::from_slice(bytes)
        .or_else(again)
        .map_err(|e| Error::format(file, format!("is not valid JSON: {e}")))?;
    match value {
        Value::Object(_) => Ok(value),
        other => Err(Error::format(file, format!("holds {}; a JSON object is expected", kind(&other)))),
    }
}

/// What Python writes for numbers that JSON does not have.
const NO_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The text with such numbers as strings; none where there are none. Configurations of Mamba 2 and Nemotron-H
/// have them (`time_step_limit`).
fn with_words(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut out) = (bytes, Vec::with_capacity(bytes.len() + 16));
    let (mut quoted, mut found) = (false, false);
    while let Some((&byte, behind)) = rest.split_first() {
        let word = NO_NUMBERS.iter().find(|word| !quoted && rest.starts_with(word.as_bytes()));
        if let Some(word) = word {
            found = true;
            out.extend_from_slice(format!("\"{word}\"").as_bytes());
            rest = &rest[word.len()..];
            continue;
        }
        out.push(byte);
        rest = behind;
        match (byte, rest.split_first()) {
            // What an escape names is no quote.
            (b'\\', Some((&next, behind))) if quoted => {
                out.push(next);
                rest = behind;
            }
            (b'"', _) => quoted = !quoted,
            _ => {}
        }
    }
    found.then_some(out)
}

/// What a value is, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_that_json_does_not_have_are_words() {
        let text = br#"{"a": [0.0, Infinity], "b": -Infinity, "NaN \" Infinity": NaN}"#;
        let want = json!({"a": [0.0, "Infinity"], "b": "-Infinity", "NaN \" Infinity": "NaN"});
        assert_eq!(object("config.json", text, MAX_CONFIG).unwrap(), want);
        for text in ["{\"a\": 1Infinity}", "{\"a\": Infinity", "{\"a\": -NaN}", "{\"a\": Infinit}"] {
            let why = object("config.json", text.as_bytes(), MAX_CONFIG).unwrap_err().to_string();
            assert!(why.contains("config.json") && why.contains("is not valid JSON"), "{text}: {why}");
        }
    }
}
