//! Buffers of convolutions over the rows of a text next to blocks.

use super::stem_scratch::rows_at_once;
use crate::mem::{Buf, DeviceMem, Float, Mat, NO_ROW, StepWords};
use crate::policy::{ConvSpec, ModelSpec};
use crate::{Error, Result};

/// Buffers of convolutions next to blocks.
#[derive(Debug)]
pub struct ConvScratch<M> {
    /// Rows that every row of the step reads `[tokens, kernel]`.
    pub(crate) taps: Buf<M, u32>,
    /// What some rows read, side by side `[rows, kernel * hidden]`.
    pub(super) windows: Mat<M>,
    /// What the convolution gives `[tokens, hidden]`.
    pub(super) out: Mat<M>,
    pub(super) kernel: usize,
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
