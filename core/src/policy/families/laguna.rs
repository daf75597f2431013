//! Laguna: LLaMA's blocks with norms of every head, gates of what the heads give, as many query heads as each
//! block has for itself, a rotation for either kind of block, and DeepSeek 3's experts without groups.

use super::deepseek;
use super::llama::llama_as;
use crate::params::Act;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, kv_heads, with_window};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed};
use crate::policy::*;
use serde_json::Value;

const NAMES: Names<'_> = Names {
    slots: &[
        (Slot::AttnGate, "self_attn.g_proj"),
        (Slot::QNorm, "self_attn.q_norm"),
        (Slot::KNorm, "self_attn.k_norm"),
        (
            Slot::Up,
            "mlp.gate_proj + mlp.up_proj ; mlp.shared_expert.gate_proj + mlp.shared_expert.up_proj \
             ; mlp.shared_experts.gate_proj + mlp.shared_experts.up_proj",
        ),
        (Slot::Down, "mlp.down_proj ; mlp.shared_expert.down_proj ; mlp.shared_experts.down_proj"),
        (Slot::Router, "mlp.gate"),
        (Slot::ChoiceBias, "=mlp.experts.e_score_correction_bias, =mlp.gate.e_score_correction_bias"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj ; =mlp.experts.gate_up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj ; =mlp.experts.down_proj"),
    ],
    ..deepseek::NAMES
};

/// `model_type` laguna.
pub const LAGUNA: Described = Described::new(&["laguna"], NAMES, laguna);

/// Field of the rotation, its base and the part of a head that it turns where nothing is said.
const ROPES: [(&str, f64, f64); 2] = [
    ("rope_parameters.full_attention", 500_000.0, 0.5),
    ("rope_parameters.sliding_attention", 10_000.0, 1.0),
];

fn laguna(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse(config, "moe_apply_router_weight_on_input")?;
    if let Some(cap) = config.number_opt(&["moe_router_logit_softcapping"])?.filter(|cap| *cap > 0.0) {
        return Err(Error::config("moe_router_logit_softcapping", cap, "0"));
    }
    let defaults = Switches { positions: 131_072, ..LLAMA_LIKE };
    let mut spec = llama_as(&config.with("rope_parameters", Value::Null), catalog, defaults)?;
    spec.slide(&with_window(config, 512)?, |_| false)?;
    let gate = HeadGate::new(Act::Softplus, gates_heads(config)?);
    let heads = heads_per_layer(config, &spec)?;
    spec.each(|i, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.attn_gate = Some(gate);
        b.heads.heads = heads[i];
        b.rope = Some(b.scores.window.is_some().into());
    });
    let width = spec.blocks.first().map_or(0, |b| b.heads.k_dim);
    spec.ropes = rope::for_layer_types(config, catalog, ROPES, width, spec.max_positions)?;
    let shared = config.size_opt(&["shared_expert_intermediate_size"])?.unwrap_or(512);
    routed(config, &mut spec, Routing { groups: None, shared, dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}

/// Whether a gate is that of a whole head.
fn gates_heads(config: &ModelConfig) -> Result<bool> {
    match config.get("gating") {
        None | Some(Value::Bool(true)) => Ok(true),
        Some(Value::String(word)) if word == "per-head" => Ok(true),
        Some(Value::String(word)) if word == "per-element" => Ok(false),
        Some(other) => Err(Error::config("gating", other, "true, \"per-head\" or \"per-element\"")),
    }
}

/// Query heads of every block.
fn heads_per_layer(config: &ModelConfig, spec: &ModelSpec) -> Result<Vec<usize>> {
    let all = spec.blocks.iter().map(|b| b.heads);
    let Some(list) = config.get("num_attention_heads_per_layer") else {
        return Ok(all.map(|heads| heads.heads).collect());
    };
    let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let numbers: Option<Vec<usize>> = list.as_array().and_then(|l| l.iter().map(number).collect());
    let numbers = numbers.filter(|numbers| numbers.len() == spec.blocks.len()).ok_or_else(|| {
        let allowed = format!("{} numbers above 0", spec.blocks.len());
        Error::config("num_attention_heads_per_layer", list, allowed)
    })?;
    for (heads, of) in numbers.iter().zip(all) {
        check_heads(&["num_attention_heads_per_layer"], *heads)?;
        kv_heads(*heads, of.kv_heads)?;
    }
    Ok(numbers)
}
