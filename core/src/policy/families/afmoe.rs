//! Arcee's AFMoE (Trinity): blocks with four norms, whose heads' values pass a gate, windows in three of four
//! blocks, which alone are rotated, and DeepSeek 3's experts without groups.

use super::deepseek;
use super::llama::llama_as;
use crate::params::Act;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, with_window};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;

const NAMES: Names<'_> = Names {
    slots: &[
        (Slot::AttnGate, "self_attn.gate_proj"),
        (Slot::AttnPostNorm, "post_attention_layernorm"),
        (Slot::MlpNorm, "pre_mlp_layernorm"),
        (Slot::MlpPostNorm, "post_mlp_layernorm"),
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_experts.gate_proj + mlp.shared_experts.up_proj"),
        (Slot::Down, "mlp.down_proj ; mlp.shared_experts.down_proj"),
        (Slot::Router, "mlp.router.gate"),
        (Slot::ChoiceBias, "=mlp.expert_bias"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj ; =mlp.experts.gate_up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj ; =mlp.experts.down_proj"),
    ],
    ..deepseek::NAMES
};

/// `model_type` afmoe.
pub const AFMOE: Described = Described::new(&["afmoe"], NAMES, afmoe);

fn afmoe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_window(config, 1024)?;
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 16_384, ..LLAMA_LIKE })?;
    let every = config.size_opt(&["global_attn_every_n_layers"])?.unwrap_or(4);
    spec.slide(config, |i| (i + 1) % every != 0)?;
    spec.each(|_, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        (b.attn_post, b.mlp_post) = (b.attn_norm, b.mlp_norm);
        b.attn_gate = Some(HeadGate::new(Act::Sigmoid, false));
        b.rope = b.rope.filter(|_| b.scores.window.is_some());
    });
    if config.flag(&["mup_enabled"], false)? {
        spec.embed.scale = Some((spec.hidden as f64).sqrt() as f32);
    }
    let shared = shared_columns(config, 0)?;
    routed(config, &mut spec, Routing { groups: None, shared, dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
