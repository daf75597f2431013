//! Experts in the feed-forward part: what the families that have them share, and Mixtral.
//!
//! `num_experts` (or `num_local_experts`) experts, `num_experts_per_tok` of them per token, weights renormalised as
//! `norm_topk_prob` says; blocks in `mlp_only_layers`, and those that `decoder_sparse_step` leaves out, stay dense.

use super::describe::Described;
use super::llama::{IGNORED, NAMES, llama, pairs};
use super::*;
use crate::params::{Router, RouterScore};

/// Qwen's names: dense and routed blocks, shared experts.
pub(super) const MOE_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::TokenEmbed, "embed_tokens"),
        (Slot::AttnNorm, "input_layernorm"),
        (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
        (Slot::QNorm, "self_attn.q_norm"),
        (Slot::KNorm, "self_attn.k_norm"),
        (Slot::AttnOut, "self_attn.o_proj"),
        (Slot::MlpNorm, "post_attention_layernorm"),
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_expert.gate_proj + mlp.shared_expert.up_proj"),
        (Slot::Down, "mlp.down_proj ; mlp.shared_expert.down_proj"),
        (Slot::Router, "mlp.gate"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj"),
        (Slot::Join, "mlp.shared_expert_gate"),
        (Slot::FinalNorm, "norm"),
        (Slot::Head, "/lm_head"),
    ],
    ..NAMES
};

/// `model_type` mixtral.
pub const MIXTRAL: Described = Described {
    name: "mixtral",
    types: &["mixtral"],
    names: Names {
        slots: &[
            (Slot::TokenEmbed, "embed_tokens"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
            (Slot::AttnOut, "self_attn.o_proj"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Router, "block_sparse_moe.gate"),
            (Slot::ExpertUp, "block_sparse_moe.experts.{}.w1 + block_sparse_moe.experts.{}.w3"),
            (Slot::ExpertDown, "block_sparse_moe.experts.{}.w2"),
            (Slot::FinalNorm, "norm"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: IGNORED,
        ..NAMES
    },
    // In GGUF files it is an architecture of LLaMA's.
    layout: pairs,
    spec: mixtral,
};

fn mixtral(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama(config, catalog)?;
    spec.slide(config, |_| true)?;
    routed(config, &mut spec, RouterScore::Softmax, true, 0, Join::Add)?;
    Ok(spec)
}

/// Gives the sparse blocks their experts: `shared` columns of a dense part beside them, joined by `join`.
pub(super) fn routed(
    config: &ModelConfig,
    spec: &mut ModelSpec,
    score: RouterScore,
    renormalise: bool,
    shared: usize,
    join: Join,
) -> Result<()> {
    let experts = config.size(&["num_experts", "num_local_experts", "n_routed_experts"])?;
    let top_k = config.size(&["num_experts_per_tok", "moe_topk"])?;
    check_experts(experts, spec.blocks.len())?;
    let most = experts.min(Router::MAX_TOP_K);
    if top_k > most {
        return Err(Error::config("num_experts_per_tok", top_k, format!("at most {most}")));
    }
    let renormalise = config.flag(&["norm_topk_prob"], renormalise)?;
    let inner = config.size(&["moe_intermediate_size", "intermediate_size"])?;
    let scale = config.positive(&["routed_scaling_factor"], 1.0)? as f32;
    let step = config.size_opt(&["decoder_sparse_step"])?.unwrap_or(1);
    let dense: Vec<u32> = config.ids("mlp_only_layers");
    let router = Router { experts, top_k, score, renormalise, scale, bias: false };
    spec.each(|i, b| {
        if (i + 1) % step == 0 && !dense.contains(&(i as u32)) {
            b.mlp.inner = shared;
            b.moe = Some(MoeSpec { router, inner, bias: false, join });
        }
    });
    Ok(())
}
