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
    /// Tokens that are never sampled, and those that are not the first one.
    pub suppress: [Option<Value>; 2],
    /// How many timestamps behind the first one a text may begin with.
    pub max_initial: Option<Value>,
    /// Positions of the decoder.
    pub positions: Option<Value>,
    /// What counts where a transcription names none: a language, a task, and tokens by their positions.
    pub language: Option<Value>,
    pub task: Option<Value>,
    pub forced: Option<Value>,
}

impl SpeechFiles {
    /// Reads them.
    pub fn of(config: &Value, generation: &Value) -> Self {
        // Files of before there was a `generation_config.json` have the lists in the other one.
        let either = |field: &str| generation.get(field).or_else(|| config.get(field)).cloned();
        let given = |field: &str| generation.get(field).filter(|value| !value.is_null()).cloned();
        Self {
            extractor: config.get("engraft_extractor").cloned(),
            pad: config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()),
            multilingual: generation.get("is_multilingual").and_then(Value::as_bool),
            suppress: ["suppress_tokens", "begin_suppress_tokens"].map(either),
            max_initial: generation.get("max_initial_timestamp_index").cloned(),
            positions: config.get("max_target_positions").cloned(),
            language: given("language"),
            task: given("task"),
            forced: given("forced_decoder_ids"),
        }
    }
}
