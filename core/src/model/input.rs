//! Which of two buffers a part of a block reads.

use crate::Result;
use crate::mem::{DeviceMem, Mat, MatRef};

/// The buffer that a part reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The residual stream itself.
    Residual,
    /// What a norm made of it.
    Normed,
}

impl Input {
    /// What a part reads `[tokens, hidden]`.
    pub(super) fn read<'s, M: DeviceMem>(
        self,
        residual: &'s Mat<M>,
        normed: &'s Mat<M>,
        tokens: usize,
    ) -> Result<MatRef<'s, M>> {
        match self {
            Input::Residual => residual.view(tokens),
            Input::Normed => normed.view(tokens),
        }
    }
}
