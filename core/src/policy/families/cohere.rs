//! Command R (`cohere`) and Command R7B, A and Aya (`cohere2`): one LayerNorm without bias before attention
//! and a gated feed-forward part side by side, neighbours rotated, logits scaled, the token table as head.
//! The younger one has a window in three of four blocks, and rotates only these.

use super::llama::NAMES;
use crate::params::NormKind;
use crate::policy::describe::{
    Described, LLAMA_LIKE, Switches, decoder, refuse_gguf, with_theta, with_window,
};
use crate::policy::*;

/// `model_type` cohere.
pub const COHERE: Described = Described::new(&["cohere"], NAMES, cohere);

/// `model_type` cohere2.
pub const COHERE2: Described = Described::new(&["cohere2"], NAMES, cohere2);

fn cohere(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let config = &with_theta(config, if config.model_type() == "cohere" { 500_000.0 } else { 10_000.0 });
    // One tensor for all heads, each of which has values of its own.
    refuse(config, "use_qk_norm")?;
    let switches = Switches {
        norm: NormKind::Layer,
        eps: 1e-5,
        placement: Placement::Parallel,
        tied: true,
        positions: 8192,
        ..LLAMA_LIKE
    };
    let mut spec = decoder(config, switches)?;
    let bias = config.flag(&["attention_bias"], false)?;
    let factor = config.positive(&["logit_scale"], 0.0625)? as f32;
    spec.each(|_, b| {
        b.attn_norm = b.attn_norm.map(|norm| NormSpec { bias: false, ..norm });
        b.mlp_norm = None;
        b.bias = [bias, bias, false, false];
    });
    spec.final_norm = spec.final_norm.map(|norm| NormSpec { bias: false, ..norm });
    if let HeadSpec::Tokens { scale, .. } = &mut spec.head {
        *scale = factor;
    }
    spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
    Ok(spec)
}

fn cohere2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_window(config, 4096)?;
    let mut spec = cohere(config, catalog)?;
    let every = config.size_opt(&["sliding_window_pattern"])?.unwrap_or(4);
    spec.slide(config, |i| (i + 1) % every != 0)?;
    spec.each(|_, b| b.rope = b.rope.filter(|_| b.scores.window.is_some()));
    Ok(spec)
}
