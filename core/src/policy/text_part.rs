//! The text part of a model that has towers for images or sound: a model of texts in a field of its
//! configuration, below a prefix of its tensors' names. Its family describes it; the towers are left out.

use super::{Binding, Catalog, Fit, InjectionPolicy, ModelSpec, glob};
use crate::config::ModelConfig;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::sync::Arc;

/// Values of `model_type` that have towers next to a text part, and the text part's where it names none.
/// Texts alone give the model's own outputs there; where they do not, `lacking` has the word.
const WITH_TOWERS: [(&str, &str); 12] = [
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("internvl", "qwen2"),
    ("kimi_k25", "deepseek_v3"),
    ("llama4", "llama4_text"),
    ("llava", "llama"),
    ("mistral3", "mistral"),
    ("qwen2_5_vl", "qwen2_5_vl_text"),
    ("qwen2_vl", "qwen2_vl_text"),
    ("qwen3_vl", "qwen3_vl_text"),
    ("smolvlm", "llama"),
];

/// Of these, those whose first files have the text part's fields next to those of the towers.
const FLAT: [&str; 2] = ["qwen2_5_vl", "qwen2_vl"];

/// The configuration's field.
const FIELD: &str = "text_config";

/// Names of the towers' tensors, and of what leads from there into the text part. They begin below `model.`
/// in files of newer libraries.
const TOWERS: [&str; 10] = [
    "audio_tower.*",
    "connector.*",
    "embed_audio.*",
    "embed_vision.*",
    "image_newline",
    "mm_projector.*",
    "multi_modal_projector.*",
    "vision_model.*",
    "vision_tower.*",
    "visual.*",
];

/// Fields that a text part may leave to the whole model.
const INHERITED: [&str; 4] = ["id2label", "num_labels", "pad_token_id", "tie_word_embeddings"];

/// Fields with the ids of the tokens that stand for an image or a sound.
const PLACES: [&str; 6] = [
    "image_token_index",
    "image_token_id",
    "media_placeholder_token_id",
    "video_token_index",
    "video_token_id",
    "audio_token_id",
];

/// What the library's configurations of text parts have where a file leaves it out: published ones do.
const DEFAULTS: [(&str, &[(&str, u64)]); 2] = [
    (
        "llama",
        &[
            ("vocab_size", 32_000),
            ("hidden_size", 4096),
            ("intermediate_size", 11_008),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("max_position_embeddings", 2048),
        ],
    ),
    (
        "mistral",
        &[
            ("vocab_size", 32_000),
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
            ("num_key_value_heads", 8),
            ("max_position_embeddings", 131_072),
            ("sliding_window", 4096),
        ],
    ),
];

/// Whether a `model_type` is that of a model whose text part is taken.
#[cfg(test)]
pub(super) fn has_towers(model_type: &str) -> bool {
    WITH_TOWERS.iter().any(|(whole, _)| *whole == model_type)
}

/// The configuration with these fields where it does not have them; null counts as there.
pub(super) fn with_defaults<V: Into<Value>>(
    config: ModelConfig,
    defaults: impl IntoIterator<Item = (&'static str, V)>,
) -> ModelConfig {
    let missing = |config: &ModelConfig, field: &str| !config.fields().any(|(name, _)| name == field);
    defaults.into_iter().fold(config, |config, (field, value)| match missing(&config, field) {
        true => config.with(field, value),
        false => config,
    })
}

/// The configuration of the text part; none of a model that has no towers.
///
/// # Errors
/// `Config` for a model with towers whose text part is missing or no object.
pub(super) fn configuration(whole: &ModelConfig) -> Result<Option<ModelConfig>> {
    let Some((_, own_type)) = WITH_TOWERS.iter().find(|(name, _)| *name == whole.model_type()) else {
        return Ok(None);
    };
    let is_flat = whole.get(FIELD).is_none() && FLAT.contains(&whole.model_type());
    let text = if is_flat { whole.with("model_type", *own_type) } else { whole.section(FIELD)? };
    let mut text = with_defaults(text, [("model_type", *own_type)]);
    let inherited = INHERITED.iter().filter_map(|field| Some((*field, whole.get(field)?.clone())));
    text = with_defaults(text, inherited);
    // The class of the whole model says what its head is for.
    if whole.architecture().ends_with("Classification") {
        text = text.with("architectures", json!([whole.architecture()]));
    }
    let defaults = DEFAULTS.iter().find(|(name, _)| *name == text.model_type());
    Ok(Some(with_defaults(text, defaults.into_iter().flat_map(|(_, all)| all.iter().copied()))))
}

/// The policy of a text part, asked with the configuration of the whole model.
pub(super) struct TextPart(Arc<dyn InjectionPolicy>);

impl TextPart {
    /// Of a model with towers, by what describes its text part.
    pub(super) fn over(inner: Arc<dyn InjectionPolicy>) -> Arc<dyn InjectionPolicy> {
        Arc::new(Self(inner))
    }

    /// The error of a text part that nothing describes, with the whole model's name.
    pub(super) fn error(whole: &ModelConfig, error: Error) -> Error {
        match error {
            Error::NoPolicy { model, reasons } => {
                let model = format!("the text part of model_type \"{}\": {model}", whole.model_type());
                Error::NoPolicy { model, reasons }
            }
            other => other,
        }
    }

    fn of(whole: &ModelConfig) -> Result<ModelConfig> {
        configuration(whole)?.ok_or_else(|| Error::internal("a model without towers has no text part"))
    }
}

/// What a plan says of the parts that are left out.
fn left_out(whole: &ModelConfig) -> String {
    let ids: Vec<String> =
        PLACES.iter().filter_map(|field| whole.get(field)?.as_u64()).map(|id| id.to_string()).collect();
    let tokens = match ids.len() {
        0 => String::new(),
        1 => format!("; token {}, their place in a prompt, is read as a text's", ids[0]),
        _ => format!("; tokens {}, their places in a prompt, are read as a text's", ids.join(", ")),
    };
    format!("the text part of {} alone: towers of images and sound are left out{tokens}", whole.model_type())
}

impl InjectionPolicy for TextPart {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn fit(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Fit {
        match Self::of(config) {
            Ok(text) => self.0.fit(&text, catalog),
            Err(error) => Fit::No(error.to_string()),
        }
    }

    fn why(&self, config: &ModelConfig) -> String {
        let of_text = Self::of(config).map(|text| self.0.why(&text)).unwrap_or_default();
        format!("of the text part of model_type \"{}\", {of_text}", config.model_type())
    }

    fn spec(&self, config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
        let mut spec = self.0.spec(&Self::of(config)?, catalog)?;
        spec.assumed.push(left_out(config));
        Ok(spec)
    }

    fn bindings(&self, spec: &ModelSpec, config: &ModelConfig, catalog: Catalog<'_>) -> Vec<Binding> {
        let of_text = Self::of(config).map(|text| self.0.bindings(spec, &text, catalog));
        of_text.unwrap_or_default()
    }

    fn with_accepted(&self, fields: &[String]) -> Option<Arc<dyn InjectionPolicy>> {
        self.0.with_accepted(fields).map(Self::over)
    }

    fn ignored(&self) -> &[&str] {
        self.0.ignored()
    }

    fn ignores(&self, name: &str) -> bool {
        let below = name.strip_prefix("model.").unwrap_or(name);
        TOWERS.iter().any(|pattern| glob(pattern, below)) || self.0.ignores(name)
    }
}
