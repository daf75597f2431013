//! DeepSeek 3's experts in other blocks: the names that many families share, and dots.llm1, which has them in
//! Qwen 3's blocks.

use super::llama;
use crate::policy::describe::{Described, LLAMA_LIKE, refuse_gguf};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;

/// Dense and sparse blocks, experts that all tokens share, and the bias of the choice in any of its places.
pub(super) const NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_experts.gate_proj + mlp.shared_experts.up_proj"),
        (Slot::Down, "mlp.down_proj ; mlp.shared_experts.down_proj"),
        (Slot::Router, "mlp.gate"),
        (
            Slot::ChoiceBias,
            "=mlp.gate.e_score_correction_bias, =mlp.e_score_correction_bias, \
             =mlp.moe_statics.e_score_correction_bias",
        ),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj"),
    ],
    base: llama::NAMES.slots,
    ..llama::NAMES
};

/// `model_type` dots1.
pub const DOTS1: Described = Described::new(&["dots1"], NAMES, dots1);

fn dots1(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let mut spec = llama::llama_as(config, catalog, LLAMA_LIKE)?;
    spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    let plain = config.index(&["max_window_layers"], 62)?;
    spec.slide(config, |i| i >= plain)?;
    let shared = shared_columns(config, 0)?;
    routed(config, &mut spec, Routing { renormalise: false, shared, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
