//! What a checkpoint's files say of sound.

use serde_json::Value;

/// What a checkpoint's files say of sound.
#[derive(Debug, Default)]
pub(crate) struct SpeechFiles {
    /// What `preprocessor_config.json` or `processor_config.json` says of its feature extractor.
    pub extractor: Option<Value>,
    /// The padding token, which as a label stands for no character.
    pub pad: Option<u32>,
    /// Whether it knows languages and tasks; unsaid by old files.
    pub multilingual: Option<bool>,
}

impl SpeechFiles {
    /// Reads them.
    pub fn of(config: &Value, generation: &Value) -> Self {
        Self {
            extractor: config.get("engraft_extractor").cloned(),
            pad: config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()),
            multilingual: generation.get("is_multilingual").and_then(Value::as_bool),
        }
    }
}
