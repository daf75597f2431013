//! HunYuan 1, dense: LLaMA's blocks whose query and key heads are normed after they are rotated.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf};
use crate::policy::*;

const HUNYUAN_NAMES: Names<'_> = Names {
    slots: &[(Slot::QNorm, "self_attn.query_layernorm"), (Slot::KNorm, "self_attn.key_layernorm")],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` hunyuan_v1_dense.
pub const HUNYUAN: Described = Described::new(&["hunyuan_v1_dense"], HUNYUAN_NAMES, hunyuan);

fn hunyuan(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let defaults = Switches { eps: 1e-5, ..LLAMA_LIKE };
    let mut spec = llama_as(&with_base(config)?, catalog, defaults)?;
    spec.each(|_, b| {
        let norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.qk_norm = norm.map(|norm| QkNorm { after_rope: true, ..norm });
    });
    Ok(spec)
}

/// The rotation that it calls dynamic, with an `alpha`, has a base of its own and is not stretched:
/// `theta * alpha^(d / (d - 2))` for heads of d columns.
fn with_base(config: &ModelConfig) -> Result<ModelConfig> {
    let Some(object) =
        ["rope_parameters", "rope_scaling"].into_iter().find(|name| config.get(name).is_some())
    else {
        return Ok(config.clone());
    };
    let own = config.section(object)?;
    let Some(alpha) = own.number_opt(&["alpha"])? else { return Ok(config.clone()) };
    if !matches!(own.text_opt(&["rope_type", "type"])?, Some("dynamic")) || alpha <= 0.0 {
        return Err(Error::config("rope alpha", alpha, "above 0, with rope_type \"dynamic\""));
    }
    let width = match config.size_opt(&["head_dim"])? {
        Some(width) => width,
        None => config.size(&["hidden_size"])? / config.size(&["num_attention_heads"])?.max(1),
    };
    if width <= 2 {
        return Err(Error::config("head_dim", width, "above 2, for a base by alpha"));
    }
    let theta = config.positive(&["rope_parameters.rope_theta", "rope_theta"], 10_000.0)?;
    let base = theta * alpha.powf(width as f64 / (width - 2) as f64);
    Ok(config.with(object, serde_json::Value::Null).with("rope_theta", base))
}
