//! A checkpoint's text side: the tokenizer, the chat template, what ends a text, how the model likes to be
//! sampled.

use engraft_core::Result;
use engraft_core::checkpoint::TokenizerFiles;
use engraft_core::config::ModelConfig;
use engraft_core::sample::{FileRules, SamplingParams, not_honoured};
use engraft_core::text::{ChatTemplate, Tokenizer};
use serde_json::Value;

/// Fields of a `generation_config.json` that a transcription reads, or that say what a vocabulary says
/// anyway.
const HEARD: [&str; 15] = [
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

/// Everything between a model's tokens and text.
#[derive(Debug)]
pub(crate) struct TextProcessor {
    pub tokenizer: Tokenizer,
    /// Of what a decoder writes, where that has pieces of its own.
    pub target: Option<Tokenizer>,
    pub template: Option<ChatTemplate>,
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingParams,
    /// Of the tokens of every text.
    pub rules: FileRules,
}

impl TextProcessor {
    /// Builds it from what the checkpoint has; `name` is the model's, for messages.
    pub fn new(name: &str, mut files: TokenizerFiles, config: &Value, generation: &Value) -> Result<Self> {
        let own = match &mut files {
            TokenizerFiles::HuggingFace { chat_template, .. } => chat_template.take(),
            _ => None,
        };
        let target = match &files {
            TokenizerFiles::HuggingFace {
                tokenizer_json: None,
                vocabulary: Some(files),
                tokenizer_config,
                ..
            } => files.of_targets().map(|files| Tokenizer::from_vocabulary(&files, tokenizer_config)),
            _ => None,
        };
        let target = target.transpose()?;
        let tokenizer = Tokenizer::from_files(name, files)?;
        let template = own.or_else(|| tokenizer.chat_template().map(str::to_owned));
        let template = template
            .map(|source| ChatTemplate::new(&source, tokenizer.bos_token(), tokenizer.eos_token()))
            .transpose()?;
        let mut stop_ids = tokenizer.eos_ids().to_vec();
        // Models that see images may have it in their text part alone.
        let said = |file: &&Value| file.get("eos_token_id").is_some_and(|id| !id.is_null());
        let whole = [config, generation];
        let parts =
            if whole.iter().any(said) { vec![config, generation] } else { vec![&config["text_config"]] };
        for file in parts {
            if file.is_object() {
                stop_ids.extend(ModelConfig::new(file.clone())?.ids("eos_token_id")?);
            }
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let mut ignored = not_honoured(generation);
        if config["is_encoder_decoder"] == true {
            // What its decoder begins with.
            ignored.retain(|name| name != "forced_bos_token_id");
        }
        if config["model_type"] == "whisper" {
            ignored.retain(|name| !HEARD.contains(&name.as_str()));
        }
        if !ignored.is_empty() {
            tracing::warn!(
                "{name}: generation_config.json asks for what is not honoured: {}",
                ignored.join(", ")
            );
        }
        let sampling = match generation.is_object() {
            true => SamplingParams::from_generation_config(generation)?,
            false => SamplingParams::default(),
        };
        let rules = FileRules::of(generation)?;
        Ok(Self { tokenizer, target, template, stop_ids, sampling, rules })
    }

    /// Warns where the tokenizer knows tokens that a model of `rows` has none for: it may be another model's.
    pub fn fits(&mut self, name: &str, rows: usize) {
        let beyond = self.rules.retain_below(rows);
        if !beyond.is_empty() {
            tracing::warn!(
                "{name}: generation_config.json has rules for tokens that the model has no rows for: {beyond:?}"
            );
        }
        let tokens = self.tokenizer.vocab_size();
        if tokens > rows {
            tracing::warn!(
                "{name}: the tokenizer has {tokens} tokens, the model rows for {rows}: texts with tokens beyond \
                 them are refused; it may be another model's tokenizer"
            );
        }
    }
}
