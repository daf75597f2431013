//! Weights on their way to the device: several readers pack pieces of a weight into pinned memory, each
//! while the copies of what it packed before are under way.
//!
//! A reader has a queue of its own and two slots. It fills a slot again after the event behind the slot's
//! last copy, so reading the file, reordering and copying overlap, and no more host memory is taken than the
//! slots of all readers have ([`SLOT`] times [`SLOTS`] times [`MOST_READERS`], 64 MiB, unless one piece is
//! larger). What is uploaded is there when [`Cuda::upload`] returns: streams need not wait for it.

use crate::device::Cuda;
use crate::driver::check;
use crate::mem::lock;
use crate::staging::{Reader, SLOT, SLOTS, Slot};
use cudarc::driver::sys;
use engraft_core::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Readers at most: so many keep up with the bus.
const MOST_READERS: usize = 8;
/// Bytes that are worth a thread.
const WORTH_A_READER: usize = 1 << 20;

/// Where the pieces of a weight go: `bytes` of each piece in this plane, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plane {
    /// Device address of the first piece.
    pub address: u64,
    /// Bytes of a piece; 0: the plane is not there.
    pub bytes: usize,
}

/// Writes pieces to both planes' bytes; false where sizes do not go together.
pub(crate) type Fill<'f> = dyn Fn(Range<usize>, &mut [u8], &mut [u8]) -> bool + Sync + 'f;

/// What is uploaded.
struct Job<'f> {
    planes: [Plane; 2],
    pieces: usize,
    /// Pieces of a slot.
    at_once: usize,
    next: AtomicUsize,
    fill: &'f Fill<'f>,
}

impl Reader {
    /// A slot of at least `bytes` that no copy reads any more.
    fn slot(&mut self, gpu: &Cuda, bytes: usize) -> Result<&Slot> {
        self.turn = (self.turn + 1) % SLOTS;
        if self.slots.len() < SLOTS {
            self.slots.push(Slot::new(bytes.max(SLOT))?);
            self.turn = self.slots.len() - 1;
            return Ok(&self.slots[self.turn]);
        }
        // SAFETY: the event lives as long as its slot.
        gpu.wait_for("a copy", || unsafe { sys::cuEventQuery(self.slots[self.turn].event) })?;
        if self.slots[self.turn].bytes < bytes {
            let larger = Slot::new(bytes)?;
            std::mem::replace(&mut self.slots[self.turn], larger).free();
        }
        Ok(&self.slots[self.turn])
    }

    /// Takes pieces until none is left.
    fn work(&mut self, gpu: &Cuda, job: &Job<'_>) -> Result<()> {
        gpu.bind()?;
        loop {
            let first = job.next.fetch_add(job.at_once, Ordering::Relaxed);
            if first >= job.pieces {
                break;
            }
            let pieces = first..job.pieces.min(first + job.at_once);
            let [codes, scales] = job.planes.map(|plane| plane.bytes * pieces.len());
            let queue = self.queue;
            let slot = self.slot(gpu, codes + scales)?;
            // SAFETY: the slot has as many bytes, no copy reads them, and this thread alone has the reader.
            let bytes = unsafe { std::slice::from_raw_parts_mut(slot.start, codes + scales) };
            let (codes, scales) = bytes.split_at_mut(codes);
            if !(job.fill)(pieces, codes, scales) {
                return Err(Error::internal("a weight's bytes and its packed layout do not go together"));
            }
            for (plane, bytes) in job.planes.iter().zip([codes, scales]).filter(|(plane, _)| plane.bytes > 0)
            {
                let to = plane.address + (first * plane.bytes) as u64;
                // SAFETY: inside the allocation, which has room for all pieces; the slot's bytes stay until
                // its event.
                let code =
                    unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), queue) };
                check(code, "an upload")?;
            }
            // SAFETY: both live.
            check(unsafe { sys::cuEventRecord(slot.event, queue) }, "cuEventRecord")?;
        }
        // SAFETY: the queue lives.
        unsafe { gpu.wait_for_stream("a copy", self.queue) }
    }
}

impl Cuda {
    /// Uploads `pieces` pieces of a weight, as `fill` writes them; they are there when this returns.
    pub(crate) fn upload(&self, planes: [Plane; 2], pieces: usize, fill: &Fill<'_>) -> Result<()> {
        self.bind()?;
        let piece = planes.iter().map(|plane| plane.bytes).sum::<usize>().max(1);
        let count = readers(pieces * piece);
        let share = pieces.div_ceil(count).max(1);
        let at_once = (SLOT / piece).clamp(1, share);
        let job = Job { planes, pieces, at_once, next: AtomicUsize::new(0), fill };
        let mut readers = lock(&self.staging.0);
        while readers.len() < count {
            readers.push(Reader::new()?);
        }
        let done = match &mut readers[..count] {
            [one] => one.work(self, &job),
            all => std::thread::scope(|scope| {
                let running: Vec<_> =
                    all.iter_mut().map(|reader| scope.spawn(|| reader.work(self, &job))).collect();
                let ends = running.into_iter().map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::internal("packing a weight panicked")))
                });
                ends.fold(Ok(()), Result::and)
            }),
        };
        done.map_err(|e| self.lose(e))
    }

    /// Gives the readers' memory back; the next upload makes it anew.
    pub(crate) fn release_staging(&self) -> Result<()> {
        self.bind()?;
        for reader in lock(&self.staging.0).drain(..) {
            // SAFETY: the queue lives. A copy that failed may be under way still: it must end before its
            // memory goes.
            unsafe { self.wait_for_stream("a copy", reader.queue)? };
            reader.slots.into_iter().for_each(Slot::free);
            // SAFETY: made above, destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(reader.queue) };
        }
        Ok(())
    }
}

/// Readers for so many bytes: placing values goes at the speed of a core, not of memory.
fn readers(bytes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(MOST_READERS).min(bytes / WORTH_A_READER).max(1)
}
