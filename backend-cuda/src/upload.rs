//! Weights on their way to the device: several readers pack pieces of a weight into pinned memory, each
//! while the copies of what it packed before are under way.
//!
//! A reader has a queue of its own and two slots. It fills a slot again after the event behind the slot's
//! last copy, so reading the file, reordering and copying overlap, and no more host memory is taken than the
//! slots of all readers have ([`SLOT`] times [`SLOTS`] times [`MOST_READERS`], 64 MiB, unless one piece is
//! larger). When [`Cuda::upload`] returns, the last copies may be under way, out of slots that stay: whoever
//! gives a weight's address to a stream, reads the weight, or gives its memory to others calls
//! [`Cuda::wait_uploads`] first. An upload that failed has waited for them all.

use crate::device::Cuda;
use crate::driver::check;
use crate::mem::lock;
use crate::staging::{Reader, SLOT, SLOTS, Slot};
use cudarc::driver::sys;
use engraft_core::{Error, Result};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Readers at most: so many keep up with the bus.
const MOST_READERS: usize = 8;
/// Bytes that are worth a thread.
const WORTH_A_READER: usize = 1 << 20;
/// Fills that a reader's share takes at least, so that it packs while it copies.
const FILLS: usize = 4;
/// Bytes that are worth a copy of their own.
const WORTH_A_COPY: usize = 256 << 10;

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
        Ok(())
    }
}

impl Cuda {
    /// Uploads `pieces` pieces of a weight, as `fill` writes them; they are there once
    /// [`Cuda::wait_uploads`] has returned.
    pub(crate) fn upload(&self, planes: [Plane; 2], pieces: usize, fill: &Fill<'_>) -> Result<()> {
        self.bind()?;
        let piece = planes.iter().map(|plane| plane.bytes).sum::<usize>().max(1);
        let count = readers(pieces * piece);
        let share = pieces.div_ceil(count).max(1);
        let at_once = (SLOT / piece).min(share.div_ceil(FILLS)).max(WORTH_A_COPY / piece).clamp(1, share);
        let job = Job { planes, pieces, at_once, next: AtomicUsize::new(0), fill };
        let panicked = |_| Err(Error::internal("packing a weight panicked"));
        let mut readers = lock(&self.staging.readers);
        while readers.len() < count {
            readers.push(Reader::new()?);
        }
        self.staging.in_flight.store(true, Ordering::Release);
        let work = || match &mut readers[..count] {
            [one] => one.work(self, &job),
            all => std::thread::scope(|scope| {
                let running: Vec<_> =
                    all.iter_mut().map(|reader| scope.spawn(|| reader.work(self, &job))).collect();
                let ends = running.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
                ends.fold(Ok(()), Result::and)
            }),
        };
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked);
        if done.is_err() {
            // What they write goes back to the pool.
            let _ = self.end_copies(&readers);
        }
        done.map_err(|e| self.lose(e))
    }

    /// Waits for the copies of these readers, which are all.
    fn end_copies(&self, readers: &[Reader]) -> Result<()> {
        for reader in readers {
            // SAFETY: the queue lives.
            unsafe { self.wait_for_stream("a copy", reader.queue)? };
        }
        self.staging.in_flight.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits until all that was uploaded is there.
    pub(crate) fn wait_uploads(&self) -> Result<()> {
        if !self.staging.in_flight.load(Ordering::Acquire) {
            return Ok(());
        }
        self.bind()?;
        self.end_copies(&lock(&self.staging.readers))
    }

    /// Gives the readers' memory back; the next upload makes it anew.
    pub(crate) fn release_staging(&self) -> Result<()> {
        self.bind()?;
        let mut readers = lock(&self.staging.readers);
        // A copy may be under way still: it must end before its memory goes.
        self.end_copies(&readers)?;
        for reader in readers.drain(..) {
            reader.slots.into_iter().for_each(Slot::free);
            // SAFETY: made above, destroyed once.
            let _ = unsafe { sys::cuStreamDestroy_v2(reader.queue) };
        }
        Ok(())
    }

    /// To be called where a weight was packed that was loaded long ago.
    pub(crate) fn packed_late(&self) {
        self.staging.late.store(true, Ordering::Release);
    }

    /// Gives the readers' memory back where they packed such a weight.
    pub(crate) fn release_late(&self) -> Result<()> {
        match self.staging.late.swap(false, Ordering::AcqRel) {
            true => self.release_staging(),
            false => Ok(()),
        }
    }
}

/// Readers for so many bytes: placing values goes at the speed of a core, not of memory.
fn readers(bytes: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(MOST_READERS).min(bytes / WORTH_A_READER).max(1)
}
