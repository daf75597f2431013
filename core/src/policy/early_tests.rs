//! Families without a golden of a relative: their published configurations, made small, against headers as
//! their files have them.

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

fn meta() -> Case {
    case(
        json!({
            "dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "vocab_size": -1, "multiple_of": 8,
            "ffn_dim_multiplier": 1.3, "norm_eps": 1e-5
        }),
        &[
            ("tok_embeddings.weight", &[40, 32]),
            ("rope.freqs", &[4]),
            ("layers.0.attention_norm.weight", &[32]),
            ("layers.0.attention.wq.weight", &[32, 32]),
            ("layers.0.attention.wk.weight", &[16, 32]),
            ("layers.0.attention.wv.weight", &[16, 32]),
            ("layers.0.attention.wo.weight", &[32, 32]),
            ("layers.0.ffn_norm.weight", &[32]),
            ("layers.0.feed_forward.w1.weight", &[24, 32]),
            ("layers.0.feed_forward.w2.weight", &[32, 24]),
            ("layers.0.feed_forward.w3.weight", &[24, 32]),
            ("norm.weight", &[32]),
            ("output.weight", &[40, 32]),
        ],
    )
}

#[test]
fn metas_parameters_of_all_generations() {
    let mut first = meta();
    let (spec, found) = first.resolve().unwrap();
    assert_eq!((found.len(), spec.vocab, spec.max_positions), (spec.roles().len(), 40, 2048));
    assert_eq!((spec.blocks[0].mlp.inner, spec.blocks[0].heads.kv_heads), (24, 2));
    let rope = &spec.ropes[0];
    assert_eq!((rope.style, rope.theta, &rope.scaling), (RopeStyle::Interleaved, 1e4, &RopeScaling::None));
    let third = || meta().set("rope_theta", json!(500000.0));
    let spec = third().spec().unwrap();
    assert_eq!((spec.ropes[0].scaling.clone(), spec.max_positions), (RopeScaling::None, 8192));
    let scaled = || third().set("use_scaled_rope", json!(true));
    let of = |factor| RopeScaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
    let spec = scaled().spec().unwrap();
    assert_eq!((spec.ropes[0].scaling.clone(), spec.max_positions), (of(8.0), 131_072));
    assert_eq!(scaled().set("rope_scaling_factor", json!(16)).spec().unwrap().ropes[0].scaling, of(16.0));
    let e = scaled().set("rope_scaling_factor", json!(0.5)).error();
    assert!(e.contains("`rope factor` is 0.5; allowed: at least 1"), "{e}");
    let e = meta().set("use_scaled_rope", json!("yes")).error();
    assert!(e.contains("`use_scaled_rope` is \"yes\"; allowed: true or false"), "{e}");
    let mistral = meta().set("sliding_window", json!(16)).spec().unwrap();
    assert_eq!(mistral.blocks[0].scores.window, Some(16));
}

/// Gemma 3 from 4B on is published with an image tower: its text part, in the names of both layouts, gives
/// the same model as a file of the text part alone.
#[test]
fn gemma3_with_images_is_its_text_part() {
    let text = Case::load("gemma3").spec().unwrap();
    let rename: [fn(&str) -> String; 2] =
        [|n| format!("language_model.{n}"), |n| n.replace("model.", "model.language_model.")];
    let towers = [
        ["vision_tower.", "multi_modal_projector."],
        ["model.vision_tower.", "model.multi_modal_projector."],
    ];
    for (rename, [tower, projector]) in rename.into_iter().zip(towers) {
        let mut case = Case::load("gemma3").renamed(rename);
        let config = json!({
            "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 300,
            "mm_tokens_per_image": 4, "eos_token_id": [1, 106], "text_config": case.config.take(),
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        });
        case.config = config;
        let text_tensors = case.tensors.len();
        let mut case = case
            .add(&format!("{tower}vision_model.embeddings.patch_embedding.bias"), &[8])
            .add(&format!("{projector}mm_input_projection_weight"), &[8, 64]);
        let (spec, found) = case.resolve().unwrap();
        assert!(spec.assumed[0].contains("token 300, their place in a prompt"), "{:?}", spec.assumed);
        assert_eq!(ModelSpec { assumed: Vec::new(), ..spec }, text);
        assert_eq!(found.iter().map(|r| r.tensors.len()).sum::<usize>(), text_tensors);
    }
    let e = Case::load("gemma3").set("model_type", json!("gemma3")).error();
    assert!(e.contains("`text_config` is missing"), "{e}");
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
fn windows_by_list_number_and_letters() {
    let windows = |case: Case| -> Vec<bool> {
        let mut case = case;
        case.spec().unwrap().blocks.iter().map(|b| b.scores.window.is_some()).collect()
    };
    let bare = || Case::load("exaone4").set("layer_types", Value::Null);
    assert_eq!(windows(Case::load("exaone4")), [true, true, true, false]);
    assert_eq!(windows(bare().set("sliding_window_pattern", json!(2))), [true, false, true, false]);
    assert_eq!(windows(bare().set("sliding_window_pattern", json!("LLLG"))), [true, true, true, false]);
    let mut global = bare().set("sliding_window", Value::Null);
    assert!(global.spec().unwrap().blocks.iter().all(|b| b.rope.is_some() && b.scores.window.is_none()));
}

#[test]
fn hostile_counts_are_refused_before_anything_is_made_of_them() {
    for (name, field, value) in [
        ("mixtral", "num_local_experts", json!(1 << 30)),
        ("qwen2_moe", "num_experts_per_tok", json!(7)),
        ("bloom", "n_head", json!(1u64 << 31)),
        ("stablelm", "num_attention_heads", json!(1u64 << 31)),
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
        ("roberta", "pad_token_id", json!(u64::MAX - 31)),
        ("roberta", "pad_token_id", json!(1.5)),
        ("clip_vision", "patch_size", json!(25)),
        ("albert", "inner_group_num", json!(2)),
        ("mpt", "attn_config", json!({"qk_ln": true})),
        ("mpt", "attn_config", json!({"clip_qkv": -6.0})),
    ] {
        let mut case = Case::load(name).set(field, value);
        let e = match case.spec() {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{name}: {field} was taken"),
        };
        assert!(e.contains("allowed:"), "{name}: {e}");
    }
}

#[test]
fn names_by_head_and_repeated_patterns_are_bounded() {
    let many =
        Case::load("stablelm").set("num_attention_heads", json!(1 << 16)).set("qk_layernorm", json!(true));
    let e = many.set("num_key_value_heads", json!(1 << 16)).spec().unwrap_err().to_string();
    assert!(e.contains("num_attention_heads") && e.contains("norms of their own"), "{e}");
    let pattern = json!([[["global", "local", "local"], 1u64 << 40], [["local"], 1u64 << 40]]);
    let neo = Case::load("gpt_neo").set("attention_layers", Value::Null).set("attention_types", pattern);
    let e = neo.set("num_layers", json!(4096)).spec().unwrap_err().to_string();
    assert!(e.contains("attention_types") && e.contains("4098 words"), "{e}");
    let neo = Case::load("gpt_neo").set("attention_layers", Value::Null);
    let spec = neo.set("attention_types", json!([[["global", "local"], 1]])).spec().unwrap();
    assert_eq!(spec.blocks.iter().map(|b| b.scores.window.is_some()).collect::<Vec<_>>(), [false, true]);
}

/// Configurations as they are published, with the fields that they leave out.
#[test]
fn published_configurations_are_read() {
    let spec = |config: Value| -> ModelSpec {
        case(config.clone(), &[]).spec().unwrap_or_else(|e| panic!("{config}: {e}"))
    };
    let bloom =
        spec(json!({"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16,
        "layer_norm_epsilon": 1e-5, "vocab_size": 250880, "seq_length": 2048, "offset_alibi": 100}));
    assert_eq!(
        (bloom.hidden, bloom.blocks.len(), bloom.blocks[0].mlp.inner, bloom.max_positions),
        (1024, 24, 4096, 2048)
    );
    assert!(bloom.head.is_tied());
    let falcon = spec(json!({"model_type": "falcon", "alibi": false, "bias": false, "hidden_size": 4544,
        "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71, "num_hidden_layers": 32,
        "parallel_attn": true, "vocab_size": 65024}));
    let block = &falcon.blocks[0];
    assert_eq!((block.heads.k_dim, block.heads.kv_heads, falcon.placement), (64, 1, Placement::Parallel));
    assert!(block.mlp_norm.is_none() && block.rope.is_some());
    let refined =
        spec(json!({"model_type": "RefinedWeb", "alibi": false, "bias": false, "hidden_size": 8192,
        "n_head": 128, "n_head_kv": 8, "n_layer": 60, "parallel_attn": true, "vocab_size": 65024}));
    assert!(refined.blocks[0].heads.kv_heads == 8 && refined.blocks[0].mlp_norm.is_some());
    let gptj =
        spec(json!({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28,
        "n_positions": 2048, "rotary_dim": 64, "tie_word_embeddings": false, "vocab_size": 50400}));
    assert_eq!((gptj.blocks[0].mlp.inner, gptj.ropes[0].columns), (16384, 64));
    let phi = spec(json!({"model_type": "phi", "hidden_act": "gelu_new", "hidden_size": 2560,
        "intermediate_size": 10240, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": null,
        "partial_rotary_factor": 0.4, "vocab_size": 51200, "max_position_embeddings": 2048}));
    assert_eq!((phi.ropes[0].columns, phi.blocks[0].heads.kv_heads), (32, 32));
    let gemma = spec(
        json!({"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256,
        "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 26, "vocab_size": 256000,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}),
    );
    assert_eq!((gemma.blocks[0].scores.window, gemma.blocks[1].scores.window), (Some(4096), None));
    assert_eq!((gemma.blocks[0].scores.scale, gemma.embed.scale), (0.0625, Some(48.0)));
    let gemma3 = spec(json!({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 26,
        "vocab_size": 262144, "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6,
        "rope_theta": 1000000, "rope_local_base_freq": 10000, "max_position_embeddings": 32768}));
    let bases: Vec<f64> = gemma3.ropes.iter().map(|r| r.theta).collect();
    assert_eq!((bases, gemma3.blocks[4].rope, gemma3.blocks[5].rope), (vec![1e4, 1e6], Some(0), Some(1)));
    // What the file with images leaves out is as in the library's defaults.
    let images =
        spec(json!({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}}));
    let heads = images.blocks[0].heads;
    assert_eq!((heads.heads, heads.kv_heads, heads.k_dim, images.vocab), (8, 4, 256, 262_208));
    assert_eq!((images.max_positions, images.ropes[0].scaling.clone()), (131_072, RopeScaling::None));
    assert_eq!(images.ropes[1].scaling, RopeScaling::Linear { factor: 8.0 });
    let distil =
        spec(json!({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "dim": 768,
        "hidden_dim": 3072, "n_heads": 12, "n_layers": 6, "max_position_embeddings": 512, "vocab_size": 30522,
        "activation": "gelu"}));
    assert!(
        distil.head.is_tied() && distil.embed.token_types.is_none() && distil.placement == Placement::Post
    );
    let roberta =
        spec(json!({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "hidden_size": 768,
        "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 1,
        "max_position_embeddings": 514, "pad_token_id": 1, "layer_norm_eps": 1e-5, "vocab_size": 50265}));
    assert_eq!(roberta.embed.positions, Some(LearnedPositions { rows: 514, offset: 2 }));
    let clip = spec(json!({"model_type": "clip", "projection_dim": 512, "text_config": {"eos_token_id": 2},
        "vision_config": {"patch_size": 16}}));
    assert_eq!((clip.hidden, clip.max_positions, clip.pooled_cols()), (512, 77, 512));
    assert_eq!(clip.pooler.map(|p| p.from), Some(PoolSource::LargestToken));
}

/// A stretched rotation that cannot be read is refused: without it a model writes wrong texts.
#[test]
fn a_stretching_is_read_or_refused() {
    let with =
        |scaling: Value| Case::load("llama").set("rope_parameters", Value::Null).set("rope_scaling", scaling);
    for value in [json!([{"rope_type": "linear", "factor": 8}]), json!("linear"), json!(5), json!(true)] {
        let e = with(value).error();
        assert!(e.contains("`rope_scaling` is") && e.contains("an object, or null"), "{e}");
    }
    let e = Case::load("llama").set("rope_parameters", json!("linear")).error();
    assert!(e.contains("`rope_parameters` is"), "{e}");
    let e = with(json!({"factor": 8})).error();
    assert!(e.contains("`rope_type` is missing") && e.contains("(8)"), "{e}");
    for kind in ["linear", "yarn", "llama3"] {
        let e = with(json!({"rope_type": kind})).error();
        assert!(e.contains("rope_scaling.factor") && e.contains("is missing") && e.contains(kind), "{e}");
    }
    let whole = json!({
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 32
    });
    for field in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
        let mut scaling = whole.clone();
        scaling.as_object_mut().unwrap().remove(field);
        let e = with(scaling).error();
        assert!(e.contains(field) && e.contains("is missing") && e.contains("llama3"), "{e}");
    }
    for read in
        [whole, json!({}), Value::Null, json!({"factor": 1}), json!({"rope_type": "linear", "factor": 8})]
    {
        let stretched = read["factor"] == 8;
        let rope = with(read).spec().unwrap().ropes[0].clone();
        assert_eq!(rope.scaling != RopeScaling::None, stretched, "{rope:?}");
    }
}
