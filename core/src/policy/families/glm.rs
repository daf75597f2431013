//! GLM 4 as transformers has it (`glm`) and GLM 4-0414 (`glm4`): LLaMA's blocks with gate and up in one
//! matmul, which rotate neighbours in the first half of every head; the younger one norms what both parts
//! give, too. GLM 4.5 and later (`glm4_moe`) rotate halves, and have DeepSeek 3's experts.

use super::deepseek;
use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;

/// Four norms.
const GLM4_NAMES: Names<'_> = Names {
    slots: &[(Slot::AttnPostNorm, "post_self_attn_layernorm"), (Slot::MlpPostNorm, "post_mlp_layernorm")],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` glm.
pub const GLM: Described = Described::new(&["glm"], NAMES, glm);

/// `model_type` glm4.
pub const GLM4: Described = Described::new(&["glm4"], GLM4_NAMES, glm4);

/// `model_type` glm4_moe.
pub const GLM4_MOE: Described = Described::new(&["glm4_moe"], deepseek::NAMES, glm4_moe);

fn base(config: &ModelConfig, catalog: Catalog<'_>, style: RopeStyle, eps: f64) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps, positions: 131_072, ..LLAMA_LIKE })?;
    let bias = config.flag(&["attention_bias"], NAMES.has(config, catalog, Slot::Qkv, Part::Bias))?;
    spec.each(|_, b| b.bias = [bias, false, false, false]);
    spec.rotate_part(config, catalog, style, 0.5)?;
    Ok(spec)
}

fn glm(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    base(config, catalog, RopeStyle::Interleaved, 1.5625e-7)
}

fn glm4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = base(config, catalog, RopeStyle::Interleaved, 1.5625e-7)?;
    spec.each(|_, b| (b.attn_post, b.mlp_post) = (b.attn_norm, b.mlp_norm));
    Ok(spec)
}

fn glm4_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = base(config, catalog, RopeStyle::Half, 1e-5)?;
    if config.flag(&["use_qk_norm"], false)? {
        spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    }
    let shared = shared_columns(config, 1)?;
    routed(config, &mut spec, Routing { shared, dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
