//! DeepSeek 2 and 3 with latent attention, in their blocks Kimi 2 and GLM 4.7 Flash, and DeepSeek 3's experts
//! in other blocks: the names that many families share, and dots.llm1, which has them in Qwen 3's blocks.

use super::llama;
use crate::params::GroupRank;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder};
use crate::policy::moe::{BY_BIASED_SIGMOID, BY_LOGIT, Routing, routed, shared_columns};
use crate::policy::*;

/// Dense and sparse blocks, experts that all tokens share, and the bias of the choice in any of its places.
pub(super) const EXPERTS: [(Slot, &str); 6] = [
    (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_experts.gate_proj + mlp.shared_experts.up_proj"),
    (Slot::Down, "mlp.down_proj ; mlp.shared_experts.down_proj"),
    (Slot::Router, "mlp.gate"),
    (
        Slot::ChoiceBias,
        "=mlp.gate.e_score_correction_bias, =mlp.e_score_correction_bias, \
         =mlp.moe_statics.e_score_correction_bias",
    ),
    (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj ; =mlp.experts.gate_up_proj"),
    (Slot::ExpertDown, "mlp.experts.{}.down_proj ; =mlp.experts.down_proj"),
];

/// Those names over LLaMA's.
pub(super) const NAMES: Names<'_> = Names { slots: &EXPERTS, base: llama::NAMES.slots, ..llama::NAMES };

/// The same with latent attention, whose last matrix makes keys and values, and an index of keys.
pub(super) const LATENT_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::QueryDown, "self_attn.q_a_proj"),
        (Slot::QueryDownNorm, "self_attn.q_a_layernorm"),
        (Slot::QueryUp, "self_attn.q_b_proj ; self_attn.q_proj"),
        (Slot::LatentDown, "self_attn.kv_a_proj_with_mqa"),
        (Slot::LatentNorm, "self_attn.kv_a_layernorm"),
        (Slot::KeyUp, "self_attn.kv_b_proj"),
        (Slot::ValueUp, "self_attn.kv_b_proj"),
        (Slot::IndexQuery, "self_attn.indexer.wq_b"),
        (Slot::IndexKey, "self_attn.indexer.wk"),
        (Slot::IndexKeyNorm, "self_attn.indexer.k_norm"),
        (Slot::IndexFactors, "self_attn.indexer.weights_proj"),
        EXPERTS[0],
        EXPERTS[1],
        EXPERTS[2],
        EXPERTS[3],
        EXPERTS[4],
        EXPERTS[5],
    ],
    base: llama::NAMES.slots,
    ..llama::NAMES
};

/// `model_type` deepseek_v2.
pub const DEEPSEEK_V2: Described = Described::new(&["deepseek_v2"], LATENT_NAMES, deepseek_v2);

/// `model_type` deepseek_v3 and kimi_k2, which has its blocks.
pub const DEEPSEEK_V3: Described = Described::new(&["deepseek_v3", "kimi_k2"], LATENT_NAMES, deepseek_v3);

/// `model_type` glm4_moe_lite.
pub const GLM4_MOE_LITE: Described = Described::new(&["glm4_moe_lite"], LATENT_NAMES, glm4_moe_lite);

/// `model_type` dots1.
pub const DOTS1: Described = Described::new(&["dots1"], NAMES, dots1);

fn dots1(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama::llama_as(config, catalog, LLAMA_LIKE)?;
    spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    let plain = config.index(&["max_window_layers"], 62)?;
    spec.slide(config, |i| i >= plain)?;
    let shared = shared_columns(config, 0)?;
    routed(config, &mut spec, Routing { renormalise: false, shared, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}

/// Latent attention in every block.
///
/// # Errors
/// `Config`, naming a field.
pub(super) fn latent(config: &ModelConfig, catalog: Catalog<'_>, defaults: Switches) -> Result<ModelSpec> {
    let mut spec = decoder(config, defaults)?;
    let size = |field| config.size(&[field]);
    let (rank, rotated, plain) =
        (size("kv_lora_rank")?, size("qk_rope_head_dim")?, size("qk_nope_head_dim")?);
    let (value, query_rank) = (size("v_head_dim")?, config.size_opt(&["q_lora_rank"])?);
    let (bias, mlp) = (config.flag(&["attention_bias"], false)?, config.flag(&["mlp_bias"], false)?);
    let heads = spec.blocks.first().map_or(0, |b| b.heads.heads);
    let apart = config.is_gguf() && catalog.find("blk.0.attn_k_b.weight").is_some();
    // What says the same in another way.
    for (field, allowed) in [
        ("num_key_value_heads", [heads; 2]),
        ("qk_head_dim", [plain + rotated; 2]),
        ("head_dim", [rotated, plain + rotated]),
    ] {
        if let Some(said) = config.size_opt(&[field])?.filter(|said| !allowed.contains(said)) {
            return Err(Error::config(field, said, format!("{}, as the other sizes say", allowed[0])));
        }
    }
    // Scores are stretched on both sides, as section 3.4 of YaRN's paper has it.
    let of_rope = |new, old, default| config.number(&[new, old], default);
    let factor = of_rope("rope_parameters.factor", "rope_scaling.factor", 1.0)?;
    let all = of_rope("rope_parameters.mscale_all_dim", "rope_scaling.mscale_all_dim", 0.0)?;
    let stretch = if factor > 1.0 { 0.1 * all * libm::log(factor) + 1.0 } else { 1.0 };
    let scale = stretch * stretch / ((plain + rotated) as f64).sqrt();
    spec.each(|_, b| {
        // The norms between matmuls have an epsilon of their own, which no configuration names.
        let norm = b.attn_norm.map(|norm| NormSpec { eps: 1e-6, ..norm });
        b.latent = norm.map(|norm| LatentSpec { query_rank, plain, value, norm, factor: None, apart });
        b.heads = Heads { kv_heads: 1, k_dim: rotated + rank, v_dim: rank, ..b.heads };
        b.scores.scale = scale as f32;
        b.bias = [bias, bias, mlp, mlp];
    });
    let style = match config.flag(&["rope_interleave"], true)? {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Half,
    };
    spec.rotate(config, catalog, style, Some(rotated))?;
    Ok(spec)
}

fn deepseek_v2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = latent(config, catalog, Switches { positions: 2048, ..LLAMA_LIKE })?;
    let groups = match config.text_opt(&["topk_method"])? {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => Some(GroupRank::Best),
        Some(other) => {
            let allowed = "\"greedy\" or \"group_limited_greedy\"";
            return Err(Error::config("topk_method", format!("\"{other}\""), allowed));
        }
    };
    let shared = shared_columns(config, 2)?;
    routed(config, &mut spec, Routing { groups, shared, ..BY_LOGIT })?;
    if spec.blocks.iter().filter_map(|b| b.moe).any(|moe| moe.router.renormalise && moe.router.scale != 1.0) {
        let allowed = "false, where weights have a factor";
        return Err(Error::config("norm_topk_prob", true, allowed));
    }
    Ok(spec)
}

/// Where a token's experts come from: the way of choosing that DeepSeek 3 names.
fn by_bias(config: &ModelConfig) -> Result<()> {
    match config.text_opt(&["topk_method"])? {
        None | Some("noaux_tc") => Ok(()),
        Some(other) => Err(Error::config("topk_method", format!("\"{other}\""), "\"noaux_tc\"")),
    }
}

/// Latent attention, and a choice of experts that DeepSeek 3's is.
///
/// # Errors
/// `Config`, naming a field.
pub(super) fn latent_by_bias(
    config: &ModelConfig,
    catalog: Catalog<'_>,
    defaults: Switches,
) -> Result<ModelSpec> {
    by_bias(config)?;
    latent(config, catalog, defaults)
}

fn deepseek_v3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = latent_by_bias(config, catalog, Switches { positions: 4096, ..LLAMA_LIKE })?;
    let (shared, in_groups) = (shared_columns(config, 1)?, [8, 4]);
    let own = Routing { shared, in_groups, scale: 2.5, dense: 3, ..BY_BIASED_SIGMOID };
    routed(config, &mut spec, own)?;
    Ok(spec)
}

fn glm4_moe_lite(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = latent_by_bias(config, catalog, Switches { eps: 1e-5, positions: 202_752, ..LLAMA_LIKE })?;
    let shared = shared_columns(config, 1)?;
    routed(config, &mut spec, Routing { shared, scale: 1.8, dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
