//! The backend contract.
//!
//! **Who validates.** Model code calls ops through [`Exec`] alone; it checks shapes and element types once. A backend
//! receives calls that go together and stays thin. What only the device knows (lost, out of memory) is an error of
//! the call, or of the next [`Stream::sync`] for faults that surface later; never silence.
//!
//! **Order.** A [`Stream`] runs its ops as if one after the other. Nothing else synchronises: ops only enqueue.
//!
//! **What changes per step lives in device buffers** ([`crate::mem::StepBuffers`], page tables, sampling tables),
//! never in host-side arguments, so that every decode step can be captured and replayed.
//!
//! **Allocation.** Outputs are out-parameters. A step allocates nothing on the host after warm-up, nor on the device.
//!
//! **Fused ops have composed defaults**: free functions in [`composed`], one file per stem. A backend overrides what
//! it has a kernel for. `coverage` and the op's body share one `select` inside the backend, so the report cannot lie;
//! a fallback always carries its reason. `Composed<B>` runs any backend with all defaults.
//!
//! **Threads.** Streams, graphs and communicators stay on their thread (one rank = one thread). The outside holds a
//! channel.
//!
//! **Numbers.** `docs/numerics.md`: an op reads its inputs in their element type, computes in f32 and rounds once.

mod calls;
mod comm;
pub mod composed;
mod exec;
mod forced;
mod fused;
mod primitive;
mod solo;
mod stream;
mod weight;

pub use crate::kv::{KvLayout, KvView, Table};
pub use calls::{AttnCall, Groups, NormCall, QkvCall, RopeView, RouteMut, SampleCall};
pub use comm::Communicator;
pub use exec::{Exec, Linear, LinearRef};
pub use forced::Composed;
pub use fused::FusedOps;
pub use primitive::PrimitiveOps;
pub use solo::Solo;
pub use stream::{Stream, block_on};
pub use weight::{HostWeight, Prepared, WeightUse};

use crate::mem::{DeviceMem, Float, StepShape, WeightFormat};
use crate::{Result, numerics::Numerics};
use std::sync::Arc;

/// A device and what it can do; everything that runs on it goes through one of its streams.
pub trait Backend: Sized + Send + Sync + 'static {
    /// One allocation.
    type Mem: DeviceMem;
    /// A packed weight; its layout is the backend's secret.
    type Weight: Send + Sync + 'static;
    /// A recorded step.
    type Graph;
    /// The schedule of one step's attention, shared by all layers.
    type AttnPlan;
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
    fn alloc(&self, bytes: usize) -> Result<Self::Mem>;
    /// Opens a stream.
    fn stream(self: &Arc<Self>) -> Result<Self::Stream>;
    /// A communicator of one rank.
    fn solo(self: &Arc<Self>) -> Result<Self::Comm>;
    /// Packs a host weight `[rows, cols]` for its use.
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<Self::Weight>;
    /// Host bytes that an allocation for a KV slab needs: layouts may pad. `(k, v)` of one layer.
    fn kv_bytes(&self, layout: &KvLayout) -> (usize, usize);
    /// An attention schedule for steps up to `bound`.
    fn attention_plan(&self, bound: StepShape) -> Result<Self::AttnPlan>;
    /// How an op with this signature would run.
    fn coverage(&self, op: Op, signature: &Signature) -> Coverage;
    /// Makes kernels ready by the names that [`Backend::coverage`] gave, all at once, so that the first steps need not wait
    /// for one after the other. What is not named is made ready when it is first used; doing nothing is right, too.
    ///
    /// # Errors
    /// Those that the kernels' first use would have.
    fn ready(&self, _kernels: &[&str]) -> Result<()> {
        Ok(())
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

/// The ops, by stem, for coverage and profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[allow(missing_docs)] // Reason: the names are those of the trait methods, documented there.
pub enum Op {
    Embed,
    Linear,
    Norm,
    Add,
    Activate,
    Gate,
    Scale,
    Route,
    ExpertLinear,
    Combine,
    HeadNorm,
    Rope,
    KvAppend,
    KvCopyPages,
    Attend,
    AttendDense,
    GatherRows,
    Convert,
    Patch,
    MarkSeen,
    Argmax,
    Sample,
    EmbedAdd,
    AddNorm,
    LinearAct,
    GatedLinear,
    LinearAdd,
    QkvRopeAppend,
    ReduceAddNorm,
}

impl Op {
    /// The method's name.
    pub fn name(self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::Linear => "linear",
            Op::Norm => "norm",
            Op::Add => "add",
            Op::Activate => "activate",
            Op::Gate => "gate",
            Op::Scale => "scale",
            Op::Route => "route",
            Op::ExpertLinear => "expert_linear",
            Op::Combine => "combine",
            Op::HeadNorm => "head_norm",
            Op::Rope => "rope",
            Op::KvAppend => "kv_append",
            Op::KvCopyPages => "kv_copy_pages",
            Op::Attend => "attend",
            Op::AttendDense => "attend_dense",
            Op::GatherRows => "gather_rows",
            Op::Convert => "convert",
            Op::Patch => "patch",
            Op::MarkSeen => "mark_seen",
            Op::Argmax => "argmax",
            Op::Sample => "sample",
            Op::EmbedAdd => "embed_add",
            Op::AddNorm => "add_norm",
            Op::LinearAct => "linear_act",
            Op::GatedLinear => "gated_linear",
            Op::LinearAdd => "linear_add",
            Op::QkvRopeAppend => "qkv_rope_append",
            Op::ReduceAddNorm => "reduce_add_norm",
        }
    }
}

/// What an op's kernel choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Signature {
    /// Element type of the activations.
    pub dtype: Float,
    /// Format of the weight, if the op has one.
    pub weight: Option<WeightFormat>,
    /// Inner size (K of a linear, head width of attention).
    pub inner: usize,
    /// Outer size (N of a linear, columns of a norm).
    pub outer: usize,
}

/// How an op runs on a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage {
    /// By this kernel.
    Native(String),
    /// By its composed default, for this reason.
    Composed(String),
    /// Not at all, for this reason: a model that needs it is refused before its weights are read.
    Missing(String),
}
