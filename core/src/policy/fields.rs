//! What the automatic policy, and a user's table, make of the fields of a configuration.
//!
//! A field is read by a rule, or is known to change nothing about the forward pass; any other one that says
//! something refuses the model. New architectures bring new fields: a model that ran without one would
//! compute something else, unnoticed. A user may accept a field, which is then listed among the
//! assumptions.
//!
//! The automatic policy reads the fields listed here. What a table reads is what its family reads, and no
//! list says that: a field counts as read where another value of it gives another model or an error.

use super::describe::{ACT, EPS, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, POSITIONS, VOCAB};
use super::doubts::{Doubt, agrees};
use crate::config::ModelConfig;
use crate::{Error, Result};
use serde_json::Value;

/// Fields that rules read: sizes, activation and norm under all their names, head and rotation.
const READ: &[&[&str]] = &[
    HIDDEN,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    POSITIONS,
    INNER,
    ACT,
    EPS,
    &["head_dim", "tie_word_embeddings", "use_sliding_window", "original_max_position_embeddings"],
    &["rope_theta", "rotary_emb_base", "rope_base", "partial_rotary_factor", "rotary_pct", "rope_pct"],
];

/// Objects of rotary settings, of either generation.
const ROPES: [&str; 2] = ["rope_scaling", "rope_parameters"];

/// Fields of `rope_scaling` and `rope_parameters` that rules read.
const ROPE: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "finetuned",
];

/// Switches whose answer lies in the file: a bias or a norm is there, or it is not.
const IN_THE_FILE: &[&str] = &[
    "attention_bias",
    "attention_out_bias",
    "bias",
    "decoder_bias",
    "enable_bias",
    "lm_head_bias",
    "mlp_bias",
    "no_bias",
    "qkv_bias",
    "use_bias",
    "use_qkv_bias",
    "qk_layernorm",
];

/// Training, generation, labels, storage: nothing about the forward pass. A `*` stands for any letters, where
/// all names that it takes are of one purpose; the others are exact, as published configurations have them.
const HARMLESS: &[&str] = &[
    "model_type",
    "architectures",
    "auto_map",
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "engraft_*",
    "torch_dtype",
    "dtype",
    "*_token_id",
    "*_token_ids",
    "boi_token_index",
    "eoa_token_index",
    "eoi_token_index",
    "image_token_index",
    "video_token_index",
    "activation_dropout",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_dropout_prob",
    "classifier_dropout",
    "classifier_dropout_prob",
    "dropout",
    "dropout_rate",
    "emb_dropout_prob",
    "embed_dropout",
    "embedding_dropout",
    "feat_proj_dropout",
    "feat_quantizer_dropout",
    "final_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "mlp_dropout",
    "pooler_dropout",
    "projection_dropout",
    "projector_dropout",
    "qa_dropout",
    "resid_dropout",
    "residual_dropout",
    "seq_classif_dropout",
    "summary_first_dropout",
    "summary_last_dropout",
    "*_pdrop",
    "*layerdrop",
    "initializer_*",
    "init_std",
    "init_device",
    "aux_loss_*",
    "use_cache",
    "use_flash_attn*",
    "*attn_implementation*",
    "attn_impl",
    "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",
    "reorder_and_upcast_attn",
    "layer_norm_elementwise_affine",
    "gradient_checkpointing",
    "deterministic_flash_attn",
    "rescale_prenorm_residual",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "router_aux_loss*",
    "enable_moe_fp32_combine",
    "router_jitter_noise",
    "input_jitter_noise",
    "sparse_pred*",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "classifier_activation",
    "classifier_bias",
    "classifier_pooling",
    "classifier_proj_size",
    "apply_spec_augment",
    "mask_feature_*",
    "mask_time_*",
    "median_filter_width",
    "codevector_dim",
    "num_codevector_groups",
    "num_codevectors_per_group",
    "proj_codevector_dim",
    "contrastive_logits_temperature",
    "ctc_*",
    "diversity_loss_weight",
    "num_negatives",
    "tdnn_*",
    "xvector_output_dim",
    "use_weighted_layer_sum",
    "adapter_kernel_size",
    "adapter_stride",
    "num_adapter_layers",
    "output_hidden_size",
    "pad_head_dim_to_multiple_of",
    "*suppress_tokens",
    "forced_decoder_ids",
    "tokenizer_class",
    "max_length",
    "min_length",
    "do_sample",
    "temperature",
    "max_window_layers",
];

/// Values that leave the model as it is.
const NEUTRAL: &[(&str, f64)] = &[
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("scale_emb", 1.0),
    ("embedding_fraction", 1.0),
    ("pretraining_tp", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_softcapping", 0.0),
    ("sliding_window", 0.0),
    ("num_nextn_predict_layers", 0.0),
    ("num_local_experts", 0.0),
    ("num_experts", 0.0),
];

/// Refuses a configuration with a field that the automatic policy does not know and that says something, and
/// a model of which something is open; gives a sentence for each that is accepted.
///
/// # Errors
/// `Config`, naming the field, or what is open, and its value.
pub(super) fn check(config: &ModelConfig, accepted: &[String], open: &[Doubt]) -> Result<Vec<String>> {
    let passes = |doubt: &&Doubt| accepted.iter().any(|one| covers(one, &doubt.name));
    if let Some(doubt) = open.iter().find(|doubt| !passes(doubt)) {
        let allowed = format!("{}; accept_unknown lets it pass", doubt.allowed);
        return Err(Error::config(doubt.name.clone(), &doubt.says, allowed));
    }
    let is_read = |field: &str| {
        let (object, inner) = field.split_once('.').unwrap_or(("", field));
        (object.is_empty() && (READ.iter().any(|names| names.contains(&inner)) || agrees(inner)))
            || (ROPES.contains(&object) && ROPE.contains(&inner))
    };
    let open = open.iter().map(|doubt| (doubt.name.clone(), doubt.says.clone()));
    accept(open.chain(unread(config, &is_read)).collect(), accepted, "the automatic policy")
}

/// Whether a name that a user accepts is this field's, or that of an object with the field in it.
fn covers(one: &str, field: &str) -> bool {
    field.strip_prefix(one).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Refuses fields that were not read, but for those that the user accepts (an object with all that is in it):
/// a sentence for each of these.
///
/// # Errors
/// `Config`, naming a field that is not accepted, or an accepted one that is read or missing.
pub(super) fn accept(unread: Vec<(String, Value)>, accepted: &[String], who: &str) -> Result<Vec<String>> {
    if let Some((field, value)) =
        unread.iter().find(|(field, _)| !accepted.iter().any(|one| covers(one, field)))
    {
        let allowed = format!("what {who} knows; accept_unknown lets the field pass unread");
        return Err(Error::config(field.clone(), value, allowed));
    }
    if let Some(vain) = accepted.iter().find(|one| !unread.iter().any(|(field, _)| covers(one, field))) {
        let allowed = format!("a field of the configuration that {who} does not know");
        return Err(Error::config("accept_unknown", format!("\"{vain}\""), allowed));
    }
    let said = |(field, value)| format!("`{field}` ({value}) is accepted and not read");
    Ok(unread.into_iter().map(said).collect())
}

/// Fields that say something, are not read, and are not known to change nothing; those inside objects by
/// dots.
pub(super) fn unread(config: &ModelConfig, is_read: &dyn Fn(&str) -> bool) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut left: Vec<(String, &Value)> =
        config.fields().map(|(name, value)| (name.clone(), value)).collect();
    left.reverse();
    while let Some((field, value)) = left.pop() {
        let name = field.rsplit('.').next().unwrap_or_default();
        match value {
            _ if !says(value) || is_known(config, name, value) => {}
            Value::Object(inner) => left.extend(inner.iter().map(|(name, v)| (format!("{field}.{name}"), v))),
            _ if is_read(&field) => {}
            _ => found.push((field, value.clone())),
        }
    }
    found
}

/// Whether a field changes nothing about any model, with this value.
fn is_known(config: &ModelConfig, field: &str, value: &Value) -> bool {
    let listed = |names: &[&str]| names.iter().any(|name| super::glob(name, field));
    match field {
        "sliding_window" if config.get("use_sliding_window") == Some(&Value::Bool(false)) => true,
        // The length that scaled rotations stretch.
        "original_max_position_embeddings" if !ROPES.iter().any(|ropes| config.get(ropes).is_some()) => true,
        "layer_types" => every(value, "full_attention"),
        "scale_attn_weights" => value == &Value::Bool(true),
        _ if NEUTRAL.iter().any(|(name, n)| *name == field && value.as_f64() == Some(*n)) => true,
        _ => listed(IN_THE_FILE) || listed(HARMLESS),
    }
}

/// Whether a value is more than nothing.
fn says(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

fn every(value: &Value, word: &str) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|one| one.as_str() == Some(word)))
}
