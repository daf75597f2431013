//! Encoders, alone and with a decoder: BERT and its relatives, ModernBERT, T5.
//!
//! Source: llama.cpp's converters (`conversion/bert.py`, `t5.py`) and what it computes such files with.

use super::translation::{Seen, Translation};
use super::words::Words;
use crate::checkpoint::sentence::FIELD;
use crate::{Error, Result};
use serde_json::json;

/// Integers of encoders.
const ENCODER: &Words = &[
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("context_length", "max_position_embeddings"),
];

/// BERT and RoBERTa, whose positions are counted from 0 in such files.
pub(super) fn bert(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.put("model_type", json!("bert"));
    to.put("architectures", json!(["BertModel"]));
    to.put("hidden_act", json!("gelu"));
    base(to, seen)
}

/// Nomic BERT: BERT's blocks, gated, almost without biases, that rotate.
pub(super) fn nomic(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.put("model_type", json!("nomic_bert"));
    to.put("architectures", json!(["NomicBertModel"]));
    to.put("hidden_act", json!("silu"));
    to.numbers(&[("rope.freq_base", "rope_theta")])?;
    base(to, seen)
}

/// What BERT's relatives have.
fn base(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.counts(ENCODER)?;
    to.numbers(&[("attention.layer_norm_epsilon", "layer_norm_eps")])?;
    to.put("type_vocab_size", json!(seen.token_types.unwrap_or(0)));
    pooling(to, seen)
}

/// ModernBERT: most blocks have a window to both sides and a rotation of their own.
pub(super) fn modern(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.put("model_type", json!("modernbert"));
    to.put("architectures", json!(["ModernBertModel"]));
    to.counts(ENCODER)?;
    to.counts(&[
        ("attention.sliding_window", "local_attention"),
        ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
    ])?;
    to.numbers(&[
        ("attention.layer_norm_rms_epsilon", "norm_eps"),
        ("attention.layer_norm_epsilon", "norm_eps"),
        ("rope.freq_base", "global_rope_theta"),
        ("rope.freq_base_swa", "local_rope_theta"),
    ])?;
    if let Some(act) = to.metadata.str(&format!("{}.hidden_activation", to.arch))? {
        to.put("hidden_activation", json!(act));
    }
    to.put("attention_bias", json!(seen.qkv_bias));
    to.put("norm_bias", json!(seen.norm_bias));
    pooling(to, seen)
}

/// How an encoder's rows become one, where the file says it.
pub(super) fn pooling(to: &mut Translation, seen: &Seen) -> Result<()> {
    let pooling = match to.count("pooling_type")? {
        Some(1) => vec!["mean"],
        Some(2) => vec!["cls"],
        Some(3) => vec!["lasttoken"],
        _ if seen.dense => vec![],
        _ => return Ok(()),
    };
    let modules = if seen.dense { vec!["Dense"] } else { vec![] };
    to.put(FIELD, json!({ "pooling": pooling, "modules": modules }));
    Ok(())
}

/// Distances from here on share a bucket: no key says so, llama.cpp computes all files with it.
const T5_DISTANCE: u64 = 128;

/// T5, T5 1.1, Flan-T5, mT5 and UMT5, and their encoder alone. Activations follow the gate, as llama.cpp
/// computes them.
pub(super) fn t5(to: &mut Translation, seen: &Seen) -> Result<()> {
    let (model, classes) = match seen.bias_of_each {
        true => ("umt5", ["UMT5ForConditionalGeneration", "UMT5EncoderModel"]),
        false => ("t5", ["T5ForConditionalGeneration", "T5EncoderModel"]),
    };
    let alone = to.arch == "t5encoder";
    to.put("model_type", json!(model));
    to.put("architectures", json!([classes[usize::from(alone)]]));
    if !alone {
        to.put("is_encoder_decoder", json!(true));
    }
    to.counts(&[
        ("block_count", "num_layers"),
        ("decoder_block_count", "num_decoder_layers"),
        ("embedding_length", "d_model"),
        ("feed_forward_length", "d_ff"),
        ("attention.head_count", "num_heads"),
        ("attention.key_length", "d_kv"),
        ("attention.relative_buckets_count", "relative_attention_num_buckets"),
        ("decoder_start_token_id", "decoder_start_token_id"),
    ])?;
    to.numbers(&[("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")])?;
    for key in ["attention.key_length", "attention.relative_buckets_count"] {
        if to.count(key)?.is_none() {
            return Err(Error::format("", format!("metadata `{}.{key}` is missing", to.arch)));
        }
    }
    for (key, like) in [
        ("attention.value_length", "attention.key_length"),
        ("attention.head_count_kv", "attention.head_count"),
    ] {
        let (found, wanted) = (to.count(key)?, to.count(like)?);
        if let (Some(found), Some(wanted)) = (found, wanted)
            && found != wanted
        {
            let arch = to.arch;
            let what = format!("metadata `{arch}.{key}` is {found}; allowed is {wanted}, as `{arch}.{like}`");
            return Err(Error::format("", what));
        }
    }
    to.put("relative_attention_max_distance", json!(T5_DISTANCE));
    to.put("feed_forward_proj", json!(if seen.gated_encoder { "gated-gelu" } else { "relu" }));
    pooling(to, seen)
}
