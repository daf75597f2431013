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
    let value: Value =
        serde_json::from_slice(bytes).map_err(|e| Error::format(file, format!("is not valid JSON: {e}")))?;
    match value {
        Value::Object(_) => Ok(value),
        other => Err(Error::format(file, format!("holds {}; a JSON object is expected", kind(&other)))),
    }
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
