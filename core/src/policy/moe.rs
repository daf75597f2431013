//! Experts in the feed-forward part: what the families that have them share.
//!
//! `num_experts` (or `num_local_experts`) experts, `num_experts_per_tok` of them per token, weights
//! renormalised as
//! `norm_topk_prob` says; blocks in `mlp_only_layers`, and those that `decoder_sparse_step` leaves out, stay
//! dense.

use super::*;
use crate::params::{Router, RouterScore};

/// Gives the sparse blocks their experts: `shared` columns of a dense part next to them, joined by `join`.
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
