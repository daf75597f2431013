//! Where changed ops run: on the CPU between guard pages, or (other backends) not at all, as far as the check
//! alone.

use super::heap;
use super::pages::Pages;
use engraft_core::backend::{Backend, Mem, Weight};
use engraft_core::mem::HostWeight;
use engraft_core::ops::{Checked, Run};
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuMem};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Addresses that an op may write.
pub type Spans = Vec<Range<usize>>;

/// A backend, and what is to be done with its memory.
pub trait Ground: Send + Sync + 'static {
    /// The backend.
    type Inner: Backend;

    /// The backend.
    fn inner(&self) -> &Arc<Self::Inner>;
    /// Whether operands end where nothing may be touched, else they begin there.
    fn turn(&self, _at_end: bool) {}
    /// Memory for an operand: so many bytes and not one more.
    fn room(&self, bytes: usize) -> Result<Mem<Self::Inner>>;
    /// Packs a weight.
    fn pack(&self, weight: HostWeight<'_>) -> Result<Weight<Self::Inner>> {
        self.inner().prepare_weight(weight, &[])
    }
    /// Where an allocation begins.
    fn address(&self, mem: &Mem<Self::Inner>) -> usize;
    /// Bytes of an allocation, as far as they can be read.
    fn read(&self, mem: &Mem<Self::Inner>, bytes: Range<usize>) -> Vec<u8>;
    /// Writes the front of an allocation, as far as it can be written.
    fn write(&self, mem: &mut Mem<Self::Inner>, bytes: &[u8]);
    /// Runs an op that may write `outputs`; what was written elsewhere comes back as text.
    fn run(
        &self,
        stream: &mut <Self::Inner as Backend>::Stream,
        op: Checked<'_, <Self::Inner as Backend>::Device>,
        outputs: &Spans,
    ) -> Result<Option<String>>;
}

/// The CPU with every operand between guard pages, and with weights in memory that is guarded, too.
pub struct Guarded {
    cpu: Arc<Cpu>,
    rooms: Mutex<Vec<Weak<Pages>>>,
    at_end: AtomicBool,
}

impl Guarded {
    /// Guards a CPU.
    pub fn new(cpu: Arc<Cpu>) -> Self {
        Self { cpu, rooms: Mutex::default(), at_end: AtomicBool::new(true) }
    }

    fn images(&self) -> Vec<(usize, Vec<u8>)> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.retain(|room| room.strong_count() > 0);
        // SAFETY: no op runs between two of this thread's.
        rooms.iter().filter_map(Weak::upgrade).map(|pages| unsafe { pages.image() }).collect()
    }
}

impl Ground for Guarded {
    type Inner = Cpu;

    fn inner(&self) -> &Arc<Cpu> {
        &self.cpu
    }
    fn turn(&self, at_end: bool) {
        self.at_end.store(at_end, Ordering::Relaxed);
    }
    fn room(&self, bytes: usize) -> Result<CpuMem> {
        let refused = |e: std::io::Error| Error::internal(format!("guard pages: {e}"));
        let pages = Pages::new(bytes, self.at_end.load(Ordering::Relaxed)).map_err(refused)?;
        let (pages, mut rooms) = (Arc::new(pages), self.rooms.lock().unwrap_or_else(PoisonError::into_inner));
        rooms.push(Arc::downgrade(&pages));
        let keep: Box<dyn Any + Send + Sync> = Box::new(pages.clone());
        // SAFETY: aligned to 4 bytes and mapped for as long as `keep` lives; others read it between ops
        // alone.
        Ok(unsafe { CpuMem::from_raw(pages.start(), pages.bytes(), keep) })
    }
    fn pack(&self, weight: HostWeight<'_>) -> Result<Weight<Cpu>> {
        heap::guarded(|| self.cpu.prepare_weight(weight, &[]))
    }
    fn address(&self, mem: &CpuMem) -> usize {
        mem.start() as usize
    }
    fn read(&self, mem: &CpuMem, bytes: Range<usize>) -> Vec<u8> {
        // SAFETY: views lie inside their memory; no op runs meanwhile.
        unsafe { std::slice::from_raw_parts(mem.start().add(bytes.start), bytes.len()) }.to_vec()
    }
    fn write(&self, mem: &mut CpuMem, bytes: &[u8]) {
        // SAFETY: `bytes` are at most as many as the allocation has; it is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(mem.start(), bytes.len()) }.copy_from_slice(bytes);
    }
    fn run(
        &self,
        stream: &mut <Cpu as Backend>::Stream,
        op: Checked<'_, Cpu>,
        outputs: &Spans,
    ) -> Result<Option<String>> {
        let before = self.images();
        let ran = stream.run(op);
        let after = self.images();
        let allowed = |address: usize| outputs.iter().any(|span| span.contains(&address));
        for ((start, old), (_, new)) in before.iter().zip(&after) {
            let differs = |(at, (a, b)): (usize, (&u8, &u8))| (a != b && !allowed(start + at)).then_some(at);
            if let Some(at) = old.iter().zip(new).enumerate().find_map(differs) {
                return Ok(Some(format!("byte {at} of {} was written, which is no output", old.len())));
            }
        }
        ran.map(|()| None)
    }
}

/// Any backend, as far as the check.
pub struct Checks<B>(pub Arc<B>);

impl<B: Backend> Ground for Checks<B> {
    type Inner = B;

    fn inner(&self) -> &Arc<B> {
        &self.0
    }
    fn room(&self, bytes: usize) -> Result<Mem<B>> {
        self.0.alloc(bytes)
    }
    fn address(&self, _: &Mem<B>) -> usize {
        0
    }
    fn read(&self, _: &Mem<B>, bytes: Range<usize>) -> Vec<u8> {
        vec![0; bytes.len()]
    }
    fn write(&self, _: &mut Mem<B>, _: &[u8]) {}
    fn run(&self, _: &mut B::Stream, _: Checked<'_, B::Device>, _: &Spans) -> Result<Option<String>> {
        Ok(None)
    }
}
