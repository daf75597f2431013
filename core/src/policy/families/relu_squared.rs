//! Arcee and Nemotron: LLaMA's blocks with a plain feed-forward part whose activation is the square of a
//! ReLU; Nemotron's with LayerNorms stored minus one and a rotation of half of every head.

use super::llama::{NAMES, llama_as, pairs};
use crate::params::{Act, NormKind};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::*;

const PLAIN_NAMES: Names<'_> = Names { slots: &[(Slot::Up, "mlp.up_proj")], base: NAMES.slots, ..NAMES };

/// No gate.
const PLAIN: Switches = Switches { act: Act::ReluSquared, gated: false, eps: 1e-5, ..LLAMA_LIKE };

/// `model_type` arcee.
pub const ARCEE: Described = Described::new(&["arcee"], PLAIN_NAMES, arcee).layout(pairs);

/// `model_type` nemotron.
pub const NEMOTRON: Described = Described::new(&["nemotron"], PLAIN_NAMES, nemotron);

fn arcee(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    llama_as(config, catalog, Switches { positions: 4096, ..PLAIN })
}

fn nemotron(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let defaults = Switches { norm: NormKind::Layer, positions: 4096, ..PLAIN };
    let mut spec = llama_as(config, catalog, defaults)?;
    // GGUF's converter has added the one.
    let plus_one = !config.is_gguf();
    let minus_one = |norm: Option<NormSpec>| norm.map(|norm| NormSpec { plus_one, ..norm });
    spec.each(|_, b| (b.attn_norm, b.mlp_norm) = (minus_one(b.attn_norm), minus_one(b.mlp_norm)));
    spec.final_norm = minus_one(spec.final_norm);
    spec.rotate_part(config, catalog, RopeStyle::Half, 0.5)?;
    Ok(spec)
}
