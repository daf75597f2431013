//! Captured decode steps by batch size, together with the step buffers they touch.
//!
//! A decode step of `n` sequences runs in the smallest bucket that holds it: exact up to 8, then in growing
//! steps. Rows beyond `n` are padding that writes nothing. A bucket is captured when it is first used,
//! replayed ever after. What is captured ends at the logits: the sampler runs behind it, so that what a row
//! may sample can still change while the model runs. Where a capture fails, its reason is kept, and steps of
//! that bucket run op by op: slower, under the same promise about bits. [`Captured`] is what of this steps of
//! other models have, too: those of pictures (`engraft-diffusion`).
//!
//! Replay is safe because of who owns what: the bucket owns its step buffer; scratch, slabs, tables and
//! operands are owned by the runner that owns this set, are allocated once and live as long. Nothing moves or
//! frees them: blocks of a user's own, which are lent scratch, keep steps from being captured unless they
//! promise that ([`Capturable`](crate::model::Capturable)).

mod captured;

pub use captured::Captured;

use crate::backend::{AttnPlan, Backend, Mem};
use crate::mem::{Buf, StepShape};
use crate::{Error, Result};
use std::sync::Arc;

/// A captured step with the buffers that change from step to step.
pub struct Bucket<B: Backend> {
    /// Sizes; every step of this bucket is laid out with exactly these.
    pub shape: StepShape,
    /// Ids, positions, slots, ...
    pub step: Buf<Mem<B>, u32>,
    /// Attention schedule.
    pub plan: AttnPlan<B>,
    /// The captured step, or why there is none.
    pub captured: Captured<B>,
}

impl<B: Backend> Bucket<B> {
    /// Buffers for decode steps of up to `rows` sequences.
    fn new(backend: &Arc<B>, shape: StepShape) -> Result<Self> {
        let words = shape.words();
        let step = Buf::new(backend.alloc(words * 4)?, words)?;
        Ok(Self { shape, step, plan: backend.attention_plan(shape)?, captured: Captured::default() })
    }

    /// Takes in what capturing gave.
    ///
    /// # Errors
    /// As [`Captured::keep`].
    pub fn keep(&mut self, captured: Result<B::Graph>) -> Result<()> {
        let sequences = self.shape.seqs;
        self.captured.keep(captured, || format!("a decode step of {sequences} sequences"))
    }
}

/// Sizes of buckets: which one a decode step takes.
#[derive(Debug, Clone)]
pub struct BucketSizes {
    sizes: Vec<usize>,
    max_keys: usize,
}

impl BucketSizes {
    /// Of an engine for up to `max_seqs` sequences of up to `max_keys` positions.
    pub fn new(max_seqs: usize, max_keys: usize) -> Self {
        Self { sizes: bucket_sizes(max_seqs), max_keys }
    }

    /// Words of the steps of all buckets.
    pub fn words(&self) -> usize {
        self.sizes.iter().filter_map(|size| self.shape(*size)).map(|shape| shape.words()).sum()
    }

    /// The shape of the bucket for so many decoding sequences; none beyond the largest.
    pub fn shape(&self, seqs: usize) -> Option<StepShape> {
        let rows = *self.sizes.iter().find(|size| **size >= seqs)?;
        let max_keys = self.max_keys;
        Some(StepShape { tokens: rows, seqs: rows, rows, table_edits: rows, max_query: 1, max_keys })
    }
}

/// The buckets of a runner.
pub struct GraphSet<B: Backend> {
    buckets: Vec<Option<Bucket<B>>>,
    sizes: Vec<usize>,
}

impl<B: Backend> GraphSet<B> {
    /// Buckets for up to `max_seqs` sequences, none captured yet.
    pub fn new(max_seqs: usize) -> Self {
        let sizes = bucket_sizes(max_seqs);
        Self { buckets: sizes.iter().map(|_| None).collect(), sizes }
    }

    /// The bucket of a shape ([`BucketSizes::shape`]), made when first asked for.
    ///
    /// # Errors
    /// `Internal` for the shape of no bucket; what making it raises.
    pub fn bucket(&mut self, backend: &Arc<B>, shape: StepShape) -> Result<&mut Bucket<B>> {
        let at = self.sizes.iter().position(|size| *size == shape.seqs);
        let place = at.and_then(|at| self.buckets.get_mut(at));
        let place = place.ok_or_else(|| Error::internal("a step of no bucket's shape"))?;
        if place.is_none() {
            *place = Some(Bucket::new(backend, shape)?);
        }
        place.as_mut().ok_or_else(|| Error::internal("a bucket is missing"))
    }

    /// Sizes of the buckets that have been captured.
    pub fn captured(&self) -> Vec<usize> {
        let captured = |b: &Option<Bucket<B>>| b.as_ref().is_some_and(|b| b.captured.is_captured());
        self.sizes.iter().zip(&self.buckets).filter(|(_, b)| captured(b)).map(|(s, _)| *s).collect()
    }

    /// Sizes of the buckets that could not be captured, and why.
    pub fn refused(&self) -> Vec<(usize, &str)> {
        let all = self.sizes.iter().zip(&self.buckets);
        all.filter_map(|(size, b)| Some((*size, b.as_ref()?.captured.refused()?))).collect()
    }
}

/// 1 to 8 exactly, then steps of a quarter to a half, the last one `max`.
fn bucket_sizes(max: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=max.min(8)).collect();
    let mut size = 8;
    while size < max {
        // 8, 12, 16, 24, 32, 48, ...: padding stays under a half.
        size = if size.is_power_of_two() { size + size / 2 } else { size / 3 * 4 };
        sizes.push(size.min(max));
    }
    sizes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::bucket_sizes;

    #[test]
    fn buckets() {
        assert_eq!(bucket_sizes(3), [1, 2, 3]);
        assert_eq!(bucket_sizes(40), [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40]);
    }
}
