//! The ordered queue of work: transfers, events, capture.

use super::{AttnPlan, Backend, Mem};
use crate::mem::{BufMut, BufRef, StepShape};
use crate::ops::Run;
use crate::{Error, Result};
use bytemuck::Pod;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

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

    /// Starts recording instead of running; callers use [`Stream::capture`].
    #[doc(hidden)]
    fn begin_capture(&mut self) -> Result<()>;
    /// Ends recording.
    #[doc(hidden)]
    fn end_capture(&mut self) -> Result<B::Graph>;

    /// Records what `body` enqueues, without running it; an error inside ends the recording, too.
    fn capture(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<B::Graph> {
        self.begin_capture()?;
        let outcome = body(self);
        let graph = self.end_capture();
        outcome?;
        graph
    }

    /// Enqueues a recorded step.
    ///
    /// # Safety
    /// Every buffer and weight that was touched while recording is alive, at the same address, and not
    /// borrowed for writing by anything but this stream's queue.
    unsafe fn replay(&mut self, graph: &B::Graph) -> Result<()>;
}

/// Runs a future of this crate to its end on this thread, for backends whose waits block inside the poll.
///
/// # Errors
/// `Internal` when the future is still pending: then it needs an executor (the browser's).
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => Err(Error::internal("a read was awaited without an executor")),
    }
}
