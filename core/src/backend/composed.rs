//! `Composed<B>`: any backend with every fused op left to its composition, so that a whole model runs fused
//! against composed on the same device.

use super::board::Board;
use super::contract::*;
use crate::Result;
use crate::mem::{BufMut, BufRef, HostWeight, MatMut, StepShape};
use crate::numerics::Numerics;
use crate::ops::{Checked, Run, Signature};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A backend that never uses a fused kernel.
#[derive(Debug)]
pub struct Composed<B> {
    inner: Arc<B>,
    name: String,
}

impl<B: Backend> Composed<B> {
    /// Wraps a backend.
    pub fn new(inner: Arc<B>) -> Self {
        let name = format!("{} (composed)", inner.name());
        Self { inner, name }
    }
}

/// The stream of [`Composed`].
pub struct ComposedStream<B: Backend>(B::Stream);

/// The communicator of [`Composed`].
struct ComposedComm<B: Backend>(Box<dyn Communicator<B>>);

impl<B: Backend> Backend for Composed<B> {
    type Device = B::Device;
    type Kernel = B::Kernel;
    type Graph = B::Graph;
    type Stream = ComposedStream<B>;

    fn name(&self) -> &str {
        &self.name
    }
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn numerics(&self) -> Numerics {
        self.inner.numerics()
    }
    fn alloc(&self, bytes: usize) -> Result<Mem<B>> {
        self.inner.alloc(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<Self::Stream> {
        Ok(ComposedStream(self.inner.stream()?))
    }
    fn of_rank(self: &Arc<Self>, rank: usize, local: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self::new(self.inner.of_rank(rank, local)?)))
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(ComposedComm(self.inner.group(board)?)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, uses: &[Signature]) -> Result<Weight<B>> {
        self.inner.prepare_weight(weight, uses)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<AttnPlan<B>> {
        self.inner.attention_plan(bound)
    }
    fn coverage(&self, signature: &Signature) -> Coverage<B::Kernel> {
        match self.inner.coverage(signature) {
            Coverage::Native(_) if signature.op.is_fused() => {
                Coverage::Composed("composed model asked for".into())
            }
            other => other,
        }
    }
    fn ready(&self, kernels: &[B::Kernel]) -> Result<()> {
        self.inner.ready(kernels)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn packing(&self) -> Duration {
        self.inner.packing()
    }
}

impl<B: Backend> Run<B::Device> for ComposedStream<B> {
    fn run(&mut self, op: Checked<'_, B::Device>) -> Result<()> {
        if op.is_fused() { op.compose(self) } else { self.0.run(op) }
    }
}

impl<B: Backend> Stream<Composed<B>> for ComposedStream<B> {
    type Event = <B::Stream as Stream<B>>::Event;
    type Ticket = <B::Stream as Stream<B>>::Ticket;

    fn upload<T: bytemuck::Pod>(&mut self, src: &[T], dst: BufMut<'_, Mem<B>, T>) -> Result<()> {
        self.0.upload(src, dst)
    }
    fn download<T: bytemuck::Pod>(&mut self, src: BufRef<'_, Mem<B>, T>) -> Result<Self::Ticket> {
        self.0.download(src)
    }
    fn collect<T: bytemuck::Pod>(
        &mut self,
        ticket: Self::Ticket,
        out: &mut [T],
    ) -> impl Future<Output = Result<()>> {
        self.0.collect(ticket, out)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut AttnPlan<B>) -> Result<()> {
        self.0.plan_attention(shape, plan)
    }
    fn submit(&mut self) -> Result<()> {
        self.0.submit()
    }
    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }
    fn record(&mut self) -> Result<Self::Event> {
        self.0.record()
    }
    fn elapsed_us(&mut self, from: &Self::Event, to: &Self::Event) -> Result<f64> {
        self.0.elapsed_us(from, to)
    }
    fn begin_capture(&mut self) -> Result<()> {
        self.0.begin_capture()
    }
    fn end_capture(&mut self) -> Result<B::Graph> {
        self.0.end_capture()
    }
    unsafe fn replay(&mut self, graph: &B::Graph) -> Result<()> {
        // SAFETY: the caller's promise is the inner stream's.
        unsafe { self.0.replay(graph) }
    }
}

impl<B: Backend> Communicator<Composed<B>> for ComposedComm<B> {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn is_capturable(&self) -> bool {
        self.0.is_capturable()
    }
    fn all_reduce(&mut self, s: &mut ComposedStream<B>, x: MatMut<'_, Mem<B>>, adds: bool) -> Result<()> {
        self.0.all_reduce(&mut s.0, x, adds)
    }
    fn all_gather(
        &mut self,
        s: &mut ComposedStream<B>,
        x: MatMut<'_, Mem<B>>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        self.0.all_gather(&mut s.0, x, columns)
    }
}
