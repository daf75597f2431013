//! The executor of the engine's steps: a stream, its group, and whoever watches.

use crate::Result;
use crate::backend::{Backend, Communicator, Mem, Stream};
use crate::mem::{MatMut, MatRef};
use crate::model::Executor;
use crate::ops::{Checked, Run};
use crate::profile::Probe;
use std::ops::Range;

/// Reads a hidden state of an eager step: by the stream, its number, its rows.
pub(super) type Tap<'a, B> =
    &'a mut dyn FnMut(&mut <B as Backend>::Stream, usize, MatRef<'_, Mem<B>>) -> Result<()>;

/// Times of the ops of one step.
pub(super) type ProbeOf<B> = Probe<<<B as Backend>::Stream as Stream<B>>::Event>;

/// Stream, communicator and observers of one step.
pub(super) struct StreamExecutor<'a, B: Backend> {
    /// The queue.
    pub stream: &'a mut B::Stream,
    /// The group.
    pub comm: &'a mut dyn Communicator<B>,
    /// Time per op, when profiling.
    pub probe: Option<&'a mut ProbeOf<B>>,
    /// Hidden states, when somebody asked for them.
    pub tap: Option<Tap<'a, B>>,
}

impl<'a, B: Backend> StreamExecutor<'a, B> {
    /// Without observers.
    pub fn new(stream: &'a mut B::Stream, comm: &'a mut dyn Communicator<B>) -> Self {
        Self { stream, comm, probe: None, tap: None }
    }
}

impl<B: Backend> Run<B::Device> for StreamExecutor<'_, B> {
    fn run(&mut self, op: Checked<'_, B::Device>) -> Result<()> {
        let Some(probe) = self.probe.as_deref_mut() else { return self.stream.run(op) };
        let (kind, from) = (op.op().kind(), self.stream.record()?);
        self.stream.run(op)?;
        probe.push(kind, from, self.stream.record()?);
        Ok(())
    }
}

impl<B: Backend> Executor<B::Device> for StreamExecutor<'_, B> {
    fn all_reduce(&mut self, x: MatMut<'_, Mem<B>>, adds: bool) -> Result<()> {
        self.comm.all_reduce(self.stream, x, adds)
    }

    fn all_gather(&mut self, x: MatMut<'_, Mem<B>>, columns: &[Range<usize>]) -> Result<()> {
        self.comm.all_gather(self.stream, x, columns)
    }

    fn enter(&mut self, layer: Option<usize>) {
        if let Some(probe) = &mut self.probe {
            probe.enter(layer);
        }
    }

    fn hidden(&mut self, i: usize, rows: MatRef<'_, Mem<B>>) -> Result<()> {
        self.tap.as_mut().map_or(Ok(()), |tap| tap(self.stream, i, rows))
    }
}
