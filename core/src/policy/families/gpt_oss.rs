//! gpt-oss: LLaMA's blocks with a sink for every head, biases throughout, windows in every other block, and
//! experts whose gate and up are held within limits.

use super::llama::{NAMES, llama_as};
use crate::params::Clamp;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf, with_theta, with_window};
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
    refuse_gguf(config)?;
    let config = &with_theta(&with_window(config, 128)?, 150_000.0);
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 131_072, ..LLAMA_LIKE })?;
    spec.slide(config, |i| i % 2 == 0)?;
    routed(config, &mut spec, Routing { renormalise: true, ..BY_LOGIT })?;
    let bias = config.flag(&["attention_bias"], true)?;
    let clamp = Clamp {
        slope: config.positive(&["swiglu_alpha"], 1.702)? as f32,
        limit: config.positive(&["swiglu_limit"], 7.0)? as f32,
        shift: 1.0,
    };
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
