//! The traits that name each other: a backend, its streams, the communicators of its ranks.

use super::board::Board;
use crate::Result;
use crate::mem::{BufMut, BufRef, Device, Float, HostWeight, KvFormat, MatMut, StepShape};
use crate::numerics::Numerics;
use crate::ops::{Run, Signature};
use bytemuck::Pod;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::ops::Range;
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
    /// A captured step.
    type Graph;
    /// The ordered queue of work.
    type Stream: Stream<Self>;

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
    /// What rank `_rank` of `_local` on this machine runs on: this backend, another with a share of the host,
    /// or one on another of its devices.
    fn of_rank(self: &Arc<Self>, _rank: usize, _local: usize) -> Result<Arc<Self>> {
        Ok(self.clone())
    }
    /// A communicator for the rank whose place on `board` this is.
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>>;
    /// Packs a host weight `[rows, cols]` for its use. `uses`: the signatures of the ops that will read it,
    /// none where they are not known; whatever they say, every op that takes the weight runs.
    fn prepare_weight(&self, weight: HostWeight<'_>, uses: &[Signature]) -> Result<Weight<Self>>;
    /// An attention schedule for steps up to `bound`.
    fn attention_plan(&self, bound: StepShape) -> Result<AttnPlan<Self>>;
    /// How an op with this signature would run.
    fn coverage(&self, signature: &Signature) -> Coverage<Self::Kernel>;
    /// Makes kernels ready, all at once, so that the first steps need not wait for one after the other, and
    /// lets go of what only loading needed. What is not among them is made ready when it is first used; doing
    /// nothing is right, too.
    ///
    /// # Errors
    /// Those that the kernels' first use would have.
    fn ready(&self, _kernels: &[Self::Kernel]) -> Result<()> {
        Ok(())
    }
    /// Bytes of the device's memory that nothing holds now; none where that is not known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Time spent so far on bringing loaded weights into the order of kernels that first asked for them; none
    /// where [`Backend::prepare_weight`] knew the uses, or does all of it.
    fn packing(&self) -> Duration {
        Duration::ZERO
    }
}

/// An ordered queue of work on a backend; ops go into it by [`Run::run`]. Not `Send` in general; one rank
/// keeps it.
pub trait Stream<B: Backend<Stream = Self>>: Run<B::Device> + Sized {
    /// A point in the queue.
    type Event;
    /// An asynchronous read in flight.
    type Ticket;

    /// Copies host data to the front of `dst`, in order; `src` may be reused when this returns.
    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, Mem<B>, T>) -> Result<()>;
    /// Starts reading `src` as it will be at this point of the queue.
    fn download<T: Pod>(&mut self, src: BufRef<'_, Mem<B>, T>) -> Result<Self::Ticket>;
    /// Waits for a read and copies it to the front of `out`.
    fn collect<T: Pod>(&mut self, ticket: Self::Ticket, out: &mut [T]) -> impl Future<Output = Result<()>>;
    /// Schedules this step's attention, outside any captured region.
    ///
    /// # Errors
    /// `Internal` for a step beyond the bounds that `plan` was made for.
    fn plan_attention(&mut self, shape: StepShape, plan: &mut AttnPlan<B>) -> Result<()>;
    /// Hands enqueued work to the device, where that is a separate act.
    fn submit(&mut self) -> Result<()>;
    /// Waits until all is done; asynchronous faults surface here.
    fn sync(&mut self) -> Result<()>;

    /// Marks this point of the queue.
    fn record(&mut self) -> Result<Self::Event>;
    /// Microseconds between two points that have passed ([`Stream::sync`] first).
    fn elapsed_us(&mut self, from: &Self::Event, to: &Self::Event) -> Result<f64>;

    /// Starts capturing instead of running; callers use [`Stream::capture`].
    #[doc(hidden)]
    fn begin_capture(&mut self) -> Result<()>;
    /// Ends the capture.
    #[doc(hidden)]
    fn end_capture(&mut self) -> Result<B::Graph>;

    /// Captures what `body` enqueues, without running it; an error inside ends the capture, and so does a
    /// panic.
    fn capture(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<B::Graph> {
        self.begin_capture()?;
        let mut capture = OpenCapture::<B> { stream: self, open: true };
        let outcome = body(capture.stream);
        capture.open = false;
        let graph = capture.stream.end_capture();
        outcome?;
        graph
    }

    /// Enqueues a captured step.
    ///
    /// # Safety
    /// Every buffer and weight that the captured ops touch is alive, at the same address, and not
    /// borrowed for writing by anything but this stream's queue.
    unsafe fn replay(&mut self, graph: &B::Graph) -> Result<()>;
}

/// A capture that ends when it is dropped: a panic must not leave a device's capture open.
struct OpenCapture<'s, B: Backend> {
    stream: &'s mut B::Stream,
    open: bool,
}

impl<B: Backend> Drop for OpenCapture<'_, B> {
    fn drop(&mut self) {
        if self.open {
            // The panic says what is wrong.
            let _ = self.stream.end_capture();
        }
    }
}

/// Collectives of a group of ranks: one communicator per rank. Each call takes the stream, so it is an op
/// like any other and can be captured. Every rank makes the same calls in the same order, for as many rows.
pub trait Communicator<B: Backend> {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn world(&self) -> usize;
    /// Whether a step with its exchanges can be captured; the same on all ranks.
    fn is_capturable(&self) -> bool {
        true
    }
    /// `x = sum over ranks of x`, by [`tree_of_ranks`](crate::numerics::tree_of_ranks), with the same bits on
    /// every rank: x `[rows, cols]` f32. A rank that adds nothing has zeros, whatever its x holds.
    ///
    /// # Errors
    /// `Comm`, naming the rank that is missing.
    fn all_reduce(&mut self, stream: &mut B::Stream, x: MatMut<'_, Mem<B>>, adds: bool) -> Result<()>;
    /// Gives every rank the columns of all: x `[rows, cols]`, of which rank `r` has written `columns[r]`.
    /// Where columns of two ranks are the same, so are their values.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    fn all_gather(
        &mut self,
        stream: &mut B::Stream,
        x: MatMut<'_, Mem<B>>,
        columns: &[Range<usize>],
    ) -> Result<()>;
}

/// What a device has.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// The device, for people: adapter, driver, vector instructions.
    pub device: String,
    /// Element types of activations.
    pub dtypes: Vec<Float>,
    /// What keys and values may be kept in.
    pub kv_formats: Vec<KvFormat>,
    /// Whether steps can be captured.
    pub graphs: bool,
    /// Whether the device works on its own, so that a step may be launched before the one before is
    /// collected.
    pub asynchronous: bool,
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
