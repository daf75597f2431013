//! What files of Gemma 4 say, and what they cannot say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::metadata::{Array, Kind, Numbers, Value};
use super::super::write::Writer;
use crate::checkpoint::open_gguf_bytes;
use crate::mem::Stored;
use serde_json::json;

/// A list of booleans.
fn flags(list: &[bool]) -> Value {
    let bytes = list.iter().map(|flag| u8::from(*flag)).collect();
    Value::Array(Array::Numbers(Numbers::new(Kind::Bool, bytes)))
}

fn counts(list: &[i32]) -> Value {
    Value::Array(Array::Numbers(Numbers::from_i32(list)))
}

/// The pairs of a model of four blocks, two of which read the keys and values of others.
fn pairs() -> Vec<(&'static str, Value)> {
    vec![
        ("block_count", Value::U32(4)),
        ("embedding_length", Value::U32(32)),
        ("feed_forward_length", counts(&[40, 40, 80, 80])),
        ("attention.head_count", Value::U32(4)),
        ("attention.head_count_kv", counts(&[2, 1, 2, 1])),
        ("attention.key_length", Value::U32(16)),
        ("attention.key_length_swa", Value::U32(8)),
        ("attention.shared_kv_layers", Value::U32(2)),
        ("attention.sliding_window_pattern", flags(&[true, false, true, false])),
        ("rope.dimension_count", Value::U32(16)),
        ("rope.dimension_count_swa", Value::U32(8)),
        ("rope.freq_base", Value::F32(2500.0)),
        ("rope.freq_base_swa", Value::F32(500.0)),
    ]
}

/// What a file with other pairs, and with these divisors, says; none of `without`.
fn said(with: &[(&'static str, Value)], without: &str, divisors: &[f32]) -> crate::Result<serde_json::Value> {
    let mut file = Writer::new().text("general.architecture", "gemma4");
    let other = |key: &str| key == without || with.iter().any(|(name, _)| *name == key);
    let plain = pairs().into_iter().filter(|(key, _)| !other(key));
    for (key, value) in plain.chain(with.iter().cloned()) {
        file = file.pair(&format!("gemma4.{key}"), &value);
    }
    let bytes: Vec<u8> = divisors.iter().flat_map(|d| d.to_le_bytes()).collect();
    for name in ["blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.1.attn_k.weight"] {
        file = file.tensor(name, &[1, 1], Stored::F32, &[0; 4]).unwrap();
    }
    if !divisors.is_empty() {
        file = file.tensor("rope_freqs.weight", &[divisors.len()], Stored::F32, &bytes).unwrap();
    }
    open_gguf_bytes("m.gguf", file.finish().into()).map(|files| files.config)
}

const QUARTER: [f32; 8] = [1.0, 1.0, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30];

#[test]
fn each_kind_of_block_has_its_fields() {
    let config = said(&[], "", &QUARTER).unwrap();
    for (field, value) in [
        ("model_type", json!("gemma4_text")),
        ("intermediate_size", json!(40)),
        ("use_double_wide_mlp", json!(true)),
        ("num_key_value_heads", json!(2)),
        ("num_global_key_value_heads", json!(1)),
        ("head_dim", json!(8)),
        ("global_head_dim", json!(16)),
        // The second block has keys and no values.
        ("attention_k_eq_v", json!(true)),
        ("enable_moe_block", json!(false)),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        ),
    ] {
        assert_eq!(config[field], value, "{field}");
    }
    let ropes = &config["rope_parameters"];
    let global = json!({ "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 2500.0 });
    assert_eq!(ropes["full_attention"], global);
    assert_eq!(ropes["sliding_attention"], json!({ "rope_type": "default", "rope_theta": 500.0 }));
    let whole = said(&[("feed_forward_length", Value::U32(40))], "", &[]).unwrap();
    assert_eq!(whole["rope_parameters"]["full_attention"]["partial_rotary_factor"], json!(1.0));
    assert_eq!(whole["use_double_wide_mlp"], json!(false));
}

#[test]
fn what_these_files_cannot_say_is_refused_by_name() {
    let refused = |with: &[(&'static str, Value)], without: &str, divisors: &[f32], names: &[&str]| {
        let text = said(with, without, divisors).unwrap_err().to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    };
    let key = "attention.sliding_window_pattern";
    refused(&[], key, &QUARTER, &["gemma4.attention.sliding_window_pattern"]);
    refused(&[(key, flags(&[true]))], "", &QUARTER, &["gemma4.attention.sliding_window_pattern"]);
    let key = "feed_forward_length";
    refused(&[(key, counts(&[40, 80, 80, 80]))], "", &QUARTER, &["gemma4.feed_forward_length", "last 2"]);
    refused(&[(key, counts(&[40, 40, 80]))], "", &QUARTER, &["gemma4.feed_forward_length", "each layer"]);
    refused(&[], key, &QUARTER, &["gemma4.feed_forward_length", "missing"]);
    let key = "attention.head_count_kv";
    refused(&[(key, counts(&[2, 1, 1, 1]))], "", &QUARTER, &["gemma4.attention.head_count_kv", "2 in all"]);
    for key in ["rope.dimension_count", "rope.dimension_count_swa"] {
        refused(&[(key, Value::U32(4))], "", &QUARTER, &[key, "the width of a head"]);
    }
    refused(&[("block_count", Value::U32(0))], "", &QUARTER, &["gemma4.block_count", "65536"]);
    for divisors in [&[2.0, 1e30][..], &[1e30, 1e30], &[1.0, 3.0], &[1.0, f32::NAN]] {
        refused(&[], "", divisors, &["rope_freqs.weight", "1e30"]);
    }
}
