//! MiMo-V2-Flash: LLaMA's blocks with narrower values times a factor, of which most see a window, have twice
//! as many key/value heads and sinks; a rotation for either kind of block, and DeepSeek 3's experts.

use super::deepseek;
use super::llama::llama_as;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, kv_heads, with_window};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed};
use crate::policy::*;
use serde_json::Value;

/// DeepSeek 3's names of experts, and sinks.
const SLOTS: [(Slot, &str); 7] = {
    let [up, down, router, bias, expert_up, expert_down] = deepseek::EXPERTS;
    let sinks = (Slot::Sinks, "=self_attn.attention_sink_bias, =self_attn.sinks");
    [sinks, up, down, router, bias, expert_up, expert_down]
};

const MIMO_NAMES: Names<'_> = Names { slots: &SLOTS, ..deepseek::NAMES };

/// `model_type` mimo_v2_flash.
pub const MIMO_V2_FLASH: Described = Described::new(&["mimo_v2_flash"], MIMO_NAMES, mimo);

/// Field of the rotation, its base and the part of a head that it turns where nothing is said.
const ROPES: [(&str, f64, f64); 2] = [
    ("rope_parameters.full_attention", 5_000_000.0, 0.334),
    ("rope_parameters.sliding_attention", 10_000.0, 0.334),
];

fn mimo(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let width = config.size_opt(&["head_dim"])?.unwrap_or(192);
    let values = config.size_opt(&["v_head_dim"])?.unwrap_or(128);
    let one_rope = config.with("rope_parameters", Value::Null).with("head_dim", width);
    let defaults = Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE };
    let mut spec = llama_as(&one_rope, catalog, defaults)?;
    spec.slide(&with_window(config, 128)?, |i| i > 0 && (i + 1) % 6 != 0)?;
    let heads = spec.blocks.first().map_or((1, 1), |b| (b.heads.heads, b.heads.kv_heads));
    let doubled = kv_heads(heads.0, heads.1.saturating_mul(2))?;
    let factor = match config.get("attention_value_scale") {
        Some(_) => Some(config.positive(&["attention_value_scale"], 1.0)?),
        // Named, and nothing: no factor.
        None if config.fields().any(|(name, _)| name == "attention_value_scale") => None,
        None => Some(0.707),
    };
    let bias = config.flag(&["attention_bias"], false)?;
    spec.each(|_, b| {
        let local = b.scores.window.is_some();
        (b.heads.v_dim, b.value_factor) = (values, factor.map(|factor| factor as f32));
        (b.sinks, b.rope) = (local, Some(local.into()));
        b.bias = [bias, false, false, false];
        if local {
            b.heads.kv_heads = doubled;
        }
    });
    spec.ropes = rope::for_layer_types(config, catalog, ROPES, width, spec.max_positions)?;
    routed(config, &mut spec, Routing { dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
