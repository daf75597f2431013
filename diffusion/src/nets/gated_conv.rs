//! The feed-forward part of Sana and of its autoencoder: a gate behind a depthwise convolution.

use crate::graph::{Builder, Picture};
use engraft_core::Result;
use engraft_core::params::Act;

/// `conv_point(u * silu(g))` of `[u | g] = conv_depth(silu(conv_inverted(x)))`.
pub(super) fn gated_conv(b: &mut Builder<'_>, x: Picture, p: &str) -> Result<Picture> {
    let wide = b.gate_first(x.value, &format!("{p}.conv_inverted"), Some(Act::Silu))?;
    let deep = b.grouped(Picture { value: wide, ..x }, &format!("{p}.conv_depth"), 3, true)?;
    let inner = b.gate(deep.value, Act::Silu);
    Ok(Picture { value: b.linear(inner, &format!("{p}.conv_point"), None)?, ..x })
}
