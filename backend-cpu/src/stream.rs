//! The CPU's queue: an op runs when it is enqueued, or is recorded.
//!
//! A recording is a list of ops, each holding its memory and weights alive. Replay runs the list: what changes from
//! step to step is read from memory then, exactly as on a device, so the rule that nothing of it may sit in host-side
//! arguments is tested here from the first day.

use crate::{Cpu, CpuMem};
use bytemuck::Pod;
use engraft_core::backend::Stream;
use engraft_core::mem::{BufMut, BufRef, DeviceMem, StepShape};
use engraft_core::{Error, Result};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

type Recorded = Box<dyn Fn(&Cpu) -> Result<()>>;

/// A recorded list of ops.
pub struct CpuGraph {
    ops: Vec<Recorded>,
}

impl CpuGraph {
    /// Ops recorded.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// Bounds of the steps that an attention schedule serves; the CPU schedules while it runs.
#[derive(Debug, Clone, Copy)]
pub struct CpuPlan {
    pub(crate) bound: StepShape,
}

/// The CPU's queue.
pub struct CpuStream {
    cpu: Arc<Cpu>,
    recording: Option<Vec<Recorded>>,
}

/// A read under way: the bytes as they were when it was enqueued lie where they lay.
pub struct Ticket {
    mem: CpuMem,
    offset: usize,
    bytes: usize,
}

impl CpuStream {
    pub(crate) fn new(cpu: Arc<Cpu>) -> Self {
        Self { cpu, recording: None }
    }

    /// Runs an op, or records it.
    pub(crate) fn run(&mut self, op: impl Fn(&Cpu) -> Result<()> + 'static) -> Result<()> {
        match &mut self.recording {
            Some(ops) => {
                ops.push(Box::new(op));
                Ok(())
            }
            None => op(&self.cpu),
        }
    }

    fn not_while_recording(&self, what: &str) -> Result<()> {
        match self.recording {
            Some(_) => Err(Error::internal(format!("{what} inside a captured region"))),
            None => Ok(()),
        }
    }
}

impl Stream<Cpu> for CpuStream {
    type Event = Instant;
    type Ticket = Ticket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, CpuMem, T>) -> Result<()> {
        self.not_while_recording("upload")?;
        if src.len() > dst.len {
            return Err(Error::Shape { op: "upload", what: "elements", got: src.len(), want: dst.len });
        }
        let bytes: &[u8] = bytemuck::cast_slice(src);
        // SAFETY: `dst` lies inside its allocation and holds at least `src`; nothing else runs on this stream.
        unsafe {
            let to = dst.mem.start().add(dst.offset * size_of::<T>());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    fn download<T: Pod>(&mut self, src: BufRef<'_, CpuMem, T>) -> Result<Ticket> {
        self.not_while_recording("download")?;
        let (offset, bytes) = (src.offset * size_of::<T>(), src.len * size_of::<T>());
        if offset + bytes > src.mem.bytes() {
            return Err(Error::Shape {
                op: "download",
                what: "bytes",
                got: src.mem.bytes(),
                want: offset + bytes,
            });
        }
        Ok(Ticket { mem: src.mem.clone(), offset, bytes })
    }

    fn collect<T: Pod>(&mut self, ticket: Ticket, out: &mut [T]) -> impl Future<Output = Result<()>> {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        let outcome = if out.len() < ticket.bytes {
            Err(Error::Shape { op: "collect", what: "bytes", got: out.len(), want: ticket.bytes })
        } else {
            // SAFETY: checked against the allocation when the read was enqueued.
            unsafe {
                let from = ticket.mem.start().add(ticket.offset);
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), ticket.bytes);
            }
            Ok(())
        };
        std::future::ready(outcome)
    }

    fn submit(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn record(&mut self) -> Result<Instant> {
        self.not_while_recording("a timestamp")?;
        Ok(Instant::now())
    }

    fn elapsed_us(&mut self, from: &Instant, to: &Instant) -> Result<f64> {
        Ok(to.duration_since(*from).as_secs_f64() * 1e6)
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.not_while_recording("a capture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<CpuGraph> {
        match self.recording.take() {
            Some(ops) => Ok(CpuGraph { ops }),
            None => Err(Error::internal("a capture ended that had not begun")),
        }
    }

    unsafe fn replay(&mut self, graph: &CpuGraph) -> Result<()> {
        self.not_while_recording("a replay")?;
        graph.ops.iter().try_for_each(|op| op(&self.cpu))
    }
}
