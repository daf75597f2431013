//! Qwen 2, 2.5 and 3, dense and with experts: LLaMA's blocks with biases on q, k and v (2) or norms over
//! query and key heads (3).
//!
//! Windows are there but off unless `use_sliding_window`, and then only from `max_window_layers` on.

use super::llama::{NAMES, llama};
use crate::policy::describe::Described;
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// Qwen's names: dense and routed blocks, shared experts.
const MOE_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_expert.gate_proj + mlp.shared_expert.up_proj"),
        (Slot::Down, "mlp.down_proj ; mlp.shared_expert.down_proj"),
        (Slot::Router, "mlp.gate"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj"),
        (Slot::Join, "mlp.shared_expert_gate"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` qwen2, and the text parts of Qwen 2 VL and 2.5 VL, which are its.
pub const QWEN2: Described = Described::new(&["qwen2", "qwen2_vl_text", "qwen2_5_vl_text"], NAMES, qwen2);

/// `model_type` qwen3, and the text part of Qwen 3 VL, which is its.
pub const QWEN3: Described = Described::new(&["qwen3", "qwen3_vl_text"], NAMES, qwen3);

/// `model_type` qwen2_moe.
pub const QWEN2_MOE: Described = Described::new(&["qwen2_moe"], MOE_NAMES, qwen2_moe);

/// `model_type` qwen3_moe.
pub const QWEN3_MOE: Described = Described::new(&["qwen3_moe"], MOE_NAMES, qwen3_moe);

fn windows(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    if !config.flag(&["use_sliding_window"], false)? {
        return Ok(());
    }
    // Zero is a valid number of layers without a window.
    let plain = config.index(&["max_window_layers"], 28)?;
    spec.slide(config, |i| i >= plain)
}

fn qwen2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama(config, catalog)?;
    let bias = config.flag(&["qkv_bias"], true)?;
    spec.each(|_, b| b.bias = [bias, false, false, false]);
    windows(config, &mut spec)?;
    Ok(spec)
}

fn qwen3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama(config, catalog)?;
    spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    windows(config, &mut spec)?;
    Ok(spec)
}

fn qwen2_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = qwen2(config, catalog)?;
    let shared = config.size(&["shared_expert_intermediate_size"])?;
    routed(config, &mut spec, Routing { shared, join: Join::Gated, ..BY_LOGIT })?;
    Ok(spec)
}

fn qwen3_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = qwen3(config, catalog)?;
    routed(config, &mut spec, BY_LOGIT)?;
    Ok(spec)
}
