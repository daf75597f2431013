//! The choice of keys by an index, as a model's description has it.

use super::norm_spec::NormSpec;

/// Which keys a query of latent attention reads: the `count` that an index scores best (DeepSeek 3.2, arXiv
/// 2512.02556). Every position keeps a short key `k = rope(n(W_k x))` of `width` columns; a query at `x`,
/// whose row between the two matmuls of queries is `c`, scores it
/// `sum over h of (W_w x)[h] * max(rope(W_q c)[h] . k, 0)`, times factors that change no order. Keys behind
/// the query are not chosen: the block's scores have no mask of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct IndexSpec {
    /// Heads of a query.
    pub heads: usize,
    /// Columns of a head and of a key, an even number.
    pub width: usize,
    /// Keys that a query reads at most.
    pub count: usize,
    /// Index into [`ModelSpec::ropes`](super::ModelSpec::ropes).
    pub rope: usize,
    /// Of keys.
    pub norm: NormSpec,
    /// Whether the block reads the keys that the block before it has chosen, and chooses none.
    pub shared: bool,
}

impl IndexSpec {
    /// An index of the block's own.
    pub fn new([heads, width, count]: [usize; 3], rope: usize, norm: NormSpec) -> Self {
        Self { heads, width, count, rope, norm, shared: false }
    }

    /// The index, where it is the block's own.
    pub fn own(self) -> Option<Self> {
        (!self.shared).then_some(self)
    }

    /// What each of the two matrices has in which keys are kept, the first columns and the others.
    pub fn halves(&self) -> [usize; 2] {
        [self.width / 2, self.width - self.width / 2]
    }
}
