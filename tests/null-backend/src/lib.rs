//! A backend that computes nothing and knows whose every page is.
//!
//! A row carries one word, its *tag*: that of an embedded row is its token's, and every op passes tags on.
//! What is appended to a page is the tag with its position, so attention can fold what it finds over a
//! sequence's pages, position by position, into the tag of its row, and the sampler takes the token from
//! that. From the second layer on the tag of a slot is that of all that lies before it. The right
//! continuation of a prompt is a pure function of the prompt ([`Oracle`]): a page that is shared, given away
//! or entered in the table where it should not be changes a token, and so does a position that is rotated as
//! another one.
//!
//! Tokens seen count, too: of a sequence with a repetition penalty they are mixed into what is sampled.
//!
//! Memory may be limited ([`Null::with_memory`]); every allocation takes whole pieces of it, as drivers hand
//! it out. An op, an upload or a read may be planned to fail or to panic ([`Null::fail_in`]), reads to take
//! long ([`Null::wait_every`]). The time that a device would have taken is counted ([`Null::spent`]). Where
//! steps are followed ([`Null::follow_steps`]) every planned failure says which sequences it may end.
//!
//! Without tags ([`Null::idle`]) ops do nothing at all, and what a step takes is the host's own time.

mod ops;
mod oracle;
mod steps;
mod stream;

pub use oracle::Oracle;
pub use steps::{Failure, Name};
pub use stream::{NullGraph, NullStream, NullTicket};

use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, HostGroup};
use engraft_core::mem::{
    Device, DeviceMem, Float, HostWeight, KvFormat, KvLayout, StepShape, Weight, WeightInfo,
};
use engraft_core::numerics::{Madd, Mode, Numerics};
use engraft_core::ops::Signature;
use engraft_core::{Error, Result};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The backend.
#[derive(Debug)]
pub struct Null {
    caps: Caps,
    tags: bool,
    /// Ops, uploads and reads until one fails; [`u64::MAX`]: none does.
    fails_in: AtomicU64,
    /// How: an index of [`FAULTS`].
    fault: AtomicU32,
    /// Of so many reads one takes long; 0: none.
    waits_every: AtomicU64,
    /// How long, in nanoseconds.
    waits: AtomicU64,
    /// What steps, tokens and keys cost, in nanoseconds; and the sum so far.
    costs: Costs,
    spent: AtomicU64,
    /// Ops, uploads and reads so far.
    counted: AtomicU64,
    /// Bytes of all allocations so far.
    allocated: AtomicU64,
    /// Whether queues know the sequences of their steps.
    follows: AtomicBool,
    /// Failures by an error that were planned and have happened, where steps are followed.
    failures: Mutex<Vec<Failure>>,
    /// What there is.
    memory: Option<Memory>,
}

/// How an op may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// By an error that ends the requests of its step.
    Error,
    /// By the loss of the device.
    Lost,
    /// By a panic.
    Panic,
}

const FAULTS: [Fault; 3] = [Fault::Error, Fault::Lost, Fault::Panic];
/// What planned failures say.
pub const PLANNED: &str = "a planned failure";

/// What a device would take, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// A step.
    pub step: u64,
    /// A token of it.
    pub token: u64,
    /// A key that a sequence of it reads, in one layer.
    pub key: u64,
}

/// Memory that has an end.
#[derive(Debug, Clone)]
struct Memory {
    free: Arc<AtomicU64>,
    /// Of what it says is free, that much is not there.
    missing: u64,
}

/// How long a read takes that takes long.
const WAIT: Duration = Duration::from_micros(100);

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

    /// Carries tags; steps cost so much.
    pub fn with_costs(costs: Costs) -> Arc<Self> {
        Arc::new(Self { costs, ..Self::with(true, None) })
    }

    fn with(tags: bool, memory: Option<Memory>) -> Self {
        let caps = Caps {
            device: "none".into(),
            dtypes: vec![Float::F32],
            kv_formats: KvFormat::PLAIN.to_vec(),
            graphs: true,
            asynchronous: true,
            memory_bytes: None,
            slab_bytes: None,
        };
        let [counted, allocated, waits_every, spent] = [const { AtomicU64::new(0) }; 4];
        let waits = AtomicU64::new(WAIT.as_nanos() as u64);
        let (fails_in, fault) = (AtomicU64::new(u64::MAX), AtomicU32::new(0));
        let costs = Costs::default();
        let (follows, failures) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        Self {
            caps,
            tags,
            fails_in,
            fault,
            waits_every,
            waits,
            costs,
            spent,
            counted,
            allocated,
            follows,
            failures,
            memory,
        }
    }

    /// Ops, uploads and reads so far.
    pub fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    /// Bytes of all allocations so far.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Lets the op, upload or read after so many others fail by an error, once.
    pub fn fail_in(&self, ops: u64) {
        self.fault_in(ops, Fault::Error);
    }

    /// Lets the op, upload or read after so many others fail, once.
    pub fn fault_in(&self, ops: u64, fault: Fault) {
        self.fault.store(FAULTS.iter().position(|other| *other == fault).unwrap_or(0) as u32, Relaxed);
        self.fails_in.store(ops, Relaxed);
    }

    /// Whether the failure that was planned last has happened.
    pub fn has_failed(&self) -> bool {
        self.fails_in.load(Relaxed) == u64::MAX
    }

    /// Lets the queues of engines that are made from now on know the sequences of their steps, so that
    /// [`Null::failures`] says whom a failure may end.
    pub fn follow_steps(&self) {
        self.follows.store(true, Relaxed);
    }

    /// Where the failures by an error have happened so far that were planned; none where steps are not
    /// followed.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets one of so many reads take long; 0: none.
    pub fn wait_every(&self, reads: u64) {
        self.waits_every.store(reads, Relaxed);
    }

    /// Lets every read take so long; zero: none takes long.
    pub fn wait_for(&self, time: Duration) {
        self.waits.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        self.wait_every(u64::from(!time.is_zero()));
    }

    /// Nanoseconds that a device would have taken so far.
    pub fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    fn spend_on_tokens(&self, tokens: u64) {
        self.spent.fetch_add(self.costs.step + self.costs.token * tokens, Relaxed);
    }

    fn spend_on_keys(&self, keys: u64) {
        self.spent.fetch_add(self.costs.key * keys, Relaxed);
    }

    fn wait_now_and_then(&self) {
        let every = self.waits_every.load(Relaxed);
        if every > 0 && self.counted().is_multiple_of(every) {
            std::thread::sleep(Duration::from_nanos(self.waits.load(Relaxed)));
        }
    }

    fn follows(&self) -> bool {
        self.follows.load(Relaxed)
    }

    /// Counts an op, an upload or a read; `place` says where one is that fails.
    fn count(&self, place: impl FnOnce() -> Failure) -> Result<()> {
        self.counted.fetch_add(1, Relaxed);
        let left = self.fails_in.load(Relaxed);
        if left == u64::MAX {
            return Ok(());
        }
        // A plan that is made meanwhile counts.
        let next = if left == 0 { u64::MAX } else { left - 1 };
        if self.fails_in.compare_exchange(left, next, Relaxed, Relaxed).is_err() || left > 0 {
            return Ok(());
        }
        match FAULTS[self.fault.load(Relaxed) as usize] {
            Fault::Error => {
                if self.follows() {
                    self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(place());
                }
                Err(Error::OutOfMemory { what: PLANNED.into(), wanted: 1, free: 0 })
            }
            Fault::Lost => Err(Error::DeviceLost { what: PLANNED.into() }),
            // As `panic!`, without its words on standard error.
            Fault::Panic => std::panic::resume_unwind(Box::new(PLANNED)),
        }
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
