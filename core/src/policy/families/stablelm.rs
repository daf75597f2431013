//! StableLM: LLaMA's blocks with LayerNorm and partial rotation. StarCoder 2: the same with a plain
//! feed-forward part, biases and a window.

use super::llama::NAMES;
use crate::params::NormKind;
use crate::policy::describe::{Described, GPT_LIKE, LLAMA_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` stablelm.
pub const STABLELM: Described = Described::new(&["stablelm"], STABLELM_NAMES, stablelm);

/// In the largest model every query and key head has a norm with values of its own.
const STABLELM_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::QNorm, "self_attn.q_layernorm.norms.{}"),
        (Slot::KNorm, "self_attn.k_layernorm.norms.{}"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` starcoder2.
pub const STARCODER2: Described = Described::new(
    &["starcoder2"],
    Names { slots: &[(Slot::Up, "mlp.c_fc"), (Slot::Down, "mlp.c_proj")], base: NAMES.slots, ..NAMES },
    starcoder2,
);

fn stablelm(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let parallel = config.flag(&["use_parallel_residual"], false)?;
    let placement = if parallel { Placement::Parallel } else { Placement::Pre };
    let switches = Switches { norm: NormKind::Layer, eps: 1e-5, placement, positions: 4096, ..LLAMA_LIKE };
    let mut spec = decoder(config, switches)?;
    let bias = config.flag(&["use_qkv_bias"], false)?;
    let own_norms = config.flag(&["qk_layernorm"], false)?;
    let heads = spec.blocks.first().map_or(0, |b| b.heads.heads);
    if own_norms && heads * spec.blocks.len() > MAX_HEADS {
        // Every head of every block has a name of its own.
        let allowed = format!("at most {} with norms of their own", MAX_HEADS / spec.blocks.len());
        return Err(Error::config("num_attention_heads", heads, allowed));
    }
    spec.each(|_, b| {
        b.bias[0] = bias;
        let norm = b.attn_norm.filter(|_| own_norms).map(|norm| NormSpec { bias: false, ..norm });
        b.qk_norm = norm.map(|norm| QkNorm::new(norm, QkSpan::OwnHead));
        b.mlp_norm = b.mlp_norm.filter(|_| !parallel);
    });
    spec.rotate_part(config, catalog, RopeStyle::Half, 0.25)?;
    Ok(spec)
}

fn starcoder2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, Switches { positions: 4096, ..GPT_LIKE })?;
    let bias = config.flag(&["use_bias"], true)?;
    spec.each(|_, b| b.bias = [bias; 4]);
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    spec.slide(config, |_| true)?;
    Ok(spec)
}
