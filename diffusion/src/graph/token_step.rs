//! Steps of transformers: what a node does with rows of tokens.

use super::tensors::Param;

/// Some columns of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// The first.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// By which columns of its item's row a row is modulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modulation {
    /// The first column of the scale.
    pub scale: usize,
    /// The first column of what is added.
    pub shift: Option<usize>,
    /// Whether 1 is added to the scale.
    pub plus_one: bool,
}

/// By what rows turn: cosines, then sines `[2, positions, pairs]`; every item's rows have the positions 0,
/// 1, ...
#[derive(Debug, Clone, PartialEq)]
pub struct Angles {
    /// Rows of an item.
    pub positions: usize,
    /// Pairs of neighbouring columns in every head.
    pub pairs: usize,
    /// The values.
    pub table: Vec<f32>,
    /// The list with the position of every row.
    pub list: usize,
}

/// What a node does with rows of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenStep {
    /// RMS norm of every part of `width` of some columns, in place, with this added to the mean square.
    HeadNorm {
        /// The weight of a part.
        weight: Param,
        /// Which columns.
        columns: Columns,
        /// Columns of a part.
        width: usize,
        /// Added to mean squares.
        eps: f32,
    },
    /// Rows times a scale and plus a shift of their item, which the second argument has `[items, any]`, in
    /// place.
    Modulate(Modulation),
    /// Turns every head of `width` of some columns by the angles of this number, in place.
    Turn {
        /// The number.
        angles: usize,
        /// Which columns.
        columns: Columns,
        /// Columns of a head.
        width: usize,
    },
    /// `x + vector`.
    AddVector(Param),
    /// Of every item the rows of all arguments, one after the other.
    JoinRows,
    /// Of every item the rows from this one on, as many as the result has.
    TakeRows(usize),
    /// Rows of a table by the list of this number.
    LookUp(Param, usize),
    /// Rows of the argument, seen as wide as the result, by the list of this number.
    Reorder(usize),
}

impl TokenStep {
    /// Whether the first argument becomes the result.
    pub fn is_in_place(&self) -> bool {
        matches!(self, TokenStep::HeadNorm { .. } | TokenStep::Modulate(_) | TokenStep::Turn { .. })
    }
}
