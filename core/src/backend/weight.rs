//! Weights on their way to a backend: host form and what the engine remembers of the prepared form.

use super::Backend;
use crate::Result;
use crate::mem::WeightFormat;
use std::borrow::Cow;

/// What a weight is used for; decides how a backend packs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// Multiplied: `y = x w^T`; the sum over `cols` has leaves of whole `grain`s.
    Linear {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Multiplied: gate and up `[2 inner, cols]`, whose outputs are used in pairs; as a plain product it gives
    /// `[gate | up]`.
    GatedLinear {
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Multiplied, `[rows / count, cols]` for each of `count` experts, one after the other.
    Experts {
        /// Experts.
        count: usize,
        /// See [`crate::numerics::leaf_bounds`].
        grain: usize,
    },
    /// Rows are looked up.
    Embedding,
    /// Both (tied embeddings); must not take the memory of two.
    EmbeddingAndLinear,
    /// A vector `[1, cols]` (norm weight, bias), used as f32.
    Vector,
}

/// A weight in host memory, row-major `[rows, cols]` in `format`'s file layout.
#[derive(Debug)]
pub struct HostWeight<'a> {
    /// For messages: the role, e.g. `layer 3 qkv.weight`.
    pub name: &'a str,
    /// Rows (outputs).
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Element or block format of `data`.
    pub format: WeightFormat,
    /// Use.
    pub used_for: WeightUse,
    /// Row ranges one after the other: each part holds whole rows.
    pub parts: Vec<Cow<'a, [u8]>>,
}

/// A prepared weight with what the engine needs to know of it.
#[derive(Debug)]
pub struct Prepared<W> {
    /// The backend's form.
    pub raw: W,
    /// Rows (outputs).
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Format it is multiplied from.
    pub format: WeightFormat,
}

impl<W> Prepared<W> {
    /// Packs a host weight for its use.
    ///
    /// # Errors
    /// What the backend raises: sizes that do not fit the format, no memory.
    pub fn new<B: Backend<Weight = W>>(backend: &B, weight: HostWeight<'_>) -> Result<Self> {
        let HostWeight { rows, cols, format, .. } = weight;
        Ok(Self { raw: backend.prepare_weight(weight)?, rows, cols, format })
    }

    /// Bytes in `format`.
    pub fn bytes(&self) -> usize {
        self.format.bytes(self.rows, self.cols)
    }
}
