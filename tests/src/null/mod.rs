//! A backend that computes nothing and knows whose every page is.
//!
//! A row carries one word, its *tag*: that of an embedded row is its token's, and every op passes tags on.
//! What is appended to a page is the tag, so attention can fold what it finds over a sequence's pages,
//! position by position, into the tag of its row, and the sampler takes the token from that. The right
//! continuation of a prompt is a pure function of the prompt: a page that is shared, given away or entered in
//! the table where it should not be changes a token.
//!
//! Tokens seen count, too: of a sequence with a repetition penalty they are mixed into what is sampled.
//!
//! Memory may be limited ([`Null::with_memory`]); every allocation takes whole pieces of it, as drivers hand
//! it out.
//!
//! Without tags ([`Null::idle`]) ops do nothing at all, and what a step takes is the host's own time.

mod ops;
mod stream;

pub use stream::{NullGraph, NullStream};

use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, HostGroup};
use engraft_core::mem::{Device, DeviceMem, Float, HostWeight, KvLayout, StepShape, Weight, WeightInfo};
use engraft_core::numerics::{Madd, Mode, Numerics};
use engraft_core::ops::Signature;
use engraft_core::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The backend.
#[derive(Debug)]
pub struct Null {
    caps: Caps,
    tags: bool,
    /// Ops, uploads and reads until one fails; [`u64::MAX`]: none does.
    fails_in: AtomicU64,
    /// Ops, uploads and reads so far.
    counted: AtomicU64,
    /// Bytes of all allocations so far.
    allocated: AtomicU64,
    /// What there is.
    memory: Option<Memory>,
}

/// Memory that has an end.
#[derive(Debug, Clone)]
struct Memory {
    free: Arc<AtomicU64>,
    /// Of what it says is free, that much is not there.
    missing: u64,
}

/// Bytes that an allocation takes whole.
pub const GRANULE: u64 = 2 << 20;

impl Null {
    /// Carries tags.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::with(true, None))
    }

    /// Carries tags, has so many bytes, and says that it has so many more.
    pub fn with_memory(bytes: u64, more: u64) -> Arc<Self> {
        let memory = Memory { free: Arc::new(AtomicU64::new(bytes.saturating_add(more))), missing: more };
        Arc::new(Self::with(true, Some(memory)))
    }

    /// Carries tags, and captures nothing.
    pub fn without_graphs() -> Arc<Self> {
        let mut null = Self::with(true, None);
        null.caps.graphs = false;
        Arc::new(null)
    }

    /// Does nothing.
    pub fn idle() -> Arc<Self> {
        Arc::new(Self::with(false, None))
    }

    fn with(tags: bool, memory: Option<Memory>) -> Self {
        let caps = Caps {
            device: "none".into(),
            dtypes: vec![Float::F32],
            graphs: true,
            asynchronous: true,
            memory_bytes: None,
            slab_bytes: None,
        };
        let [counted, allocated] = [const { AtomicU64::new(0) }; 2];
        Self { caps, tags, fails_in: AtomicU64::new(u64::MAX), counted, allocated, memory }
    }

    /// Ops, uploads and reads so far.
    pub fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    /// Bytes of all allocations so far.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Lets the op, upload or read after so many others fail, once.
    pub fn fail_in(&self, ops: u64) {
        self.fails_in.store(ops, Relaxed);
    }

    /// Counts an op, an upload or a read.
    fn count(&self) -> Result<()> {
        self.counted.fetch_add(1, Relaxed);
        let left = self.fails_in.load(Relaxed);
        if left == u64::MAX {
            return Ok(());
        }
        self.fails_in.store(if left == 0 { u64::MAX } else { left - 1 }, Relaxed);
        let planned = || Error::OutOfMemory { what: "a planned failure".into(), wanted: 1, free: 0 };
        if left == 0 { Err(planned()) } else { Ok(()) }
    }
}

/// Words that closures of a recorded step share.
#[derive(Debug, Clone)]
pub struct NullMem(Arc<NullWords>);

#[derive(Debug)]
struct NullWords {
    words: Box<[AtomicU32]>,
    /// Where what they take goes back to.
    taken: Option<(Arc<AtomicU64>, u64)>,
}

impl std::ops::Deref for NullWords {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        &self.words
    }
}

impl Drop for NullWords {
    fn drop(&mut self) {
        if let Some((free, bytes)) = &self.taken {
            free.fetch_add(*bytes, Relaxed);
        }
    }
}

impl DeviceMem for NullMem {
    fn bytes(&self) -> usize {
        4 * self.0.len()
    }
}

/// What is known of a weight.
#[derive(Debug)]
pub struct NullWeight(WeightInfo);

impl Weight for NullWeight {
    fn info(&self) -> &WeightInfo {
        &self.0
    }
}

/// The only kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NullKernel;

impl fmt::Display for NullKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("null")
    }
}

impl Device for Null {
    type Mem = NullMem;
    type Weight = NullWeight;
    type AttnPlan = ();

    /// A tag per slot.
    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        (4 * layout.slots(), 4)
    }
}

impl Backend for Null {
    type Device = Self;
    type Kernel = NullKernel;
    type Graph = NullGraph;
    type Stream = NullStream;

    fn name(&self) -> &str {
        "null"
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn numerics(&self) -> Numerics {
        Numerics { mode: Mode::Reference, madd: Madd::Fused }
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(self.memory.as_ref()?.free.load(Relaxed))
    }
    fn alloc(&self, bytes: usize) -> Result<NullMem> {
        self.allocated.fetch_add(bytes as u64, Relaxed);
        let taken = match &self.memory {
            Some(Memory { free, missing }) => {
                let wanted = (bytes as u64).next_multiple_of(GRANULE);
                let left = |have: u64| have.checked_sub(wanted).filter(|left| left >= missing);
                if let Err(have) = free.fetch_update(Relaxed, Relaxed, left) {
                    let what = "a buffer".into();
                    return Err(Error::OutOfMemory { what, wanted, free: have.saturating_sub(*missing) });
                }
                Some((free.clone(), wanted))
            }
            None => None,
        };
        let words = (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect();
        Ok(NullMem(Arc::new(NullWords { words, taken })))
    }
    fn stream(self: &Arc<Self>) -> Result<NullStream> {
        Ok(NullStream::new(self.clone()))
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(HostGroup::new(board)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, _: &[Signature]) -> Result<NullWeight> {
        Ok(NullWeight(weight.info().clone()))
    }
    fn attention_plan(&self, _: StepShape) -> Result<()> {
        Ok(())
    }
    fn coverage(&self, signature: &Signature) -> Coverage<NullKernel> {
        match signature.op.is_fused() {
            true => Coverage::Composed("tags pass op by op".into()),
            false => Coverage::Native(NullKernel),
        }
    }
}
