//! `Broken`: the CPU with one planted bug.
//!
//! Every op, fused ones included, goes through the bug (`conformance::bug`), which runs it by the CPU,
//! rightly or not. Bugs stay away from recordings (memory is not touched then), except those that are about
//! them.

use conformance::bug::{Bug, Plant, Strike};
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, HostGroup, Stream};
use engraft_core::mem::{BufMut, BufRef, HostWeight, StepShape};
use engraft_core::numerics::Numerics;
use engraft_core::ops::{Checked, Run, Signature};
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuGraph, CpuKernel, CpuMem, CpuPlan, CpuStream, CpuWeight};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The CPU with a bug, or without.
pub struct Broken {
    cpu: Arc<Cpu>,
    bug: Option<Bug>,
    calls: AtomicUsize,
    /// Captures that fail, from the first on.
    refusals: AtomicUsize,
}

impl Broken {
    /// Plants a bug.
    pub fn new(cpu: &Arc<Cpu>, bug: Option<Bug>) -> Arc<Self> {
        let (calls, refusals) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { cpu: cpu.clone(), bug, calls, refusals })
    }

    /// One without a bug whose first `refusals` captures fail when they are instantiated.
    pub fn that_refuses(cpu: &Arc<Cpu>, refusals: usize) -> Arc<Self> {
        let calls = AtomicUsize::new(0);
        Arc::new(Self { cpu: cpu.clone(), bug: None, calls, refusals: AtomicUsize::new(refusals) })
    }

    /// Captures that are still to fail.
    pub fn refusals_left(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }
}

impl Backend for Broken {
    type Device = Cpu;
    type Kernel = CpuKernel;
    type Graph = CpuGraph;
    type Stream = BrokenStream;

    fn name(&self) -> &str {
        "broken"
    }
    fn caps(&self) -> &Caps {
        self.cpu.caps()
    }
    fn numerics(&self) -> Numerics {
        self.cpu.numerics()
    }
    fn alloc(&self, bytes: usize) -> Result<CpuMem> {
        self.cpu.alloc(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<BrokenStream> {
        Ok(BrokenStream { inner: self.cpu.stream()?, backend: self.clone(), recording: false })
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(HostGroup::new(board)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, uses: &[Signature]) -> Result<CpuWeight> {
        let Some(Bug { plant: Plant::Weights(wrong), .. }) = self.bug else {
            return self.cpu.prepare_weight(weight, uses);
        };
        let (info, parts) = weight.into_parts();
        let mut bytes = parts.concat();
        wrong(&info, &mut bytes);
        self.cpu.prepare_weight(HostWeight::new(info, vec![bytes.into()])?, uses)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CpuPlan> {
        self.cpu.attention_plan(bound)
    }
    fn coverage(&self, signature: &Signature) -> Coverage<CpuKernel> {
        self.cpu.coverage(signature)
    }
}

/// The stream of [`Broken`].
pub struct BrokenStream {
    inner: CpuStream,
    recording: bool,
    backend: Arc<Broken>,
}

impl Run<Cpu> for BrokenStream {
    fn run(&mut self, op: Checked<'_, Cpu>) -> Result<()> {
        let wrong = match (self.backend.bug.map(|bug| bug.plant), self.recording) {
            (Some(Plant::Ops(wrong)), false) | (Some(Plant::Recording(wrong)), true) => wrong,
            _ => return self.inner.run(op),
        };
        let threads = self.backend.cpu.machine().pool.threads();
        wrong(&mut Strike::new(&mut self.inner, &self.backend.calls, threads), op.into_op())
    }
}

impl Stream<Broken> for BrokenStream {
    type Event = <CpuStream as Stream<Cpu>>::Event;
    type Ticket = <CpuStream as Stream<Cpu>>::Ticket;

    fn upload<T: bytemuck::Pod>(&mut self, src: &[T], dst: BufMut<'_, CpuMem, T>) -> Result<()> {
        self.inner.upload(src, dst)
    }
    fn download<T: bytemuck::Pod>(&mut self, src: BufRef<'_, CpuMem, T>) -> Result<Self::Ticket> {
        self.inner.download(src)
    }
    fn collect<T: bytemuck::Pod>(
        &mut self,
        ticket: Self::Ticket,
        out: &mut [T],
    ) -> impl Future<Output = Result<()>> {
        self.inner.collect(ticket, out)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut CpuPlan) -> Result<()> {
        self.inner.plan_attention(shape, plan)
    }
    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }
    fn sync(&mut self) -> Result<()> {
        self.inner.sync()
    }
    fn record(&mut self) -> Result<Self::Event> {
        self.inner.record()
    }
    fn elapsed_us(&mut self, from: &Self::Event, to: &Self::Event) -> Result<f64> {
        self.inner.elapsed_us(from, to)
    }
    fn begin_capture(&mut self) -> Result<()> {
        self.recording = true;
        self.inner.begin_capture()
    }
    fn end_capture(&mut self) -> Result<CpuGraph> {
        self.recording = false;
        let graph = self.inner.end_capture()?;
        let left = &self.backend.refusals;
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => Err(Error::internal("a planted refusal")),
            Err(_) => Ok(graph),
        }
    }
    unsafe fn replay(&mut self, graph: &CpuGraph) -> Result<()> {
        // SAFETY: the caller's promise is the inner stream's.
        unsafe { self.inner.replay(graph) }
    }
}
