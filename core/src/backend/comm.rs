//! Collectives: one communicator per rank; each call takes the stream, so it is an op like any other and can
//! be captured.

use super::{Backend, Mem};
use crate::Result;
use crate::mem::MatMut;

/// The group that this rank belongs to.
pub trait Communicator<B: Backend> {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn world(&self) -> usize;
    /// `x = sum over ranks of x`, in the order of the leaf tree: `[rows, cols]`.
    fn all_reduce(&mut self, stream: &mut B::Stream, x: MatMut<'_, Mem<B>>) -> Result<()>;
}
