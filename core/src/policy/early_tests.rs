//! Families without a golden of a relative: their published configurations, made small, against headers as their files
//! have them.

use super::tests::Case;
use super::*;
use crate::mem::Stored;
use serde_json::{Value, json};

fn case(config: Value, tensors: &[(&str, &[usize])]) -> Case {
    let info = |(name, shape): &(&str, &[usize])| TensorInfo {
        name: name.to_string(),
        shape: shape.to_vec(),
        stored: Stored::F32,
    };
    Case { config, tensors: tensors.iter().map(info).collect() }
}

fn chatglm() -> Case {
    case(
        json!({
            "model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": 32, "num_layers": 1,
            "num_attention_heads": 4, "kv_channels": 8, "multi_query_attention": true, "multi_query_group_num": 2,
            "ffn_hidden_size": 24, "layernorm_epsilon": 1e-5, "rmsnorm": true, "post_layer_norm": true,
            "padded_vocab_size": 40, "vocab_size": 38, "seq_length": 64, "add_qkv_bias": true,
            "add_bias_linear": false, "original_rope": true, "rope_ratio": 50,
            "apply_residual_connection_post_layernorm": false
        }),
        &[
            ("transformer.embedding.word_embeddings.weight", &[40, 32]),
            ("transformer.rotary_pos_emb.inv_freq", &[2]),
            ("transformer.encoder.layers.0.input_layernorm.weight", &[32]),
            ("transformer.encoder.layers.0.self_attention.query_key_value.weight", &[64, 32]),
            ("transformer.encoder.layers.0.self_attention.query_key_value.bias", &[64]),
            ("transformer.encoder.layers.0.self_attention.dense.weight", &[32, 32]),
            ("transformer.encoder.layers.0.post_attention_layernorm.weight", &[32]),
            ("transformer.encoder.layers.0.mlp.dense_h_to_4h.weight", &[48, 32]),
            ("transformer.encoder.layers.0.mlp.dense_4h_to_h.weight", &[32, 24]),
            ("transformer.encoder.final_layernorm.weight", &[32]),
            ("transformer.output_layer.weight", &[40, 32]),
        ],
    )
}

#[test]
fn chatglm_shares_keys_and_rotates_half_of_every_head_in_pairs() {
    let mut case = chatglm();
    let (spec, found) = case.resolve().unwrap();
    assert_eq!((found.len(), spec.vocab, spec.max_positions), (spec.roles().len(), 40, 64));
    let block = &spec.blocks[0];
    assert_eq!(block.heads, Heads { heads: 4, kv_heads: 2, k_dim: 8, v_dim: 8 });
    assert_eq!((block.bias, block.mlp.gated, block.mlp.inner), ([true, false, false, false], true, 24));
    let rope = &spec.ropes[0];
    assert_eq!((rope.style, rope.columns, rope.theta), (RopeStyle::Interleaved, 4, 500_000.0));
    assert!(found.iter().all(|r| r.binding.sources.iter().all(|s| s.order == RowOrder::Plain)));
    let e = chatglm().set("rmsnorm", json!(false)).error();
    assert!(e.contains("`rmsnorm` is false"), "{e}");
    let e = chatglm().set("padded_vocab_size", Value::Null).error();
    assert!(e.contains("first generation"), "{e}");
    let e = chatglm().set("multi_query_group_num", json!(3)).error();
    assert!(e.contains("is 3; allowed: a divisor of 4"), "{e}");
}

#[test]
fn the_larger_baichuan_has_slopes_instead_of_rotation() {
    let base = Case::load("llama").set("model_type", json!("baichuan"));
    let rotated = base.set("model_max_length", json!(64)).spec().unwrap();
    assert!(rotated.blocks[0].rope.is_some() && rotated.blocks[0].scores.alibi.is_none());
    let base = Case::load("llama").set("model_type", json!("baichuan")).set("model_max_length", json!(77));
    let sloped = base.set("max_position_embeddings", Value::Null).spec().unwrap();
    assert!(sloped.blocks[0].rope.is_none() && sloped.blocks[0].scores.alibi.is_some());
    assert_eq!(sloped.max_positions, 77);
}

#[test]
fn falcons_slopes_follow_who_wrote_the_file() {
    let slope = |version: Value| {
        let spec = Case::load("falcon_alibi").set("transformers_version", version).spec().unwrap();
        spec.blocks[0].scores.alibi.as_ref().unwrap()[0]
    };
    assert_eq!(slope(json!("4.27.4")), 0.25 / 4.0);
    assert_eq!(slope(Value::Null), 0.25 / 4.0);
    assert_eq!(slope(json!("5.23.0")), 0.25 / 2.0);
}

#[test]
fn hostile_counts_are_refused_before_anything_is_made_of_them() {
    for (name, field, value) in [
        ("mixtral", "num_local_experts", json!(1 << 30)),
        ("qwen2_moe", "num_experts_per_tok", json!(7)),
        ("bloom", "n_head", json!(1u64 << 31)),
        ("gemma", "num_attention_heads", json!(1u64 << 31)),
        ("gpt_neo", "attention_layers", json!(["local"])),
        ("exaone4", "layer_types", json!(["odd"])),
        (
            "phi3_longrope",
            "rope_scaling",
            json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}),
        ),
        ("codegen", "n_head", json!(6)),
        ("phi", "partial_rotary_factor", json!(1.5)),
        ("roberta", "pad_token_id", json!(41)),
        ("clip_vision", "patch_size", json!(25)),
        ("albert", "inner_group_num", json!(2)),
        ("mpt", "attn_config", json!({"clip_qkv": 6.0})),
    ] {
        let mut case = Case::load(name).set(field, value);
        let e = match case.spec() {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{name}: {field} was taken"),
        };
        assert!(e.contains("allowed:"), "{name}: {e}");
    }
}
