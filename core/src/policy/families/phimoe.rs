//! Phi-3.5-MoE: LLaMA's blocks with LayerNorms, biases of the attention, and experts that are chosen one
//! after the other.

use super::llama::{IGNORED, NAMES, llama_as};
use super::mixtral::EXPERTS;
use crate::params::NormKind;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf};
use crate::policy::moe::{BY_LOGIT, Routing, routed};
use crate::policy::*;

/// `model_type` phimoe.
pub const PHIMOE: Described = Described::new(
    &["phimoe"],
    Names { slots: &EXPERTS, base: NAMES.slots, ignored: IGNORED, ..NAMES },
    phimoe,
);

fn phimoe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let config = &with_one_factor(config)?;
    let defaults =
        Switches { norm: NormKind::Layer, eps: 1e-5, positions: 131_072, even: true, ..LLAMA_LIKE };
    let mut spec = llama_as(config, catalog, defaults)?;
    spec.slide(config, |_| true)?;
    if let HeadSpec::Tokens { bias, .. } = &mut spec.head {
        *bias = config.flag(&["lm_head_bias"], false)?;
    }
    let noise = config.number(&["router_jitter_noise"], 0.01)?;
    let near = 2.0 * noise as f32;
    if !(near >= 0.0 && near.is_finite()) {
        return Err(Error::config("router_jitter_noise", noise, "a number from 0 on"));
    }
    routed(config, &mut spec, Routing { near: Some(near), ..BY_LOGIT })?;
    Ok(spec)
}

/// LongRoPE with factors of cos and sin named for short and for long prompts, as one for both.
fn with_one_factor(config: &ModelConfig) -> Result<ModelConfig> {
    for object in ["rope_scaling", "rope_parameters"] {
        let of = |key: &str| config.get(&format!("{object}.{key}")).and_then(|v| v.as_f64());
        match (of("short_mscale"), of("long_mscale")) {
            (Some(short), Some(long)) if short == long => {
                return Ok(config.with(&format!("{object}.attention_factor"), short));
            }
            (None, None) => {}
            (short, long) => {
                let got = format!("{short:?} and {long:?}");
                let fields = format!("{object}.short_mscale, long_mscale");
                return Err(Error::config(fields, got, "the same number twice"));
            }
        }
    }
    Ok(config.clone())
}
