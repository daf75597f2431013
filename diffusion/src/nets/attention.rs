//! Attention among the pixels of a picture and to the tokens of a text.

use super::resnet::Resnet;
use crate::graph::{Builder, Picture, Value};
use engraft_core::Result;
use engraft_core::params::Act;

/// Variance floor of layer norms.
const LAYER_EPS: f32 = 1e-5;
/// That of the group norm in front of transformer blocks.
const GROUP_EPS: f32 = 1e-6;

/// Transformer blocks over a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transformer {
    /// Blocks.
    pub layers: usize,
    /// Heads of both kinds of attention.
    pub heads: usize,
    /// Groups of the norm in front.
    pub groups: usize,
    /// Whether the first attention of a block is to the text, too.
    pub only_cross: bool,
}

/// The names of queries, keys and values, in the spelling that is there.
fn projections(b: &Builder<'_>, p: &str) -> [String; 3] {
    let old = [("to_q", "query"), ("to_k", "key"), ("to_v", "value")];
    old.map(|(new, old)| b.tensors().first_of(&[&format!("{p}.{new}"), &format!("{p}.{old}")]))
}

/// Attention among the rows of `x`.
pub(super) fn own(b: &mut Builder<'_>, x: Value, heads: usize, p: &str) -> Result<Value> {
    let names = projections(b, p);
    let qkv = b.linears(x, &names, None)?;
    let mixed = b.attend(qkv, heads, p)?;
    let out = b.tensors().first_of(&[&format!("{p}.to_out.0"), &format!("{p}.proj_attn")]);
    b.linear(mixed, &out, None)
}

/// Attention of the rows of `x` to those of a text, so many heads, masked or not.
pub(super) fn cross(
    b: &mut Builder<'_>,
    x: Value,
    text: Value,
    heads: (usize, bool),
    p: &str,
) -> Result<Value> {
    let [query, key, value] = projections(b, p);
    let q = b.linear(x, &query, None)?;
    let kv = b.linears(text, &[key, value], None)?;
    let mixed = b.cross(q, kv, heads, p)?;
    b.linear(mixed, &format!("{p}.to_out.0"), None)
}

impl Transformer {
    /// `x + proj_out(blocks(proj_in(norm(x))))`.
    pub fn build(&self, b: &mut Builder<'_>, x: Picture, text: Value, p: &str) -> Result<Picture> {
        let normed = b.group_norm(x, &format!("{p}.norm"), (self.groups, GROUP_EPS), None)?;
        let mut h = b.linear(normed.value, &format!("{p}.proj_in"), None)?;
        for layer in 0..self.layers {
            h = self.block(b, h, text, &format!("{p}.transformer_blocks.{layer}"))?;
        }
        let name = format!("{p}.proj_out");
        let h = b.linear(h, &name, None)?;
        Ok(Picture { value: b.add(h, x.value, &name)?, ..x })
    }

    /// Attention among pixels, attention to the text, feed-forward, each behind a norm and added.
    fn block(&self, b: &mut Builder<'_>, mut h: Value, text: Value, p: &str) -> Result<Value> {
        let name = format!("{p}.attn1");
        let normed = b.norm(h, &format!("{p}.norm1"), LAYER_EPS)?;
        let mixed = match self.only_cross {
            // The reference masks the second one alone.
            true => cross(b, normed, text, (self.heads, false), &name)?,
            false => own(b, normed, self.heads, &name)?,
        };
        h = b.add(h, mixed, &name)?;
        let name = format!("{p}.attn2");
        let normed = b.norm(h, &format!("{p}.norm2"), LAYER_EPS)?;
        let mixed = cross(b, normed, text, (self.heads, true), &name)?;
        h = b.add(h, mixed, &name)?;
        let normed = b.norm(h, &format!("{p}.norm3"), LAYER_EPS)?;
        let inner = b.gated(normed, &format!("{p}.ff.net.0.proj"), Act::Gelu)?;
        let name = format!("{p}.ff.net.2");
        let out = b.linear(inner, &name, None)?;
        b.add(h, out, &name)
    }
}

/// Attention of one head among the pixels, as autoencoders have it: `x + out(attend(norm(x)))`.
pub(super) fn of_pixels(b: &mut Builder<'_>, x: Picture, resnet: &Resnet, p: &str) -> Result<Picture> {
    let normed = b.group_norm(x, &format!("{p}.group_norm"), (resnet.groups, resnet.eps), None)?;
    let mixed = own(b, normed.value, 1, p)?;
    let sum = b.add(mixed, x.value, p)?;
    Ok(Picture { value: b.scale(sum, 1.0 / resnet.divisor), ..x })
}
