//! gpt-oss: LLaMA's blocks with a sink for every head, biases throughout, windows in every other block, and
//! experts whose gate and up are held within limits.

use super::llama::{NAMES, llama_as};
use crate::params::Clamp;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, with_window};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// `model_type` gpt_oss.
pub const GPT_OSS: Described = Described::new(
    &["gpt_oss"],
    Names {
        slots: &[
            (Slot::Sinks, "=self_attn.sinks"),
            (Slot::Router, "mlp.router"),
            (
                Slot::ExpertUp,
                "=mlp.experts.gate_up_proj!w, =mlp.experts.gate_up_proj_bias!b, mlp.experts.gate_up_proj!w",
            ),
            (
                Slot::ExpertDown,
                "=mlp.experts.down_proj!w, =mlp.experts.down_proj_bias!b, mlp.experts.down_proj!w",
            ),
        ],
        base: NAMES.slots,
        experts: ExpertLayout::ByTurns,
        ..NAMES
    },
    gpt_oss,
);

fn gpt_oss(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(&with_window(&stretched(config), 128)?, 150_000.0);
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE })?;
    spec.slide(config, |i| i % 2 == 0)?;
    routed(config, &mut spec, Routing { renormalise: true, ..BY_LOGIT })?;
    let bias = config.flag(&["attention_bias"], true)?;
    let number = |field, default| match config.positive(&[field], default)? as f32 {
        number if number.is_finite() && number >= f32::MIN_POSITIVE => Ok(number),
        other => Err(Error::config(field, other, "a number above 0 that f32 has")),
    };
    let (slope, limit) = (number("swiglu_alpha", 1.702)?, number("swiglu_limit", 7.0)?);
    let clamp = Clamp { slope, limit, shift: 1.0 };
    spec.each(|_, b| {
        b.sinks = true;
        b.bias = [bias, bias, false, false];
        b.mlp.clamp = Some(clamp);
        if let Some(moe) = &mut b.moe {
            (moe.bias, moe.router.bias) = (true, true);
        }
    });
    Ok(spec)
}

/// A configuration with the rotation and the width of heads that all published models have, where it names
/// none.
fn stretched(config: &ModelConfig) -> ModelConfig {
    let named = |field: &&str| config.fields().any(|(name, _)| name == field);
    let mut config = match ["rope_scaling", "rope_parameters"].iter().any(named) {
        true => config.clone(),
        false => config.with(
            "rope_scaling",
            serde_json::json!({
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096
            }),
        ),
    };
    if config.get("head_dim").is_none() {
        config = config.with("head_dim", 64);
    }
    config
}
