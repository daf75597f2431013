//! The CPU with a board that does harm at one exchange, as it is run: in replayed steps, too.

use super::harm::Harm;
use engraft_core::Result;
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, Stream};
use engraft_core::mem::{BufMut, BufRef, HostWeight, MatMut, StepShape};
use engraft_core::numerics::Numerics;
use engraft_core::ops::Signature;
use engraft_cpu::{Cpu, CpuConfig, CpuMem, CpuStream};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

type CpuPlan = <Cpu as engraft_core::mem::Device>::AttnPlan;
type CpuWeight = <Cpu as engraft_core::mem::Device>::Weight;
type Event = <CpuStream as Stream<Cpu>>::Event;
type Ticket = <CpuStream as Stream<Cpu>>::Ticket;

/// Exchanges of this process so far.
pub static EXCHANGES: AtomicUsize = AtomicUsize::new(0);

/// A backend on the CPU; its rank does harm at exchange `at`, from 1.
pub struct Struck {
    cpu: Arc<Cpu>,
    harm: Harm,
    at: usize,
}

impl Struck {
    pub fn new(harm: Harm, at: usize) -> Result<Arc<Self>> {
        let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
        Ok(Arc::new(Self { cpu, harm, at }))
    }
}

/// A place in the group that the harm is done at.
struct StruckBoard {
    inner: Box<dyn Board>,
    harm: Harm,
    at: usize,
}

impl StruckBoard {
    /// Whether the next exchange is the one.
    fn is_struck(&self) -> bool {
        EXCHANGES.fetch_add(1, SeqCst) + 1 == self.at
    }
}

impl Board for StruckBoard {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()> {
        if self.is_struck() {
            if self.harm == Harm::Longer {
                super::harm::say();
                return self.inner.all_reduce(&mut vec![1.0; x.len() + 1], adds);
            }
            self.harm.done(&*self.inner)?;
        }
        self.inner.all_reduce(x, adds)
    }
    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()> {
        if self.is_struck() {
            if self.harm == Harm::Longer {
                super::harm::say();
                return self.inner.all_reduce(x, true);
            }
            self.harm.done(&*self.inner)?;
        }
        self.inner.all_gather(x, cols, columns)
    }
    fn check(&self) -> Result<()> {
        self.inner.check()
    }
    fn patience(&self) -> std::time::Duration {
        self.inner.patience()
    }
}

/// The CPU's communicator.
struct Group(Box<dyn Communicator<Cpu>>);

impl Communicator<Struck> for Group {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_reduce(&mut self, stream: &mut CpuStream, x: MatMut<'_, CpuMem>, adds: bool) -> Result<()> {
        self.0.all_reduce(stream, x, adds)
    }
    fn all_gather(
        &mut self,
        stream: &mut CpuStream,
        x: MatMut<'_, CpuMem>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        self.0.all_gather(stream, x, columns)
    }
}

impl Backend for Struck {
    type Device = Cpu;
    type Kernel = <Cpu as Backend>::Kernel;
    type Graph = <Cpu as Backend>::Graph;
    type Stream = CpuStream;

    fn name(&self) -> &str {
        self.cpu.name()
    }
    fn caps(&self) -> &Caps {
        Backend::caps(self.cpu.as_ref())
    }
    fn numerics(&self) -> Numerics {
        self.cpu.numerics()
    }
    fn alloc(&self, bytes: usize) -> Result<CpuMem> {
        self.cpu.alloc(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<CpuStream> {
        self.cpu.stream()
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        let board = StruckBoard { inner: board, harm: self.harm, at: self.at };
        Ok(Box::new(Group(self.cpu.group(Box::new(board))?)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, uses: &[Signature]) -> Result<CpuWeight> {
        self.cpu.prepare_weight(weight, uses)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CpuPlan> {
        self.cpu.attention_plan(bound)
    }
    fn coverage(&self, signature: &Signature) -> Coverage<Self::Kernel> {
        self.cpu.coverage(signature)
    }
}

impl Stream<Struck> for CpuStream {
    type Event = Event;
    type Ticket = Ticket;

    fn upload<T: bytemuck::Pod>(&mut self, src: &[T], dst: BufMut<'_, CpuMem, T>) -> Result<()> {
        Stream::<Cpu>::upload(self, src, dst)
    }
    fn download<T: bytemuck::Pod>(&mut self, src: BufRef<'_, CpuMem, T>) -> Result<Ticket> {
        Stream::<Cpu>::download(self, src)
    }
    fn collect<T: bytemuck::Pod>(
        &mut self,
        ticket: Ticket,
        out: &mut [T],
    ) -> impl Future<Output = Result<()>> {
        Stream::<Cpu>::collect(self, ticket, out)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut CpuPlan) -> Result<()> {
        Stream::<Cpu>::plan_attention(self, shape, plan)
    }
    fn submit(&mut self) -> Result<()> {
        Stream::<Cpu>::submit(self)
    }
    fn sync(&mut self) -> Result<()> {
        Stream::<Cpu>::sync(self)
    }
    fn record(&mut self) -> Result<Event> {
        Stream::<Cpu>::record(self)
    }
    fn elapsed_us(&mut self, from: &Event, to: &Event) -> Result<f64> {
        Stream::<Cpu>::elapsed_us(self, from, to)
    }
    fn begin_capture(&mut self) -> Result<()> {
        Stream::<Cpu>::begin_capture(self)
    }
    fn end_capture(&mut self) -> Result<<Cpu as Backend>::Graph> {
        Stream::<Cpu>::end_capture(self)
    }
    unsafe fn replay(&mut self, graph: &<Cpu as Backend>::Graph) -> Result<()> {
        // SAFETY: the caller promises it.
        unsafe { Stream::<Cpu>::replay(self, graph) }
    }
}
