//! The backend contract.
//!
//! **Who validates.** A backend is reached by [`Stream`]s alone, and they run
//! [`Checked`](crate::ops::Checked) ops alone, which only the core's check makes: operands lie inside their
//! memory and go together, and no two views to write share memory. A backend stays thin. What only the device
//! knows (lost, out of memory) is an error of the call, or of the next [`Stream::sync`] for faults that
//! surface later; never silence.
//!
//! **Order.** A [`Stream`] runs its ops as if one after the other. Nothing else synchronises: ops only
//! enqueue. Streams of one backend never race: work on one that follows work on another in the program
//! follows it on the device.
//!
//! **What changes per step lives in device buffers** ([`crate::mem::StepBuffers`], page tables, sampling
//! tables), never in host-side arguments, so that every decode step can be captured and replayed.
//!
//! **Allocation.** Outputs are operands. A step allocates nothing on the host after warm-up, nor on the
//! device.
//!
//! **Fused ops have compositions** ([`crate::ops`]). A backend has a kernel for some of them and composes
//! the others. [`Backend::coverage`] and the op's body share one choice of kernel inside the backend, so the
//! report cannot lie; a composition always carries its reason. [`Composed`] runs any backend with
//! compositions alone.
//!
//! **Threads.** Streams, graphs and communicators stay on their thread (one rank = one thread). The outside
//! holds a channel.
//!
//! **Numbers.** `docs/numerics.md`: an op reads its inputs in their element type, computes in f32 and rounds
//! once.

mod comm;
mod composed;
mod solo;
mod stream;

pub use comm::Communicator;
pub use composed::{Composed, ComposedComm, ComposedStream};
pub use solo::Solo;
pub use stream::{Stream, block_on};

use crate::Result;
use crate::mem::{Device, Float, HostWeight, StepShape};
use crate::numerics::Numerics;
use crate::ops::Signature;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// Memory of a backend's device.
pub type Mem<B> = <<B as Backend>::Device as Device>::Mem;
/// A prepared weight of a backend's device.
pub type Weight<B> = <<B as Backend>::Device as Device>::Weight;
/// An attention schedule of a backend's device.
pub type AttnPlan<B> = <<B as Backend>::Device as Device>::AttnPlan;

/// A device and what it can do; everything that runs on it goes through one of its streams.
pub trait Backend: Sized + Send + Sync + 'static {
    /// The types that ops carry; of a wrapper those of what it wraps.
    type Device: Device;
    /// The key of a kernel: what [`Backend::coverage`] answers and [`Backend::ready`] takes; shown in plans.
    type Kernel: fmt::Display + fmt::Debug + Clone + Eq + Hash + Send + Sync;
    /// A recorded step.
    type Graph;
    /// The ordered queue of work.
    type Stream: Stream<Self>;
    /// Collectives of this backend's ranks.
    type Comm: Communicator<Self>;

    /// Name as users write it: `cpu`, `cuda:1`, `wgpu:llvmpipe`.
    fn name(&self) -> &str;
    /// What the device has.
    fn caps(&self) -> &Caps;
    /// The promise about bits that this instance keeps.
    fn numerics(&self) -> Numerics;
    /// Allocates `bytes`, zeroed.
    fn alloc(&self, bytes: usize) -> Result<Mem<Self>>;
    /// Opens a stream.
    fn stream(self: &Arc<Self>) -> Result<Self::Stream>;
    /// A communicator of one rank.
    fn solo(self: &Arc<Self>) -> Result<Self::Comm>;
    /// Packs a host weight `[rows, cols]` for its use.
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<Weight<Self>>;
    /// An attention schedule for steps up to `bound`.
    fn attention_plan(&self, bound: StepShape) -> Result<AttnPlan<Self>>;
    /// How an op with this signature would run.
    fn coverage(&self, signature: &Signature) -> Coverage<Self::Kernel>;
    /// Makes kernels ready, all at once, so that the first steps need not wait for one after the other. What
    /// is not among them is made ready when it is first used; doing nothing is right, too.
    ///
    /// # Errors
    /// Those that the kernels' first use would have.
    fn ready(&self, _kernels: &[Self::Kernel]) -> Result<()> {
        Ok(())
    }
    /// Time spent so far on bringing loaded weights into the order of kernels that first asked for them; none
    /// where [`Backend::prepare_weight`] does all of it.
    fn packing(&self) -> Duration {
        Duration::ZERO
    }
}

/// What a device has.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// The device, for people: adapter, driver, vector instructions.
    pub device: String,
    /// Element types of activations and KV.
    pub dtypes: Vec<Float>,
    /// Whether steps can be captured.
    pub graphs: bool,
    /// Bytes of memory, where known.
    pub memory_bytes: Option<u64>,
    /// Bytes that a layer's keys, or its values, may take; none: as many as there is memory.
    pub slab_bytes: Option<u64>,
}

/// How an op runs on a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage<K> {
    /// By this kernel.
    Native(K),
    /// By its composition, for this reason.
    Composed(String),
    /// Not at all, for this reason: a model that needs it is refused before its weights are read.
    Missing(String),
}
