//! Collectives: one communicator per rank; each call takes the stream, so it is an op like any other and can be
//! captured.

use super::Backend;
use crate::Result;
use crate::mem::{BufMut, MatMut, MatRef};

/// The group that this rank belongs to.
pub trait Communicator<B: Backend> {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn world(&self) -> usize;
    /// `x = sum over ranks of x`, in the order of the leaf tree: `[rows, cols]`.
    fn all_reduce(&mut self, stream: &mut B::Stream, x: MatMut<'_, B::Mem>) -> Result<()>;
    /// Columns of all ranks side by side, by rank: x `[rows, cols]`, out `[rows, world * cols]`.
    fn all_gather(
        &mut self,
        stream: &mut B::Stream,
        x: MatRef<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;
    /// Rank `root`'s words to all.
    fn broadcast(&mut self, stream: &mut B::Stream, x: BufMut<'_, B::Mem, u32>, root: usize) -> Result<()>;
    /// Waits for all ranks.
    fn barrier(&mut self, stream: &mut B::Stream) -> Result<()>;
}
