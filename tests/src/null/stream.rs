//! The queue: an op runs when it is enqueued, or is recorded.

use super::{Null, NullMem};
use bytemuck::Pod;
use engraft_core::backend::Stream;
use engraft_core::mem::{BufMut, BufRef, StepShape};
use engraft_core::{Error, Result};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

type Recorded = Box<dyn Fn() -> Result<()>>;

/// A recorded list of ops.
pub struct NullGraph(Vec<Recorded>);

/// The queue of [`Null`].
pub struct NullStream {
    null: Arc<Null>,
    recording: Option<Vec<Recorded>>,
    spare: Vec<Vec<u32>>,
}

impl NullStream {
    pub(super) fn new(null: Arc<Null>) -> Self {
        Self { null, recording: None, spare: Vec::new() }
    }

    /// Whether ops carry tags.
    pub(super) fn carries(&self) -> bool {
        self.null.tags
    }

    pub(super) fn null(&self) -> &Arc<Null> {
        &self.null
    }

    pub(super) fn enqueue(&mut self, op: impl Fn() -> Result<()> + 'static) -> Result<()> {
        self.null.count()?;
        match &mut self.recording {
            Some(ops) => {
                ops.push(Box::new(op));
                Ok(())
            }
            None => op(),
        }
    }

    fn not_while_recording(&self) -> Result<()> {
        match self.recording {
            Some(_) => Err(Error::internal("a copy inside a captured region")),
            None => Ok(()),
        }
    }
}

/// The words of a view of elements of whole words.
fn words<T>(offset: usize, len: usize) -> std::ops::Range<usize> {
    let size = size_of::<T>() / 4;
    offset * size..(offset + len) * size
}

impl Stream<Null> for NullStream {
    type Event = Instant;
    type Ticket = Vec<u32>;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, NullMem, T>) -> Result<()> {
        self.not_while_recording()?;
        self.null.count()?;
        let to = dst.as_ref();
        let room = &to.mem().0[words::<T>(to.offset(), to.len())];
        let src: &[u32] = bytemuck::cast_slice(src);
        room.iter().zip(src).for_each(|(to, from)| to.store(*from, Relaxed));
        Ok(())
    }
    fn download<T: Pod>(&mut self, src: BufRef<'_, NullMem, T>) -> Result<Vec<u32>> {
        self.not_while_recording()?;
        let mut ticket = self.spare.pop().unwrap_or_default();
        ticket.extend(src.mem().0[words::<T>(src.offset(), src.len())].iter().map(|w| w.load(Relaxed)));
        Ok(ticket)
    }
    fn collect<T: Pod>(&mut self, mut ticket: Vec<u32>, out: &mut [T]) -> impl Future<Output = Result<()>> {
        let out: &mut [u32] = bytemuck::cast_slice_mut(out);
        out[..ticket.len()].copy_from_slice(&ticket);
        ticket.clear();
        self.spare.push(ticket);
        self.null.wait_now_and_then();
        std::future::ready(self.null.count())
    }
    fn plan_attention(&mut self, _: StepShape, _: &mut ()) -> Result<()> {
        Ok(())
    }
    fn submit(&mut self) -> Result<()> {
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn record(&mut self) -> Result<Instant> {
        Ok(Instant::now())
    }
    fn elapsed_us(&mut self, from: &Instant, to: &Instant) -> Result<f64> {
        Ok(to.duration_since(*from).as_secs_f64() * 1e6)
    }
    fn begin_capture(&mut self) -> Result<()> {
        self.recording = Some(Vec::new());
        Ok(())
    }
    fn end_capture(&mut self) -> Result<NullGraph> {
        self.recording.take().map(NullGraph).ok_or_else(|| Error::internal("nothing is being recorded"))
    }
    unsafe fn replay(&mut self, graph: &NullGraph) -> Result<()> {
        self.null.count()?;
        graph.0.iter().try_for_each(|op| op())
    }
}
