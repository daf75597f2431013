//! OLMo 1: LLaMA's blocks whose LayerNorms have neither weights nor biases.

use super::llama::{NAMES, llama_as};
use crate::params::NormKind;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf};
use crate::policy::*;

/// `model_type` olmo.
pub const OLMO: Described = Described::new(&["olmo"], NAMES, olmo);

fn olmo(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    // Limits of queries, keys and values, in the first 7B alone.
    if let Some(limit) = config.get("clip_qkv") {
        return Err(Error::config("clip_qkv", limit, "null"));
    }
    // The configuration names no epsilon.
    let defaults = Switches { norm: NormKind::Layer, eps: 1e-5, ..LLAMA_LIKE };
    let mut spec = llama_as(config, catalog, defaults)?;
    let bare = |norm: Option<NormSpec>| norm.map(|norm| NormSpec { bias: false, weighted: false, ..norm });
    spec.each(|_, b| (b.attn_norm, b.mlp_norm) = (bare(b.attn_norm), bare(b.mlp_norm)));
    spec.final_norm = bare(spec.final_norm);
    Ok(spec)
}
