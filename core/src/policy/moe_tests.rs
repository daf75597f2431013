//! What families with experts read of their configurations.

use super::tests::Case;
use super::{Part, Role, RopeScaling, RowOrder, Slot};
use crate::params::{Clamp, ExpertGroups, GroupRank, Router, RouterScore};
use serde_json::{Value, json};

/// Columns of the dense part of every block, and whether it has experts.
fn blocks(case: Case) -> Vec<(usize, bool)> {
    let mut case = case;
    case.spec().unwrap().blocks.iter().map(|b| (b.mlp.inner, b.moe.is_some())).collect()
}

#[test]
fn every_way_to_say_which_blocks_are_sparse() {
    let (dense, sparse) = ((36, false), (16, true));
    let dots = || Case::load("dots1");
    assert_eq!(blocks(dots()), [dense, sparse, sparse]);
    assert_eq!(blocks(dots().set("first_k_dense_replace", json!(2))), [dense, dense, sparse]);
    assert_eq!(blocks(dots().set("first_k_dense_replace", json!(0))), [sparse; 3]);
    // A list goes before a number.
    let listed = dots().set("mlp_layer_types", json!(["sparse", "dense", "sparse"]));
    assert_eq!(blocks(listed), [sparse, dense, sparse]);
    assert_eq!(blocks(dots().set("mlp_only_layers", json!([2]))), [dense, sparse, dense]);
    let other = ("mlp_layer_types", [json!(["sparse"]), json!(["sparse", "dense", "moe"]), json!("sparse")]);
    for wrong in other.1 {
        let e = dots().set(other.0, wrong).error();
        assert!(e.contains("mlp_layer_types") && e.contains("3 times \"dense\" or \"sparse\""), "{e}");
    }
    let (dense, sparse) = ((40, false), (16, true));
    let ernie = || Case::load("ernie4_5_moe");
    assert_eq!(blocks(ernie()), [dense, sparse, sparse]);
    assert_eq!(blocks(ernie().set("moe_layer_end_index", json!(1))), [dense, sparse, dense]);
    assert_eq!(blocks(ernie().set("moe_layer_end_index", json!(-1))), [dense, sparse, sparse]);
    assert_eq!(blocks(ernie().set("moe_layer_interval", json!(2))), [dense, sparse, dense]);
    assert_eq!(blocks(ernie().set("moe_layer_start_index", Value::Null)), [dense, sparse, sparse]);
    assert!(ernie().set("moe_layer_end_index", json!(-2)).error().contains("moe_layer_end_index"));
}

fn router(case: Case) -> Router {
    let mut case = case;
    case.spec().unwrap().blocks.iter().find_map(|b| b.moe).unwrap().router
}

#[test]
fn groups_have_to_hold_what_is_chosen() {
    let of = |count: usize, chosen: usize| {
        Case::load("dots1").set("n_group", json!(count)).set("topk_group", json!(chosen))
    };
    assert_eq!(router(of(1, 1)).groups, None);
    let rank = GroupRank::BestTwo;
    assert_eq!(router(of(4, 2)).groups, Some(ExpertGroups { count: 4, chosen: 2, rank }));
    // 8 experts, two chosen.
    for (count, chosen, field) in [(3, 1, "n_group"), (8, 1, "topk_group"), (4, 5, "topk_group")] {
        let e = of(count, chosen).error();
        assert!(e.contains(&format!("`{field}`")), "{e}");
    }
    assert!(of(0, 1).error().contains("n_group"));
}

#[test]
fn scores_by_name() {
    let of = |word: &str| Case::load("glm4_moe").set("scoring_func", json!(word));
    assert_eq!(router(of("softmax")).score, RouterScore::Softmax);
    assert_eq!(router(of("sigmoid")).score, RouterScore::Sigmoid);
    let published = Case::load("dots1").set("scoring_func", json!("noaux_tc"));
    assert_eq!(router(published).score, RouterScore::Sigmoid);
    let e = of("sqrtsoftplus").error();
    assert!(e.contains("scoring_func") && e.contains("sqrtsoftplus"), "{e}");
}

/// Blocks that predict further tokens stand behind the model's own, or apart.
#[test]
fn blocks_that_draft_are_left_unread() {
    let with = |name: &str| Case::load("glm4_moe").add(name, &[24, 48]);
    with("model.layers.3.eh_proj.weight").resolve().unwrap();
    with("model.layers.3.mlp.experts.0.down_proj.weight").resolve().unwrap();
    with("mtp.layers.0.eh_proj.weight").resolve().unwrap();
    for left in ["model.layers.4.eh_proj.weight", "model.layers.2.eh_proj.weight", "other.weight"] {
        assert!(with(left).error().contains(left));
    }
    for name in ["model.mtp_block.0.mlp.up_proj.weight", "model.mtp_emb_norm.0.weight"] {
        Case::load("ernie4_5_moe").add(name, &[32]).resolve().unwrap();
    }
    let none = with("model.layers.3.eh_proj.weight").set("num_nextn_predict_layers", json!(0));
    assert!(none.error().contains("model.layers.3.eh_proj.weight"));
    let none = Case::load("glm4_moe").without("model.layers.1.mlp.gate.e_score_correction_bias");
    assert!(none.error().contains("choice_bias"));
}

#[test]
fn fields_as_published() {
    // Tencent's own: its fields have other names than transformers'.
    let mut hy = Case::load("hy_v3")
        .set("mlp_layer_types", Value::Null)
        .set("first_k_dense_replace", json!(1))
        .set("moe_intermediate_size", Value::Null)
        .set("expert_hidden_dim", json!(8))
        .set("route_norm", json!(true))
        .set("rope_parameters", Value::Null);
    let (spec, _) = hy.resolve().unwrap();
    assert_eq!((spec.blocks[1].moe.unwrap().inner, spec.ropes[0].theta), (8, 11_158_840.0));
    let router = |case: Case| router(case);
    assert_eq!(router(Case::load("hy_v3")).scale, 1.5);
    assert!(!router(Case::load("hy_v3").set("route_norm", json!(false))).renormalise);
    let softmax = Case::load("hy_v3").set("moe_router_use_sigmoid", json!(false));
    assert_eq!(router(softmax).score, RouterScore::Softmax);
    assert!(!router(Case::load("hy_v3").set("moe_router_enable_expert_bias", json!(false))).choice_bias);

    let hunyuan = |field: &str, value: Value| Case::load("hunyuan_v1_moe").set(field, value);
    assert_eq!(router(hunyuan("moe_topk", json!([2, 2]))).top_k, 2);
    assert!(hunyuan("moe_topk", json!([2, 1])).error().contains("the same number for every layer"));
    assert!(hunyuan("use_cla", json!(true)).error().contains("use_cla"));
    assert_eq!(blocks(hunyuan("num_shared_expert", json!([2, 2]))), [(32, true); 2]);

    let mut minimax = Case::load("minimax_m2")
        .set("partial_rotary_factor", Value::Null)
        .set("rotary_dim", json!(6))
        .set("rope_theta", Value::Null);
    let rope = minimax.spec().unwrap().ropes.remove(0);
    assert_eq!((rope.columns, rope.theta), (6, 5_000_000.0));
    assert!(Case::load("ernie4_5_moe").set("use_bias", json!(true)).error().contains("use_bias"));
    // Only blocks with a window rotate.
    let exaone = Case::load("exaone_moe").spec().unwrap();
    let rotated: Vec<bool> = exaone.blocks.iter().map(|b| b.rope.is_some()).collect();
    assert_eq!(rotated, [true, true, true, false]);
    let patterned = ["layer_types", "sliding_window_pattern", "sliding_window"]
        .into_iter()
        .fold(Case::load("exaone_moe"), |case, field| case.unset(field));
    let windows = |mut case: Case| -> Vec<Option<u32>> {
        case.spec().unwrap().blocks.iter().map(|b| b.scores.window).collect()
    };
    assert_eq!(windows(patterned), [Some(4096), Some(4096), Some(4096), None]);
    let none = Case::load("exaone_moe").set("sliding_window", Value::Null);
    assert_eq!(windows(none), [None; 4]);
}

#[test]
fn gpt_oss_has_defaults_of_its_own() {
    let unsaid =
        ["swiglu_alpha", "swiglu_limit", "layer_types", "attention_bias", "sliding_window", "rope_theta"];
    let mut case = unsaid.into_iter().fold(Case::load("gpt_oss"), |case, field| case.unset(field));
    let (spec, found) = case.resolve().unwrap();
    let block = &spec.blocks[0];
    assert_eq!(block.mlp.clamp, Some(Clamp { slope: 1.702, limit: 7.0, shift: 1.0 }));
    assert_eq!((block.bias, block.sinks, spec.ropes[0].theta), ([true, true, false, false], true, 150_000.0));
    assert_eq!(spec.blocks.iter().map(|b| b.scores.window).collect::<Vec<_>>(), [Some(128), None]);
    let moe = block.moe.unwrap();
    assert!(moe.bias && moe.router.bias && moe.router.renormalise);
    for one in found {
        let Role { slot, part, .. } = one.binding.role;
        let experts = matches!(slot, Slot::ExpertUp | Slot::ExpertDown);
        assert_eq!(one.binding.transposed, experts && part == Part::Weight, "{}", one.binding.role);
        let by_turns = one.binding.order == RowOrder::PairsInterleaved { heads: 6 };
        assert_eq!(by_turns, slot == Slot::ExpertUp, "{}", one.binding.role);
    }
    for limit in [0.0, 1e-50, 1e300] {
        assert!(Case::load("gpt_oss").set("swiglu_limit", json!(limit)).error().contains("swiglu_limit"));
    }
    let bare = Case::load("gpt_oss").unset("rope_scaling").spec().unwrap();
    let published = matches!(bare.ropes[0].scaling, RopeScaling::Yarn { factor: 32.0, truncate: false, .. });
    assert!(published, "{:?}", bare.ropes[0]);
    assert!(Case::load("gpt_oss").without("model.layers.1.self_attn.sinks").error().contains("sinks"));
}

#[test]
fn what_deepseek_leaves_unsaid() {
    let unsaid = ["n_group", "topk_group", "routed_scaling_factor"];
    let case = unsaid.into_iter().fold(Case::load("deepseek_v3"), |case, field| case.unset(field));
    let own = router(case);
    let groups = Some(ExpertGroups { count: 8, chosen: 4, rank: GroupRank::BestTwo });
    assert_eq!((own.scale, own.groups), (2.5, groups));
    let scale = |name: &str, field: &str| router(Case::load(name).unset(field)).scale;
    assert_eq!(scale("exaone_moe", "routed_scaling_factor"), 2.5);
    assert_eq!(scale("glm4_moe_lite", "routed_scaling_factor"), 1.8);
    assert_eq!(scale("hy_v3", "router_scaling_factor"), 2.826);
    // Without the two matmuls of queries; sizes that contradict the others; other ways to choose.
    let latent = Case::load("deepseek_v2").spec().unwrap().blocks[0].latent.unwrap();
    assert_eq!((latent.query_rank, latent.plain, latent.value), (None, 12, 12));
    for (name, field, value) in [
        ("deepseek_v3", "num_key_value_heads", json!(1)),
        ("deepseek_v3", "qk_head_dim", json!(24)),
        ("deepseek_v3", "head_dim", json!(12)),
        ("deepseek_v3", "topk_method", json!("greedy")),
        ("deepseek_v2", "topk_method", json!("noaux_tc")),
        ("deepseek_v2", "norm_topk_prob", json!(true)),
        ("deepseek_v3", "moe_layer_freq", json!(2)),
        ("hunyuan_v1_moe", "moe_layer_num_skipped", json!(1)),
    ] {
        let error = Case::load(name).set(field, value).error();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    // The rotation stretches scores on both sides, where the configuration says so.
    let stretched = Case::load("deepseek_v3").set(
        "rope_scaling",
        json!({"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 1.0,
               "original_max_position_embeddings": 64}),
    );
    let scale = |mut case: Case| case.spec().unwrap().blocks[0].scores.scale;
    let by = (0.1 * 8f64.ln() + 1.0).powi(2) as f32;
    assert!((scale(stretched) / scale(Case::load("deepseek_v3")) - by).abs() < 1e-6);
    assert!(!router(Case::load("hunyuan_v1_moe").set("moe_topk", json!(1))).renormalise);
}

#[test]
fn queries_grow_by_steps_of_positions() {
    let spec = Case::load("ministral3").spec().unwrap();
    let factors = spec.query_factors(usize::MAX).unwrap();
    assert_eq!((factors.len(), &factors[..4]), (spec.max_positions, &[1.0; 4][..]));
    let second = (1.0 + 0.3 * 2f64.ln()) as f32;
    assert_eq!(factors[4..8], [second; 4]);
    // A table is as long as sequences come, whatever number a configuration has.
    let endless = Case::load("ministral3").set("max_position_embeddings", json!(1u64 << 31)).spec().unwrap();
    assert_eq!(endless.query_factors(8).unwrap(), factors[..8]);
    let none = |beta: Value| {
        let mut case = Case::load("ministral3");
        let mut rope = case.get("rope_parameters");
        rope["llama_4_scaling_beta"] = beta;
        case = case.set("rope_parameters", rope);
        case.spec().unwrap().query_factors(usize::MAX)
    };
    assert!(none(Value::Null).is_none() && none(json!(0.3)).is_some());
}
