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
}

/// Fields of a `generation_config.json` that a transcription reads, or that say what a vocabulary says
/// anyway.
pub(crate) const HEARD: [&str; 15] = [
    "alignment_heads",
    "begin_suppress_tokens",
    "forced_decoder_ids",
    "is_multilingual",
    "lang_to_id",
    "language",
    "max_initial_timestamp_index",
    "max_length",
    "median_filter_width",
    "no_timestamps_token_id",
    "prev_sot_token_id",
    "return_timestamps",
    "suppress_tokens",
    "task",
    "task_to_id",
];

impl SpeechFiles {
    /// Reads them.
    pub fn of(config: &Value, generation: &Value) -> Self {
        // Files of before there was a `generation_config.json` have the lists in the other one.
        let either = |field: &str| generation.get(field).or_else(|| config.get(field)).cloned();
        Self {
            extractor: config.get("engraft_extractor").cloned(),
            pad: config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()),
            multilingual: generation.get("is_multilingual").and_then(Value::as_bool),
            suppress: ["suppress_tokens", "begin_suppress_tokens"].map(either),
            max_initial: generation.get("max_initial_timestamp_index").cloned(),
            positions: config.get("max_target_positions").cloned(),
        }
    }
}
