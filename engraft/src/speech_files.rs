//! What a checkpoint's files say of sound.

use serde_json::Value;

/// What a checkpoint's files say of sound.
#[derive(Debug, Default)]
pub(crate) struct SpeechFiles {
    /// `preprocessor_config.json`.
    pub extractor: Option<Value>,
    /// Rows that the encoder makes of a window.
    pub positions: Option<u64>,
    /// Whether it knows languages and tasks; unsaid by old files.
    pub multilingual: Option<bool>,
}

impl SpeechFiles {
    /// Reads them.
    pub fn of(config: &Value, generation: &Value) -> Self {
        Self {
            extractor: config.get("engraft_extractor").cloned(),
            positions: config.get("max_source_positions").and_then(Value::as_u64),
            multilingual: generation.get("is_multilingual").and_then(Value::as_bool),
        }
    }
}
