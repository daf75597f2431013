//! A communicator for any backend: ranks exchange in host memory.
//!
//! It waits for the device before each exchange, so steps that use it cannot be captured. It is the oracle of
//! every faster communicator.

use super::block_on;
use super::board::Board;
use super::contract::{Backend, Communicator, Mem, Stream};
use crate::Result;
use crate::mem::MatMut;
use std::ops::Range;

/// A rank of a group whose ranks exchange on a [`Board`].
pub struct HostGroup {
    board: Box<dyn Board>,
    values: Vec<f32>,
}

impl HostGroup {
    /// The rank whose place on the board this is.
    pub fn new(board: Box<dyn Board>) -> Self {
        Self { board, values: Vec::new() }
    }

    /// Takes `x` to the board and what became of it back.
    fn exchange<B: Backend>(
        &mut self,
        stream: &mut B::Stream,
        mut x: MatMut<'_, Mem<B>>,
        reduce: impl FnOnce(&dyn Board, &mut [f32]) -> Result<()>,
    ) -> Result<()> {
        self.values.resize(x.rows() * x.cols(), 0.0);
        let ticket = stream.download(x.as_ref().as_f32()?)?;
        block_on(stream.collect(ticket, &mut self.values))?;
        reduce(self.board.as_ref(), &mut self.values)?;
        stream.upload(&self.values, x.reborrow().into_f32()?)
    }
}

impl<B: Backend> Communicator<B> for HostGroup {
    fn rank(&self) -> usize {
        self.board.rank()
    }
    fn world(&self) -> usize {
        self.board.world()
    }
    fn is_capturable(&self) -> bool {
        false
    }
    fn all_reduce(&mut self, stream: &mut B::Stream, x: MatMut<'_, Mem<B>>, adds: bool) -> Result<()> {
        self.exchange::<B>(stream, x, |board, values| board.all_reduce(values, adds))
    }
    fn all_gather(
        &mut self,
        stream: &mut B::Stream,
        x: MatMut<'_, Mem<B>>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        let cols = x.cols();
        self.exchange::<B>(stream, x, |board, values| board.all_gather(values, cols, columns))
    }
}
