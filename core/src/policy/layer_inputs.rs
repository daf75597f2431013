//! Inputs that every block has of its own, as a model's description has them.

use super::norm_spec::NormSpec;
use crate::params::Act;

/// Where the inputs of blocks come from: of a token `t` with embedding `x`, block `l` reads columns
/// `l * width` on of `(sqrt(width) E[t] + n(W x / sqrt(hidden))) / sqrt(2)`, where the norm spans `width`
/// columns (Gemma 3n and 4).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LayerInputs {
    /// Rows of the table `E`.
    pub rows: usize,
    /// Columns of a block.
    pub width: usize,
    /// The norm.
    pub norm: NormSpec,
}

impl LayerInputs {
    /// Of a table of so many rows.
    pub fn new(rows: usize, width: usize, norm: NormSpec) -> Self {
        Self { rows, width, norm }
    }
}

/// What a block adds to the residual stream `x` at its end: `n(P (act(G x) * i))`, `i` its own input.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LayerInput {
    /// Columns of the input.
    pub width: usize,
    /// The activation.
    pub act: Act,
    /// The norm.
    pub norm: NormSpec,
}

impl LayerInput {
    /// Of so many columns.
    pub fn new(width: usize, act: Act, norm: NormSpec) -> Self {
        Self { width, act, norm }
    }
}
