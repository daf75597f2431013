//! What families with a word of their own read of their configurations, beyond what their fixtures say.

use super::tests::Case;
use super::{
    BlockSpec, Disentangled, HeadGate, HeadSpec, Join, Placement, Project, QkSpan, RelativeTable, RopeScaling,
};
use crate::params::{Act, NormKind, RopeStyle, RouterScore};
use serde_json::{Value, json};

#[test]
fn apertus_has_xielu_unless_another_activation_is_named() {
    let mlp = |mut case: Case| case.spec().unwrap().blocks[0].mlp;
    assert!(mlp(Case::load("apertus")).xielu && !mlp(Case::load("apertus")).gated);
    assert!(mlp(Case::load("apertus").set("hidden_act", Value::Null)).xielu);
    let plain = mlp(Case::load("apertus").set("hidden_act", json!("relu2")));
    assert!(!plain.xielu && plain.act == Act::ReluSquared);
    assert!(Case::load("apertus").set("hidden_act", json!("elu")).error().contains("hidden_act"));
}

#[test]
fn limits_of_heads_are_numbers_above_0() {
    let limit = |mut case: Case| case.spec().unwrap().blocks[0].qkv_limit;
    assert_eq!(limit(Case::load("olmoe")), Some(1.2));
    assert_eq!(limit(Case::load("olmoe").set("clip_qkv", Value::Null)), None);
    assert_eq!(limit(Case::load("olmo").set("clip_qkv", json!(8))), Some(8.0));
    assert_eq!(limit(Case::load("mpt").set("attn_config", json!({"clip_qkv": 6.0}))), Some(6.0));
    for wrong in [json!(0), json!(-1.0), json!("much"), json!(1e300)] {
        assert!(Case::load("olmoe").set("clip_qkv", wrong).error().contains("clip_qkv"));
    }
}

#[test]
fn command_a_plus_has_a_mean_and_a_prefix_of_its_own() {
    let of = |mut case: Case| case.spec().unwrap();
    let listed = of(Case::load("cohere2_moe"));
    assert_eq!(listed.blocks[1].moe.unwrap().join, Join::Mean);
    assert_eq!((listed.blocks[0].mlp.inner, listed.blocks[1].mlp.inner), (40, 24));
    let sum = Case::load("cohere2_moe").set("shared_expert_combination_strategy", json!("sum"));
    assert_eq!(of(sum).blocks[1].moe.unwrap().join, Join::Add);
    let other = Case::load("cohere2_moe").set("shared_expert_combination_strategy", json!("product"));
    assert!(other.error().contains("shared_expert_combination_strategy"));
    // Without lists: a dense block that sees all and turns, then three with windows and one without.
    let counted =
        Case::load("cohere2_moe").set("layer_types", Value::Null).set("mlp_layer_types", Value::Null);
    let counted = of(counted.set("first_k_dense_replace", json!(1)));
    let seen: Vec<_> = counted.blocks.iter().map(|b| (b.scores.window, b.rope.is_some())).collect();
    assert_eq!(seen, [(None, true), (Some(6), true), (Some(6), true), (Some(6), true)]);
    assert!(counted.blocks[0].moe.is_none() && counted.blocks[1].moe.is_some());
    // A softmax of the chosen adds up to 1 whatever else is said, sigmoids do as told.
    let router = |name: &str| {
        let case = Case::load("cohere2_moe").set("norm_topk_prob", json!(false));
        of(case.set("expert_selection_fn", json!(name))).blocks[1].moe.unwrap().router
    };
    assert!(router("softmax").renormalise && !router("sigmoid").renormalise);
    assert_eq!(router("sigmoid").score, RouterScore::Sigmoid);
    let rms = of(Case::load("cohere2_moe").set("rms_norm_eps", json!(1e-6)));
    assert_eq!(rms.final_norm.map(|norm| (norm.kind, norm.eps)), Some((NormKind::Rms, 1e-6)));
}

#[test]
fn phi_moe_is_near_within_twice_the_noise() {
    let router = |mut case: Case| case.spec().unwrap().blocks[0].moe.unwrap().router;
    assert_eq!(router(Case::load("phimoe")).near, Some(0.2));
    assert_eq!(router(Case::load("phimoe").set("router_jitter_noise", Value::Null)).near, Some(0.02));
    let wrong = Case::load("phimoe").set("router_jitter_noise", json!(-0.1));
    assert!(wrong.error().contains("router_jitter_noise"));
    let factors = |short: f64, long: f64| {
        Case::load("phimoe").set(
            "rope_scaling",
            json!({"type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0],
                "long_factor": [2.0, 2.0, 2.0, 2.0], "short_mscale": short, "long_mscale": long}),
        )
    };
    assert!(factors(1.2, 1.2).spec().is_ok());
    assert!(factors(1.2, 1.3).error().contains("short_mscale"));
}

#[test]
fn internlm_ends_where_its_rotation_would_be_stretched() {
    let of = |mut case: Case| case.spec().unwrap();
    for (name, factor) in [("internlm2", 2), ("internlm3", 6)] {
        let spec = of(Case::load(name));
        assert_eq!((spec.max_positions, &spec.ropes[0].scaling), (64, &RopeScaling::None));
        let end = format!(
            "sequences end at 64 positions, where the rotation would be stretched (dynamic, {factor})"
        );
        assert_eq!(spec.assumed, [end]);
    }
    let with = |scaling: Value| Case::load("internlm2").set("rope_scaling", scaling);
    let linear = of(with(json!({"type": "linear", "factor": 2.0})));
    assert_eq!(linear.ropes[0].scaling, RopeScaling::Linear { factor: 2.0 });
    assert!(linear.assumed.is_empty() && of(with(Value::Null)).assumed.is_empty());
    let newer = Case::load("internlm3")
        .set("rope_scaling", Value::Null)
        .set("rope_parameters", json!({"rope_type": "dynamic", "factor": 6.0, "rope_theta": 500.0}));
    assert_eq!(of(newer.set("rope_theta", Value::Null)).ropes[0].theta, 500.0);
    let less = with(json!({"type": "dynamic", "factor": 0.5})).error();
    assert!(less.contains("`rope factor` is 0.5"), "{less}");
    let earlier = json!({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32});
    let earlier = with(earlier).error();
    assert!(earlier.contains("`original_max_position_embeddings` is 32"), "{earlier}");
    // Families whose sequences may go on refuse it.
    let dynamic = Case::load("llama").set("rope_scaling", json!({"type": "dynamic", "factor": 2.0})).error();
    assert!(dynamic.contains("`rope_type` is \"dynamic\""), "{dynamic}");
}

#[test]
fn laguna_has_heads_and_gates_of_each_block() {
    let of = |mut case: Case| case.spec().unwrap();
    let spec = of(Case::load("laguna"));
    assert_eq!(spec.blocks.iter().map(|b| b.heads.heads).collect::<Vec<_>>(), [4, 6, 6]);
    assert_eq!(spec.ropes.iter().map(|r| (r.theta, r.columns)).collect::<Vec<_>>(), [(5e5, 4), (2500.0, 8)]);
    assert_eq!(spec.blocks[0].attn_gate, Some(HeadGate::new(Act::Softplus, true)));
    let values = of(Case::load("laguna").set("gating", json!("per-element")));
    assert_eq!(values.blocks[0].attn_gate, Some(HeadGate::new(Act::Softplus, false)));
    for (field, wrong) in [
        ("gating", json!(false)),
        ("num_attention_heads_per_layer", json!([4, 6])),
        ("num_attention_heads_per_layer", json!([4, 6, 0])),
        ("moe_router_logit_softcapping", json!(30.0)),
        ("moe_apply_router_weight_on_input", json!(true)),
    ] {
        assert!(Case::load("laguna").set(field, wrong).error().contains(field), "{field}");
    }
    let odd = Case::load("laguna").set("num_attention_heads_per_layer", json!([4, 5, 6]));
    assert!(odd.error().contains("num_key_value_heads"));
}

#[test]
fn llama_4_goes_by_lists_or_by_numbers() {
    let of = |mut case: Case| case.spec().unwrap();
    let listed = of(Case::load("llama4_text"));
    let plain = Case::load("llama4_text").set("layer_types", Value::Null).set("moe_layers", Value::Null);
    assert_eq!(of(plain.set("no_rope_layers", json!([]))), listed);
    let chunks = |b: &super::BlockSpec| (b.scores.chunk, b.rope.is_some(), b.query_growth.is_some());
    assert_eq!(chunks(&listed.blocks[0]), (Some(7), true, false));
    assert_eq!(chunks(&listed.blocks[3]), (None, false, true));
    assert!(listed.blocks[1].moe.unwrap().input_weighted);
    // Positions count from 1: the fifth has another factor.
    let factors = listed.query_factors(usize::MAX).unwrap();
    assert_eq!(factors[3..5], [1.0, (1.0 + 0.1 * 2f64.ln()) as f32]);
    let normed = of(Case::load("llama4_text").set("use_qk_norm", json!(true)));
    let norm = normed.blocks[0].qk_norm.unwrap();
    assert!(norm.after_rope && !norm.norm.weighted && norm.span == QkSpan::Head);
    assert!(normed.blocks[3].qk_norm.is_none());
    let off = of(Case::load("llama4_text").set("attn_temperature_tuning", json!(0)));
    assert!(off.blocks[3].query_growth.is_none());
    for (field, wrong) in [
        ("attention_chunk_size", json!(0)),
        ("moe_layers", json!([9])),
        ("no_rope_layers", json!([1])),
        ("layer_types", json!(["full_attention"])),
        ("attn_temperature_tuning", json!("yes")),
    ] {
        assert!(Case::load("llama4_text").set(field, wrong).error().contains(field), "{field}");
    }
}

#[test]
fn gemma_4_has_two_kinds_of_heads_and_reads_earlier_keys() {
    let of = |mut case: Case| case.spec().unwrap();
    let spec = of(Case::load("gemma4"));
    assert_eq!(spec.blocks.iter().map(|b| b.heads.k_dim).collect::<Vec<_>>(), [8, 16, 8, 16]);
    assert_eq!(spec.blocks.iter().map(|b| b.kv_from).collect::<Vec<_>>(), [None, None, Some(0), Some(1)]);
    assert_eq!(spec.blocks.iter().map(|b| b.mlp.inner).collect::<Vec<_>>(), [40, 40, 80, 80]);
    assert_eq!(spec.ropes.iter().map(|r| (r.theta, r.columns)).collect::<Vec<_>>(), [(1e4, 8), (2500.0, 16)]);
    assert_eq!(spec.ropes[1].scaling, RopeScaling::Proportional { pairs: 2, factor: 1.0 });
    assert_eq!(spec.embed.layers.map(|layers| (layers.rows, layers.width)), Some((53, 12)));
    assert!(spec.blocks.iter().all(|b| b.end_factor && b.input.is_some() && b.scores.scale == 1.0));
    let plain = of(Case::load("gemma4").set("use_double_wide_mlp", json!(false)));
    assert!(plain.blocks.iter().all(|b| b.mlp.inner == 40));
    for (field, wrong) in [
        ("num_kv_shared_layers", json!(4)),
        ("num_kv_shared_layers", json!(3)),
        ("vocab_size_per_layer_input", json!(52)),
        ("use_bidirectional_attention", json!("all")),
    ] {
        assert!(Case::load("gemma4").set(field, wrong).error().contains(field), "{field}");
    }

    let sparse = of(Case::load("gemma4_moe"));
    let heads: Vec<_> = sparse.blocks.iter().map(|b| (b.heads.kv_heads, b.keys_are_values)).collect();
    assert_eq!(heads, [(2, false), (2, false), (2, false), (1, true)]);
    let moe = sparse.blocks[0].moe.unwrap();
    assert_eq!((moe.router.experts, moe.router.top_k, moe.inner), (4, 2, 8));
    assert_eq!(moe.apart.map(|apart| apart.scale), Some(32f32.powf(-0.5)));
    assert!(moe.factors && moe.router.renormalise);
    assert!(Case::load("gemma4_moe").set("top_k_experts", json!(5)).error().contains("top_k_experts"));
    let apart = Case::load("gemma4_moe").set("attention_k_eq_v", json!(false));
    assert!(apart.error().contains("v_proj"), "values have a matmul of their own, then");
}

#[test]
fn mimo_has_twice_as_many_keys_in_blocks_with_a_window() {
    let of = |mut case: Case| case.spec().unwrap();
    let spec = of(Case::load("mimo_v2_flash"));
    let heads = |b: &super::BlockSpec| (b.heads.kv_heads, b.heads.k_dim, b.heads.v_dim, b.sinks, b.rope);
    assert_eq!(heads(&spec.blocks[0]), (2, 16, 12, false, Some(0)));
    assert_eq!(heads(&spec.blocks[1]), (4, 16, 12, true, Some(1)));
    let factor = |case: Case| of(case).blocks[0].value_factor;
    assert_eq!(factor(Case::load("mimo_v2_flash")), Some(0.707));
    assert_eq!(factor(Case::load("mimo_v2_flash").unset("attention_value_scale")), Some(0.707));
    assert_eq!(factor(Case::load("mimo_v2_flash").set("attention_value_scale", Value::Null)), None);
    let odd = Case::load("mimo_v2_flash").set("num_key_value_heads", json!(4));
    assert!(odd.error().contains("num_key_value_heads"));
}

/// As it is published: the text part below files with images and sound, and tensors of blocks that read
/// another's keys, which nothing reads.
#[test]
fn gemma_4_is_found_in_files_with_images() {
    let text: Value = serde_json::from_str(include_str!("fixtures/gemma4.json")).unwrap();
    let mut case = Case::load("gemma4")
        .renamed(|name| name.replace("model.", "model.language_model."))
        .add("model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight", &[8, 8])
        .add("model.embed_vision.embedding_projection.weight", &[32, 8])
        .add("model.audio_tower.output_proj.weight", &[8, 8])
        .add("model.language_model.layers.3.self_attn.k_proj.weight", &[32, 32])
        .add("model.language_model.layers.3.self_attn.k_norm.weight", &[16])
        .set("text_config", text)
        .set("architectures", json!(["Gemma4ForConditionalGeneration"]))
        .set("model_type", json!("gemma4"))
        .set("hidden_size", Value::Null)
        .set("num_hidden_layers", Value::Null);
    let plain = Case::load("gemma4").spec().unwrap();
    let spec = case.resolve().unwrap().0;
    assert!(
        spec.assumed.iter().any(|said| said.contains("the text part of gemma4 alone")),
        "{:?}",
        spec.assumed
    );
    assert_eq!(super::ModelSpec { assumed: Vec::new(), ..spec }, plain);
}

#[test]
fn gemma_3n_has_several_residual_streams() {
    let of = |mut case: Case| case.spec().unwrap();
    let spec = of(Case::load("gemma3n"));
    let altup = spec.altup().unwrap();
    assert_eq!((altup.inputs, altup.active, altup.clip, altup.scaled), (3, 0, Some(120.0), true));
    assert_eq!((spec.state_columns(), spec.blocks[3].laurel.map(|laurel| laurel.rank)), (96, Some(4)));
    assert_eq!(spec.blocks.iter().map(|b| b.kv_from).collect::<Vec<_>>(), [None, None, Some(0), Some(1)]);
    assert!(spec.blocks.iter().all(|b| b.mlp.cutoff.is_none() && b.input.is_some()));
    assert!(spec.assumed.is_empty());
    let sparse = Case::load("gemma3n").set("activation_sparsity_pattern", json!([0.95, 0.5, 0.0, 0]));
    let cutoffs: Vec<_> = of(sparse).blocks.iter().map(|b| b.mlp.cutoff).collect();
    let near = |cutoff: Option<f32>, want: f32| (cutoff.unwrap() - want).abs() < 3e-7;
    assert!(near(cutoffs[0], 1.644_853_6) && near(cutoffs[1], 0.0), "{cutoffs:?}");
    assert_eq!(cutoffs[2..], [None, None]);
    // Without a list the first ten blocks of a model with more.
    let bare = |layers: usize| {
        let case = Case::load("gemma3n").set("activation_sparsity_pattern", Value::Null);
        let case = case.set("num_hidden_layers", json!(layers)).set("layer_types", Value::Null);
        of(case.set("intermediate_size", json!(36)))
    };
    let sparse = |spec: &super::ModelSpec| spec.blocks.iter().filter(|b| b.mlp.cutoff.is_some()).count();
    assert_eq!((sparse(&bare(12)), sparse(&bare(10))), (10, 0));
    assert_eq!(bare(12).blocks.iter().filter(|b| b.scores.window.is_none()).count(), 2);
    let short = of(Case::load("gemma3n").set("vocab_size_per_layer_input", json!(70)));
    assert!(short.assumed.iter().any(|one| one.contains("tokens 70 to 70")), "{:?}", short.assumed);
    for (field, wrong) in [
        ("altup_num_inputs", json!(1)),
        ("altup_active_idx", json!(3)),
        ("altup_coef_clip", json!(-1.0)),
        ("activation_sparsity_pattern", json!([0.5])),
        ("activation_sparsity_pattern", json!([1.0, 0.0, 0.0, 0.0])),
        ("activation_sparsity_pattern", json!(0.5)),
        ("intermediate_size", json!([36, 36])),
        ("num_kv_shared_layers", json!(4)),
    ] {
        let error = Case::load("gemma3n").set(field, wrong.clone()).error();
        assert!(error.contains(field), "{field} {wrong}: {error}");
    }
}

/// As it is published: the text part below files with images and sound, and tensors of blocks that read
/// another's keys, which nothing reads.
#[test]
fn gemma_3n_is_found_in_files_with_images() {
    let text: Value = serde_json::from_str(include_str!("fixtures/gemma3n.json")).unwrap();
    let mut case = Case::load("gemma3n")
        .renamed(|name| name.replace("model.", "model.language_model."))
        .add("model.vision_tower.timm_model.conv_stem.conv.weight", &[8, 8])
        .add("model.embed_vision.embedding_projection.weight", &[32, 8])
        .add("model.audio_tower.conformer.0.norm.weight", &[8])
        .add("model.embed_audio.embedding.weight", &[8, 8])
        .add("model.language_model.layers.3.self_attn.k_proj.weight", &[8, 32])
        .set("text_config", text)
        .set("architectures", json!(["Gemma3nForConditionalGeneration"]))
        .set("model_type", json!("gemma3n"))
        .set("hidden_size", Value::Null)
        .set("num_hidden_layers", Value::Null);
    let plain = Case::load("gemma3n").spec().unwrap();
    let spec = case.resolve().unwrap().0;
    assert!(
        spec.assumed.iter().any(|said| said.contains("the text part of gemma3n alone")),
        "{:?}",
        spec.assumed
    );
    assert_eq!(super::ModelSpec { assumed: Vec::new(), ..spec }, plain);
}

/// DeepSeek 3.2 and GLM 5 differ in how the index rotates and in which blocks have one.
#[test]
fn an_index_chooses_keys() {
    let of = |mut case: Case| case.spec().unwrap();
    let (deepseek, glm) = (of(Case::load("deepseek_v32")), of(Case::load("glm_moe_dsa")));
    let index = |spec: &super::ModelSpec, i: usize| spec.blocks[i].index.unwrap();
    let sizes = |index: super::IndexSpec| (index.heads, index.width, index.count, index.shared);
    for i in 0..3 {
        assert_eq!(sizes(index(&deepseek, i)), (14, 8, 4, false));
        assert_eq!(sizes(index(&glm, i)), (14, 8, 4, i == 2));
    }
    let style = |spec: &super::ModelSpec| spec.ropes[index(spec, 0).rope].style;
    assert_eq!((style(&deepseek), style(&glm)), (RopeStyle::Half, RopeStyle::Interleaved));
    assert_eq!((deepseek.ropes.len(), glm.ropes.len()), (2, 1));
    // Of a configuration that lists nothing: a pattern of letters, or every so many.
    let bare = || Case::load("glm_moe_dsa").set("indexer_types", Value::Null);
    let shared = |case: Case| of(case).blocks.iter().map(|b| b.index.unwrap().shared).collect::<Vec<_>>();
    assert_eq!(shared(bare().set("index_topk_pattern", json!("FSS"))), [false, true, true]);
    let every = bare().set("index_topk_freq", json!(2)).set("index_skip_topk_offset", json!(1));
    assert_eq!(shared(every), [false, true, false]);
    for (field, bad) in [
        ("indexer_types", json!(["shared", "full", "full"])),
        ("indexer_types", json!(["full", "odd", "full"])),
        ("index_topk_pattern", json!("FS")),
        ("index_head_dim", json!(2)),
        ("index_head_dim", json!(9)),
        ("q_lora_rank", Value::Null),
        ("layer_types", json!(["indexed_attention", "full_attention", "indexed_attention"])),
    ] {
        let error = bare().set(field, bad.clone()).error();
        assert!(error.contains(field), "{field} {bad}: {error}");
    }
}

/// Two blocks a layer, of which the first has experts; the last of these have no weights.
#[test]
fn longcat_has_experts_without_weights_in_every_other_block() {
    let of = |mut case: Case| case.spec().unwrap();
    let longcat = || Case::load("longcat_flash");
    let spec = of(longcat());
    let sparse: Vec<_> = spec.blocks.iter().map(|b| (b.mlp.inner, b.moe.is_some())).collect();
    assert_eq!(sparse, [(36, true), (36, false), (36, true), (36, false)]);
    let moe = spec.blocks[0].moe.unwrap();
    assert_eq!((moe.router.experts, moe.identities, moe.with_weights(), moe.inner), (6, 2, 4, 8));
    assert_eq!((moe.join, moe.router.top_k, moe.router.scale), (Join::NextBlock, 3, 2.0));
    assert!(moe.router.choice_bias && !moe.router.renormalise);
    assert_eq!(moe.router.score, RouterScore::Softmax);
    // The root of 32 / 16 on queries, of 32 / 24 on the row that is kept.
    let scale = |spec: &super::ModelSpec| spec.blocks[3].scores.scale;
    let factor = |spec: &super::ModelSpec| spec.blocks[3].latent.unwrap().factor;
    assert!((scale(&spec) - 0.25 * 2f32.sqrt()).abs() < 1e-7);
    assert_eq!(factor(&spec), Some((32f64 / 24.0).sqrt() as f32));
    let plain = longcat().set("mla_scale_q_lora", json!(false)).set("mla_scale_kv_lora", json!(false));
    let plain = of(plain);
    assert_eq!((scale(&plain), factor(&plain)), (0.25, None));
    assert_eq!(of(longcat().set("rope_parameters", Value::Null)).ropes[0].theta, 1e7);
    // Matrices of experts without weights may be there or not; those of others may not be left over.
    let mut bare = longcat();
    bare.tensors.retain(|t| !t.name.contains("experts.4.") && !t.name.contains("experts.5."));
    bare.resolve().unwrap();
    let more = longcat().add("model.layers.0.mlp.experts.6.up_proj.weight", &[8, 32]);
    assert!(more.error().contains("experts.6.up_proj"));
    longcat().add("model.mtp.layers.0.eh_proj.weight", &[32, 64]).resolve().unwrap();
    // An expert with a matrix that leads back has weights: their number is wrong.
    let back = longcat().add("model.layers.0.mlp.experts.4.down_proj.weight", &[32, 8]);
    assert!(back.error().contains("experts.4.down_proj"));
    let fewer = longcat().set("n_routed_experts", json!(3)).set("zero_expert_num", json!(3));
    assert!(fewer.error().contains("experts.3.down_proj"));
    for said in [json!(4), json!(56), Value::Null] {
        longcat().set("num_hidden_layers", said).resolve().unwrap();
    }
    // As it is published: without a type.
    let by_class = longcat().set("model_type", Value::Null);
    assert_eq!(of(by_class).blocks.len(), 4);
    assert!(longcat().set("zero_expert_num", Value::Null).error().contains("mlp.router"));
    for (field, wrong) in [
        ("zero_expert_num", json!(1021)),
        ("zero_expert_num", json!(-1)),
        ("zero_expert_type", json!("copy")),
        ("attention_method", json!("MHA")),
        ("router_bias", json!(true)),
        ("moe_topk", json!(7)),
        ("num_key_value_heads", json!(2)),
        ("ffn_hidden_size", Value::Null),
    ] {
        assert!(longcat().set(field, wrong.clone()).error().contains(field), "{field} {wrong}");
    }
    // One more of them is a router of another shape.
    assert!(longcat().set("zero_expert_num", json!(3)).error().contains("mlp.router"));
}

#[test]
fn deberta_has_score_terms_of_distances() {
    let spec = Case::load("deberta_v3_base").spec().unwrap();
    let table = spec.embed.relative.unwrap();
    assert_eq!((table.reach, table.most, table.norm.is_some()), (256, Some(512), true));
    let both = Disentangled::new(true, true);
    for (layer, block) in spec.blocks.iter().enumerate() {
        assert_eq!((block.disentangled, block.conv), (Some(both), None), "{layer}");
        assert_eq!(block.scores.scale, (1.0 / 192f64.sqrt()) as f32, "{layer}: of three terms");
    }
    assert!(spec.embed.positions.is_none() && spec.embed.token_types.is_none());
    assert_eq!((spec.head, spec.placement), (HeadSpec::None, Placement::Post));
    let one = |term: &str| {
        let block =
            Case::load("deberta_v3").set("pos_att_type", json!([term])).spec().unwrap().blocks.remove(0);
        (block.disentangled.unwrap(), block.scores.scale)
    };
    let root = (1.0 / 32f64.sqrt()) as f32;
    assert_eq!(one("c2p"), (Disentangled::new(true, false), root));
    assert_eq!(one("P2C"), (Disentangled::new(false, true), root));
    let plain =
        Case::load("deberta_v3").set("position_buckets", json!(-1)).set("norm_rel_ebd", json!("none"));
    let plain = plain.set("max_relative_positions", json!(6)).without("deberta.encoder.LayerNorm.weight");
    let spec = plain.without("deberta.encoder.LayerNorm.bias").resolve().unwrap().0;
    assert_eq!(spec.embed.relative, Some(RelativeTable::new(6)));
}

#[test]
fn the_second_deberta_has_a_convolution_next_to_its_first_block() {
    let spec = Case::load("deberta_v2_conv").spec().unwrap();
    let conv = |layer: usize| spec.blocks[layer].conv.map(|conv| (conv.kernel, conv.act));
    assert_eq!((conv(0), conv(1)), (Some((3, Act::Gelu)), None));
    let pooler = spec.pooler.unwrap();
    assert_eq!((pooler.act, pooler.dense), (Some(Act::Gelu), Some((32, true))));
    // The class's default.
    let spec = Case::load("deberta_v2_conv").unset("conv_act").spec().unwrap();
    assert_eq!(spec.blocks[0].conv.unwrap().act, Act::Tanh);
}

#[test]
fn what_deberta_cannot_have_is_refused_by_name() {
    for (field, value) in [
        ("relative_attention", json!(false)),
        ("share_att_key", json!(false)),
        ("pos_att_type", json!("c2p|p2p")),
        ("pos_att_type", json!([])),
        ("pos_att_type", json!([3])),
        ("norm_rel_ebd", json!("batch_norm")),
        ("position_buckets", json!(2)),
        ("position_buckets", json!(1 << 20)),
        ("position_buckets", json!("six")),
        ("max_relative_positions", json!(4)),
        ("pooler_hidden_size", json!(16)),
        ("attention_head_size", json!(64)),
        ("conv_kernel_size", json!(4)),
        ("conv_act", json!("softmax")),
        ("conv_groups", json!(2)),
        ("is_decoder", json!(true)),
    ] {
        let error = Case::load("deberta_v2_conv").set(field, value.clone()).error();
        // A reach that buckets do not fit in is said to be theirs.
        let named = if field == "max_relative_positions" { "position_buckets" } else { field };
        assert!(error.contains(named), "{field} = {value}: {error}");
    }
    let narrow = Case::load("deberta_v3").set("embedding_size", json!(16));
    let error = narrow.set("position_biased_input", json!(true)).error();
    assert!(error.contains("embedding_size"), "{error}");
    let error = Case::load("deberta_v3").set("model_type", json!("deberta")).error();
    assert!(error.contains("matmuls of distances of their own"), "{error}");
}

#[test]
fn a_narrow_table_of_deberta_is_projected_before_the_norm() {
    let mut case = Case::load("deberta_v3").set("embedding_size", json!(16));
    for tensor in &mut case.tensors {
        match tensor.name.as_str() {
            "deberta.embeddings.word_embeddings.weight" => tensor.shape = vec![61, 16],
            "cls.predictions.transform.dense.weight" => tensor.shape = vec![16, 32],
            name if name.starts_with("cls.predictions.transform.") => tensor.shape = vec![16],
            _ => {}
        }
    }
    let mut case = case.add("deberta.embeddings.embed_proj.weight", &[32, 16]);
    let (spec, _) = case.resolve().unwrap();
    assert_eq!((spec.embed.width, spec.embed.project), (16, Project::Tokens));
    assert_eq!(spec.head.transform().map(|transform| transform.width), Some(16));
}

/// A folder says which activation its gates take, in one field or in two that agree.
#[test]
fn gates_of_t5_take_the_activation_that_the_folder_says() {
    let case = || Case::load("t5").set("feed_forward_proj", json!("gated-silu"));
    for mut case in [case().set("dense_act_fn", json!("silu")), case().set("dense_act_fn", Value::Null)] {
        let (spec, found) = case.resolve().unwrap();
        let stacks = spec.stacks();
        assert_eq!((stacks.len(), found.len()), (2, spec.roles().len()));
        let blocks: Vec<&BlockSpec> = stacks.into_iter().flat_map(|stack| &stack.blocks).collect();
        assert!(!blocks.is_empty() && blocks.iter().all(|b| b.mlp.gated && b.mlp.act == Act::Silu));
    }
    let text = case().set("dense_act_fn", json!("gelu_new")).error();
    assert!(text.contains("gated-silu") && text.contains("gelu_new"), "{text}");
}
