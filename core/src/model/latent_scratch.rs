//! Buffers of blocks whose heads read one row of a position.

use crate::Result;
use crate::mem::{DeviceMem, Float, Mat, MatRef};
use crate::policy::{BlockSpec, LatentSpec, ModelSpec};

/// Buffers of such blocks.
#[derive(Debug)]
pub struct LatentScratch<M> {
    /// `[tokens, query_rank]`.
    pub(super) low: Mat<M>,
    /// `[tokens, rank + rotated]`.
    pub(super) kept: Mat<M>,
    /// Queries as the matmul gives them, then what heads give `[tokens, heads * width]`.
    pub(super) heads: Mat<M>,
}

impl<M: DeviceMem> LatentScratch<M> {
    /// What lies between the two matmuls of queries `[tokens, columns]`.
    pub(super) fn query_rows(&self, tokens: usize, columns: usize) -> Result<MatRef<'_, M>> {
        self.low.shaped(tokens, columns)
    }

    /// Buffers for steps of up to `tokens` rows; none where no block needs them.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let most = |f: &dyn Fn(&BlockSpec, LatentSpec) -> usize| {
            spec.blocks.iter().filter_map(|b| b.latent.map(|latent| f(b, latent))).max()
        };
        let Some(heads) = most(&|b, latent| b.heads.heads * latent.query(b.heads).max(latent.value)) else {
            return Ok(None);
        };
        let mut mat = |cols: usize| {
            let (rows, cols) = (tokens.max(1), cols.max(1));
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        Ok(Some(Self {
            low: mat(most(&|_, latent| latent.query_rank.unwrap_or(0)).unwrap_or(0))?,
            kept: mat(most(&|b, _| b.heads.k_dim).unwrap_or(0))?,
            heads: mat(heads)?,
        }))
    }
}
