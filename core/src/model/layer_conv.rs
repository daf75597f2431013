//! A convolution over the rows of a text next to a block (DeBERTa v2): made of what the block reads, and
//! added to what it gives.

use super::layer_conv_scratch::ConvScratch;
use super::stem::{Taps, convolve};
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::Device;
use crate::ops::AddNorm;
use crate::policy::LayerConv;
use crate::{Error, Result};

/// The operands of a [`LayerConv`].
pub struct ConvOfLayer<D: Device> {
    /// Its description.
    pub spec: LayerConv,
    /// `[hidden, kernel * hidden]`.
    pub conv: Projection<D>,
    /// Norm of the sum.
    pub norm: Norm<D>,
}

fn missing() -> Error {
    Error::internal("no room for a convolution next to a block")
}

impl<D: Device> ConvOfLayer<D> {
    /// Leaves what the convolution gives in its buffer; the block's input is in `residual`.
    pub(super) fn forward(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { residual, conv: Some(ConvScratch { taps, windows, out, .. }), .. } = s else {
            return Err(missing());
        };
        let read = Taps::<D> { from: residual.view(tokens)?, kernel: self.spec.kernel, first: 0 };
        let how = (&self.conv, Some(self.spec.act));
        convolve(x, how, &read, (taps.view(), windows), out.view_mut(tokens)?)
    }

    /// `residual = norm(residual + what the convolution gave)`.
    pub(super) fn join(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Some(conv) = &s.conv else { return Err(missing()) };
        let (residual, out) = (s.residual.view_mut(tokens)?, s.normed.view_mut(tokens)?);
        x.run(AddNorm { residual, x: conv.out.view(tokens)?, norm: self.norm.weights(), out })?;
        std::mem::swap(&mut s.residual, &mut s.normed);
        Ok(())
    }
}
