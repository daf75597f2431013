//! The CPU's queue: an op runs when it is enqueued, or is captured.
//!
//! A graph is a list of ops, each holding its memory and weights alive. Replay runs the list: what
//! changes from step to step is read from memory then, exactly as on a device, so the rule that nothing of it
//! may sit in host-side arguments is tested here from the first day.

use crate::{Cpu, CpuMem};
use bytemuck::Pod;
use engraft_core::backend::Stream;
use engraft_core::mem::{BufMut, BufRef, StepShape};
use engraft_core::{Error, Result};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

type Captured = Box<dyn Fn(&Cpu) -> Result<()>>;

/// A captured step: a list of ops.
pub struct CpuGraph {
    ops: Vec<Captured>,
}

impl CpuGraph {
    /// Ops captured.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing was captured.
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
    capture: Option<Vec<Captured>>,
    /// Buffers of reads that were collected, for later ones: a step allocates nothing once they are as large
    /// as its reads.
    spare: Vec<Vec<u8>>,
}

/// Reads that a step has in flight at most; buffers beyond them are freed.
const SPARE: usize = 8;

/// A read in flight: the bytes as they were when it was enqueued.
pub struct Ticket {
    bytes: Vec<u8>,
}

impl Ticket {
    /// Where the bytes lie, for tests that see buffers reused.
    pub fn start(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

impl CpuStream {
    pub(crate) fn new(cpu: Arc<Cpu>) -> Self {
        Self { cpu, capture: None, spare: Vec::with_capacity(SPARE) }
    }

    pub(crate) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Runs an op, or captures it.
    pub(crate) fn enqueue(&mut self, op: impl Fn(&Cpu) -> Result<()> + 'static) -> Result<()> {
        match &mut self.capture {
            Some(ops) => {
                ops.push(Box::new(op));
                Ok(())
            }
            None => op(&self.cpu),
        }
    }

    fn not_while_capturing(&self, what: &str) -> Result<()> {
        match self.capture {
            Some(_) => Err(Error::internal(format!("{what} inside a captured region"))),
            None => Ok(()),
        }
    }

    /// An empty buffer: the smallest spare one with room for `bytes`, else any.
    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let fits = |b: &(usize, usize)| b.1 >= bytes;
        let sizes = self.spare.iter().map(Vec::capacity).enumerate();
        let best = sizes.filter(fits).min_by_key(|(_, size)| *size).map(|(i, _)| i);
        let mut buffer = match best {
            Some(i) => self.spare.swap_remove(i),
            None => self.spare.pop().unwrap_or_default(),
        };
        buffer.clear();
        buffer
    }
}

impl Stream<Cpu> for CpuStream {
    type Event = Instant;
    type Ticket = Ticket;

    fn upload<T: Pod>(&mut self, src: &[T], dst: BufMut<'_, CpuMem, T>) -> Result<()> {
        self.not_while_capturing("upload")?;
        if src.len() > dst.len() {
            return Err(Error::Shape { op: "upload", what: "elements", got: src.len(), want: dst.len() });
        }
        let (bytes, dst): (&[u8], _) = (bytemuck::cast_slice(src), dst.into_ref());
        // SAFETY: a view that exists lies inside its allocation, and this one has room for `src`; it was
        // borrowed to write, so nothing else touches these bytes.
        unsafe {
            let to = dst.mem().start().add(dst.offset() * size_of::<T>());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    fn download<T: Pod>(&mut self, src: BufRef<'_, CpuMem, T>) -> Result<Ticket> {
        self.not_while_capturing("download")?;
        let mut bytes = self.buffer(src.len() * size_of::<T>());
        // SAFETY: a view that exists lies inside its allocation; while it is borrowed nothing writes there.
        bytes.extend_from_slice(unsafe {
            let from = src.mem().start().add(src.offset() * size_of::<T>());
            std::slice::from_raw_parts(from, src.len() * size_of::<T>())
        });
        Ok(Ticket { bytes })
    }

    fn collect<T: Pod>(&mut self, ticket: Ticket, out: &mut [T]) -> impl Future<Output = Result<()>> {
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        let Ticket { bytes } = ticket;
        let outcome = match out.get_mut(..bytes.len()) {
            Some(front) => {
                front.copy_from_slice(&bytes);
                Ok(())
            }
            None => Err(Error::Shape { op: "collect", what: "bytes", got: out.len(), want: bytes.len() }),
        };
        if self.spare.len() < SPARE {
            self.spare.push(bytes);
        }
        std::future::ready(outcome)
    }

    /// A step must fit the bounds that its schedule was made for; there is nothing else to plan.
    fn plan_attention(&mut self, shape: StepShape, plan: &mut CpuPlan) -> Result<()> {
        if shape.fits(&plan.bound) {
            return Ok(());
        }
        Err(Error::internal(format!("a step of {shape:?} in a schedule for {:?}", plan.bound)))
    }

    fn submit(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn record(&mut self) -> Result<Instant> {
        self.not_while_capturing("a timestamp")?;
        Ok(Instant::now())
    }

    fn elapsed_us(&mut self, from: &Instant, to: &Instant) -> Result<f64> {
        Ok(to.duration_since(*from).as_secs_f64() * 1e6)
    }

    fn begin_capture(&mut self) -> Result<()> {
        self.not_while_capturing("a capture")?;
        self.capture = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self) -> Result<CpuGraph> {
        match self.capture.take() {
            Some(ops) => Ok(CpuGraph { ops }),
            None => Err(Error::internal("a capture ended that had not begun")),
        }
    }

    unsafe fn replay(&mut self, graph: &CpuGraph) -> Result<()> {
        self.not_while_capturing("a replay")?;
        graph.ops.iter().try_for_each(|op| op(&self.cpu))
    }
}
