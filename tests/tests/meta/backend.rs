//! `Broken`: the CPU with one planted bug.
//!
//! Every op, fused ones included, goes to the CPU's own kernel; the bug alters an argument before or memory after.
//! Bugs stay away from recordings (memory is not touched then), except the one that is about them.

use crate::bugs::Bug;
use conformance::dice::{from_bytes, to_bytes};
use engraft_core::backend::{
    Backend, Caps, Coverage, HostWeight, KvLayout, Op, Signature, Solo, Stream, block_on,
};
use engraft_core::mem::{Buf, BufMut, BufRef, GroupBits, Groups, MatRef, StepShape, WeightFormat};
use engraft_core::numerics::Numerics;
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuGraph, CpuMem, CpuPlan, CpuStream, CpuWeight};
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
    type Mem = CpuMem;
    type Weight = CpuWeight;
    type Graph = CpuGraph;
    type AttnPlan = CpuPlan;
    type Stream = BrokenStream;
    type Comm = Solo;

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
    fn solo(self: &Arc<Self>) -> Result<Solo> {
        self.cpu.solo()
    }
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<CpuWeight> {
        match (self.bug, weight.format) {
            (Some(bug), WeightFormat::Group(form)) => {
                let bytes = bad_groups(bug, form, weight.cols, weight.parts.concat());
                self.cpu.prepare_weight(HostWeight { parts: vec![bytes.into()], ..weight })
            }
            (Some(Bug::LargeBlocksFirstScaleOff), WeightFormat::Block(block)) if block.is_large() => {
                let mut bytes = weight.parts.concat();
                // In every K form one of these bytes holds small scales, the others parts of codes.
                bytes
                    .chunks_mut(block.bytes())
                    .for_each(|raw| [4, 104, 192].into_iter().for_each(|at| flip(raw, at)));
                self.cpu.prepare_weight(HostWeight { parts: vec![bytes.into()], ..weight })
            }
            _ => self.cpu.prepare_weight(weight),
        }
    }
    fn kv_bytes(&self, layout: &KvLayout) -> (usize, usize) {
        self.cpu.kv_bytes(layout)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CpuPlan> {
        self.cpu.attention_plan(bound)
    }
    fn coverage(&self, op: Op, signature: &Signature) -> Coverage {
        self.cpu.coverage(op, signature)
    }
}

fn flip(raw: &mut [u8], at: usize) {
    if let Some(byte) = raw.get_mut(at) {
        *byte ^= 0b10;
    }
}

/// Rows of groups as a wrong kernel would read them.
fn bad_groups(bug: Bug, form: Groups, cols: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    let (head, size) = (form.head(), form.group(cols));
    let (whole, tail) = (form.group_bytes(size), cols / size * form.group_bytes(size));
    for row in bytes.chunks_mut(form.row_bytes(cols)) {
        match bug {
            Bug::OffsetsOfGroupsForgotten if form.asymmetric => {
                row.chunks_mut(whole).for_each(|group| group[2..4].fill(0));
            }
            Bug::NibblesSwapped if form.bits == GroupBits::Four => row
                .chunks_mut(whole)
                .flat_map(|group| &mut group[head..])
                .for_each(|pair| *pair = pair.rotate_left(4)),
            Bug::TailGroupTakesScaleBefore if tail >= whole && tail < row.len() => {
                row.copy_within(tail - whole..tail - whole + 2, tail);
            }
            _ => {}
        }
    }
    bytes
}

/// The stream of [`Broken`]; its ops are in `ops.rs`.
pub struct BrokenStream {
    pub inner: CpuStream,
    pub recording: bool,
    backend: Arc<Broken>,
}

impl BrokenStream {
    /// Whether this bug is to strike now.
    pub fn is(&self, bug: Bug) -> bool {
        self.backend.bug == Some(bug) && !self.recording
    }

    /// Whether this bug is to strike while something is recorded.
    pub fn is_recording(&self, bug: Bug) -> bool {
        self.backend.bug == Some(bug) && self.recording
    }

    /// Whether several threads compute.
    pub fn is_threaded(&self) -> bool {
        self.backend.cpu.machine().pool.threads() > 1
    }

    /// Counts calls over all streams of the backend: true for every second one.
    pub fn second_call(&self) -> bool {
        self.backend.calls.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    /// Copies words to the host.
    pub fn words<T: bytemuck::Pod>(&mut self, words: BufRef<'_, CpuMem, T>) -> Result<Vec<T>> {
        let mut host = vec![T::zeroed(); words.len];
        let ticket = self.inner.download(words)?;
        block_on(self.inner.collect(ticket, &mut host))?;
        Ok(host)
    }

    /// A new buffer with these words.
    pub fn buffer<T: bytemuck::Pod>(&mut self, words: &[T]) -> Result<Buf<CpuMem, T>> {
        let mut buffer = Buf::new(CpuMem::new(size_of_val(words))?, words.len())?;
        self.inner.upload(words, buffer.view_mut())?;
        Ok(buffer)
    }

    /// A copy of a buffer with every word changed.
    pub fn changed<T: bytemuck::Pod>(
        &mut self,
        words: BufRef<'_, CpuMem, T>,
        change: impl Fn(T) -> T,
    ) -> Result<Buf<CpuMem, T>> {
        let host: Vec<T> = self.words(words)?.into_iter().map(change).collect();
        self.buffer(&host)
    }

    fn bytes(&mut self, m: MatRef<'_, CpuMem>) -> Result<Buf<CpuMem, u8>> {
        Buf::new(m.mem.clone(), engraft_core::mem::DeviceMem::bytes(m.mem))
    }

    /// Overwrites element `(r, c)`; `c` may lie beyond the row.
    pub fn set(&mut self, m: MatRef<'_, CpuMem>, r: usize, c: usize, value: f32) -> Result<()> {
        let mut all = self.bytes(m)?;
        let at = (m.offset + r * m.pitch + c) * m.dtype.bytes();
        let image = to_bytes(&[value], m.dtype);
        self.inner.upload(&image, all.view_mut().slice(at..at + image.len())?)
    }

    /// A matrix row by row.
    pub fn values(&mut self, m: MatRef<'_, CpuMem>) -> Result<Vec<f32>> {
        let all = self.bytes(m)?;
        let all = self.words(all.view())?;
        let at = |i: usize| (m.offset + i / m.cols * m.pitch + i % m.cols) * m.dtype.bytes();
        Ok((0..m.rows * m.cols).map(|i| from_bytes(&all, at(i), m.dtype)).collect())
    }

    /// Overwrites a matrix.
    pub fn store(&mut self, m: MatRef<'_, CpuMem>, values: &[f32]) -> Result<()> {
        for (i, value) in values.iter().enumerate() {
            self.set(m, i / m.cols, i % m.cols, *value)?;
        }
        Ok(())
    }

    /// Flips the lowest bit of the first element of rows `0..rows`.
    pub fn nudge(&mut self, m: MatRef<'_, CpuMem>, rows: usize) -> Result<()> {
        let mut all = self.bytes(m)?;
        for r in 0..rows {
            let at = (m.offset + r * m.pitch) * m.dtype.bytes();
            let low = self.words(all.view().slice(at..at + 1)?)?[0];
            self.inner.upload(&[low ^ 1], all.view_mut().slice(at..at + 1)?)?;
        }
        Ok(())
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
