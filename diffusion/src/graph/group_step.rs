//! Steps that treat columns in groups: what a node does with heads and with groups of channels.

use super::tensors::Param;

/// A convolution whose outputs read the columns of their group alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouped {
    /// What is read: the number of a window.
    pub window: usize,
    /// Columns of a group that are read.
    pub inputs: usize,
    /// Columns of a group that are written.
    pub outputs: usize,
    /// The weight, an output a column.
    pub weight: Param,
    /// The bias.
    pub bias: Option<Param>,
}

/// Where heads lie in the columns of what has queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearHeads {
    /// How many.
    pub heads: usize,
    /// Columns of one.
    pub width: usize,
    /// Columns from head to head.
    pub step: usize,
    /// Columns from queries to keys, and from keys to values.
    pub apart: usize,
    /// Added to what divides.
    pub eps: f32,
}

impl LinearHeads {
    /// Columns from the first of the first head to the last of the last one.
    pub fn span(&self) -> usize {
        self.heads.saturating_sub(1) * self.step + self.width
    }
}
