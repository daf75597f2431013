//! The rendezvous of ranks in host memory.

use crate::Result;
use std::ops::Range;

/// A rendezvous of the ranks of a group: each has one of its own, for the same group. Every rank makes the
/// same calls in the same order, and each returns when all have made it.
pub trait Board: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Ranks in the group: 1, 2, 4 or 8.
    fn world(&self) -> usize;

    /// `x = sum over ranks of x`, by [`tree_of_ranks`](crate::numerics::tree_of_ranks). A rank that adds
    /// nothing has zeros, whatever its x holds.
    ///
    /// # Errors
    /// `Comm`, naming the rank that is missing.
    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()>;

    /// Gives every rank the columns of all: of x, rows of `cols` values, rank `r` has written `columns[r]`.
    ///
    /// # Errors
    /// As [`Board::all_reduce`].
    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()>;
}
