//! Blocks of two convolutions around a sum (arXiv 1512.03385), with the time in between, and what changes the
//! size of pictures.

use crate::graph::{Builder, Grid, Modulation, Picture, Stride, Value};
use engraft_core::Result;
use engraft_core::params::Act;

/// Sizes that an autoencoder's pictures have on their way: with more, a few latents would be a picture larger
/// than memory.
pub(super) const MOST_LEVELS: usize = 8;

/// What the norms and sums of a block's resnets are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resnet {
    /// Groups of norms.
    pub groups: usize,
    /// Added to variances.
    pub eps: f32,
    /// The activation.
    pub act: Act,
    /// Divides the sum.
    pub divisor: f32,
    /// Whether the time scales and shifts what the second norm gives, instead of being added in front of it.
    pub by_time: bool,
}

impl Resnet {
    /// `(x + conv2(act(norm2(conv1(act(norm1(x))) + time)))) / divisor`, x by a convolution where channels
    /// change; `time` is `act(time embedding)` `[items, dim]`. By the time: `norm2(h) * (1 + scale) + shift`
    /// of `[scale | shift]`, in front of the activation.
    pub fn build(&self, b: &mut Builder<'_>, x: Picture, time: Option<Value>, p: &str) -> Result<Picture> {
        let norm = (self.groups, self.eps);
        let h = b.group_norm(x, &format!("{p}.norm1"), norm, Some(self.act))?;
        let mut h = b.same(h, &format!("{p}.conv1"), 3)?;
        let (name, norm2) = (format!("{p}.time_emb_proj"), format!("{p}.norm2"));
        let row = time.map(|time| b.linear(time, &name, None)).transpose()?;
        let h = match row {
            Some(row) if self.by_time => {
                let mut h = b.group_norm(h, &norm2, norm, None)?;
                let by = Modulation { scale: 0, shift: Some(b.cols(h.value)), plus_one: true };
                crate::config::columns(&name, b.cols(row), 2 * b.cols(h.value))?;
                h.value = b.modulate(h.value, row, by, &name)?;
                Picture { value: b.activate(h.value, self.act), ..h }
            }
            Some(row) => {
                h.value = b.add_per_item(h.value, row, &name)?;
                b.group_norm(h, &norm2, norm, Some(self.act))?
            }
            None => b.group_norm(h, &norm2, norm, Some(self.act))?,
        };
        let conv2 = format!("{p}.conv2");
        let h = b.same(h, &conv2, 3)?;
        let shortcut = format!("{p}.conv_shortcut");
        let x = match b.tensors().has(&format!("{shortcut}.weight")) {
            true => b.same(x, &shortcut, 1)?,
            false => x,
        };
        let sum = b.add(h.value, x.value, &conv2)?;
        Ok(Picture { value: b.scale(sum, 1.0 / self.divisor), ..h })
    }
}

/// A convolution over the picture seen as large as `seen`.
pub(super) fn upsample(b: &mut Builder<'_>, x: Picture, seen: Grid, p: &str) -> Result<Picture> {
    b.conv(x, &format!("{p}.upsamplers.0.conv"), (3, Stride::same(3), seen), None)
}

/// A convolution of every other pixel, with as many zeros around as `padding` says; with none there is one
/// line below and one column to the right.
pub(super) fn downsample(b: &mut Builder<'_>, x: Picture, padding: usize, p: &str) -> Result<Picture> {
    let after = padding.max(1);
    let stride = Stride { step: 2, before: padding, after };
    b.conv(x, &format!("{p}.downsamplers.0.conv"), (3, stride, x.grid), None)
}
