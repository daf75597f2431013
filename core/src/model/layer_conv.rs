//! A convolution over the rows of a text next to a block (DeBERTa v2): made of what the block reads, and
//! added to what it gives.

use super::stem::{Taps, convolve};
use super::stem_scratch::rows_at_once;
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::{Buf, Device, DeviceMem, Float, Mat, NO_ROW, StepWords};
use crate::ops::AddNorm;
use crate::policy::{ConvSpec, LayerConv, ModelSpec};
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

/// Buffers of such convolutions.
#[derive(Debug)]
pub struct ConvScratch<M> {
    /// Rows that every row of the step reads `[tokens, kernel]`.
    pub(crate) taps: Buf<M, u32>,
    /// What some rows read, side by side `[rows, kernel * hidden]`.
    windows: Mat<M>,
    /// What the convolution gives `[tokens, hidden]`.
    out: Mat<M>,
    kernel: usize,
}

fn missing() -> Error {
    Error::internal("no room for a convolution next to a block")
}

impl<M: DeviceMem> ConvScratch<M> {
    /// Buffers for steps of up to `tokens` rows; none for models without such a convolution.
    ///
    /// # Errors
    /// `Config` for convolutions of several sizes, whose taps are not the same.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut dyn FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let mut kernels = spec.blocks.iter().filter_map(|block| block.conv.map(|conv| conv.kernel));
        let Some(kernel) = kernels.next() else { return Ok(None) };
        if let Some(other) = kernels.find(|other| *other != kernel) {
            return Err(Error::config(
                "conv_kernel_size",
                other,
                format!("{kernel}, as in an earlier block"),
            ));
        }
        let (tokens, window) = (tokens.max(1), kernel * spec.hidden);
        let mut mat =
            |rows: usize, cols: usize| Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype);
        let windows = mat(1, tokens.min(rows_at_once(window)) * window)?;
        let out = mat(tokens, spec.hidden)?;
        Ok(Some(Self { taps: Buf::new(alloc(4 * tokens * kernel)?, tokens * kernel)?, windows, out, kernel }))
    }

    /// The rows that every row of a step reads `[tokens, kernel]`.
    pub(crate) fn taps_of(&self, words: &StepWords) -> Vec<u32> {
        let count = words.shape().tokens * self.kernel;
        let mut taps = Vec::with_capacity(count);
        ConvSpec::centred(self.kernel).taps(&words.query_rows(), true, &mut taps);
        // Rows behind the last sequence are no text's.
        taps.resize(count, NO_ROW);
        taps
    }
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
