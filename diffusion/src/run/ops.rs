//! What nodes run on and read.

use super::values::{Values, lost};
use crate::graph::{Graph, Value};
use crate::load::Loaded;
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{Buf, BufRef, DeviceMem, Mat, MatRef};
use engraft_core::ops::{Checked, Op, Run as _};

/// What ops of a node run on.
pub(super) struct Ops<'a, B: Backend> {
    pub stream: &'a mut B::Stream,
    pub loaded: &'a Loaded<B>,
    /// Of f32.
    pub wide: &'a mut Mat<Mem<B>>,
    pub scratch: &'a mut Mat<Mem<B>>,
}

impl<B: Backend> Ops<'_, B> {
    pub(super) fn run<'o>(&mut self, op: impl Into<Op<'o, B::Device>>) -> Result<()> {
        self.stream.run(Checked::new(op)?)
    }
}

/// What a node reads.
pub(super) struct Around<'a, M> {
    /// Its graph.
    pub graph: &'a Graph,
    /// The graph's values.
    pub values: &'a Values<M>,
    /// Which of them are its arguments.
    pub args: &'a [Value],
    /// Of every row of the result its item.
    pub of_rows: BufRef<'a, M, u32>,
    /// Those of the graph.
    pub lists: &'a [Buf<M, u32>],
    /// Tables of the graph's angles.
    pub angles: &'a [Buf<M, f32>],
}

impl<M: DeviceMem> Around<'_, M> {
    /// The argument of this number; the first one of a step in place is what the result holds.
    pub fn arg(&self, n: usize) -> Result<MatRef<'_, M>> {
        self.values.view(*self.args.get(n).ok_or_else(lost)?)
    }

    pub fn list(&self, n: usize) -> Result<BufRef<'_, M, u32>> {
        self.lists.get(n).map(Buf::view).ok_or_else(lost)
    }
}
