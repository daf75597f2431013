//! OLMo 1: LLaMA's blocks whose LayerNorms have neither weights nor biases; OLMoE: LLaMA's blocks with
//! experts and norms of all heads at once. Queries, keys and values of both may be held within limits.

use super::llama::{NAMES, llama_as, pairs};
use crate::params::NormKind;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_LOGIT, routed};
use crate::policy::*;

/// `model_type` olmo.
pub const OLMO: Described = Described::new(&["olmo"], NAMES, olmo).layout(pairs);

const EXPERT_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Router, "mlp.gate"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj ; =mlp.experts.gate_up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj ; =mlp.experts.down_proj"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` olmoe.
pub const OLMOE: Described = Described::new(&["olmoe"], EXPERT_NAMES, olmoe);

fn olmo(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    // The configuration names no epsilon.
    let defaults = Switches { norm: NormKind::Layer, eps: 1e-5, ..LLAMA_LIKE };
    let mut spec = llama_as(config, catalog, defaults)?;
    let bare = |norm: Option<NormSpec>| norm.map(|norm| NormSpec { bias: false, weighted: false, ..norm });
    spec.each(|_, b| (b.attn_norm, b.mlp_norm) = (bare(b.attn_norm), bare(b.mlp_norm)));
    spec.final_norm = bare(spec.final_norm);
    spec.limit_heads(config, "clip_qkv")?;
    Ok(spec)
}

fn olmoe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 4096, ..LLAMA_LIKE })?;
    spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Whole)));
    spec.limit_heads(config, "clip_qkv")?;
    routed(config, &mut spec, BY_LOGIT)?;
    Ok(spec)
}
