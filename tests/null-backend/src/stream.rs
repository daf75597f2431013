//! The queue: an op runs when it is enqueued, or is recorded.

use super::steps::{Failure, Steps};
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

/// A read in flight.
#[derive(Debug)]
pub struct NullTicket {
    read: Vec<u32>,
    /// The step that it belongs to.
    step: Option<u64>,
}

/// The queue of [`Null`].
pub struct NullStream {
    null: Arc<Null>,
    recording: Option<Vec<Recorded>>,
    spare: Vec<Vec<u32>>,
    /// Whether it knows the sequences of its steps.
    follows: bool,
    steps: Steps,
}

impl NullStream {
    pub(super) fn new(null: Arc<Null>) -> Self {
        let follows = null.follows();
        Self { null, recording: None, spare: Vec::new(), follows, steps: Steps::default() }
    }

    /// Whether ops carry tags.
    pub(super) fn carries(&self) -> bool {
        self.null.tags
    }

    pub(super) fn null(&self) -> &Arc<Null> {
        &self.null
    }

    pub(super) fn enqueue(&mut self, op: impl Fn() -> Result<()> + 'static) -> Result<()> {
        self.count()?;
        match &mut self.recording {
            Some(ops) => {
                ops.push(Box::new(op));
                Ok(())
            }
            None => op(),
        }
    }

    /// Counts an op or an upload.
    fn count(&mut self) -> Result<()> {
        let Self { null, recording, steps, .. } = self;
        null.count(|| match recording {
            Some(_) => Failure::Capture,
            None => steps.fail(),
        })
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
    type Ticket = NullTicket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, NullMem, T>) -> Result<()> {
        self.not_while_recording()?;
        let to = dst.as_ref();
        if self.follows {
            self.steps.upload(src, to);
        }
        self.count()?;
        let room = &to.mem().0[words::<T>(to.offset(), to.len())];
        let src: &[u32] = bytemuck::cast_slice(src);
        room.iter().zip(src).for_each(|(to, from)| to.store(*from, Relaxed));
        Ok(())
    }
    fn download<T: Pod>(&mut self, src: BufRef<'_, NullMem, T>) -> Result<NullTicket> {
        self.not_while_recording()?;
        let mut read = self.spare.pop().unwrap_or_default();
        read.extend(src.mem().0[words::<T>(src.offset(), src.len())].iter().map(|w| w.load(Relaxed)));
        Ok(NullTicket { read, step: self.steps.current() })
    }
    fn collect<T: Pod>(&mut self, ticket: NullTicket, out: &mut [T]) -> impl Future<Output = Result<()>> {
        let NullTicket { mut read, step } = ticket;
        let out: &mut [u32] = bytemuck::cast_slice_mut(out);
        out[..read.len()].copy_from_slice(&read);
        read.clear();
        self.spare.push(read);
        self.null.wait_now_and_then();
        std::future::ready(self.null.count(|| self.steps.fail_read(step)))
    }
    fn plan_attention(&mut self, shape: StepShape, _: &mut ()) -> Result<()> {
        if self.follows { self.steps.begin(shape) } else { Ok(()) }
    }
    fn submit(&mut self) -> Result<()> {
        self.steps.launch();
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
        self.count()?;
        graph.0.iter().try_for_each(|op| op())
    }
}
