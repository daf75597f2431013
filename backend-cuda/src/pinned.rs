//! Host memory that the device reads and writes itself: the ring that uploads go through, and buffers to read
//! back into.
//!
//! A copy from pinned memory takes place when its turn comes. So a slot of the ring is filled again only
//! after the event behind its last copy, and a read-back buffer belongs to its ticket until that is
//! collected.

use crate::device::Cuda;
use crate::driver::check;
use cudarc::driver::sys::{self, CUevent_flags_enum, CUstream};
use engraft_core::Result;
use std::ptr::null_mut;
use std::sync::Arc;

/// A point in a queue.
#[derive(Debug)]
pub struct CudaEvent {
    raw: sys::CUevent,
    gpu: Arc<Cuda>,
}

impl CudaEvent {
    /// An event; with a clock where its time is asked for.
    pub(crate) fn new(gpu: &Arc<Cuda>, timed: bool) -> Result<Self> {
        gpu.bind()?;
        let mut raw = null_mut();
        let flags = match timed {
            true => CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        // SAFETY: the context is current; the pointer is to a local.
        check(unsafe { sys::cuEventCreate(&mut raw, flags as u32) }, "cuEventCreate")?;
        Ok(Self { raw, gpu: gpu.clone() })
    }

    pub(crate) fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: both live.
        check(unsafe { sys::cuEventRecord(self.raw, stream) }, "cuEventRecord")
    }

    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.gpu.wait_for("a copy", || unsafe { sys::cuEventQuery(self.raw) })
    }

    /// Microseconds from this event to a later one.
    pub(crate) fn until_us(&self, to: &CudaEvent) -> Result<f64> {
        let mut ms = 0.0f32;
        // SAFETY: both live; the pointer is to a local.
        check(unsafe { sys::cuEventElapsedTime(&mut ms, self.raw, to.raw) }, "cuEventElapsedTime")?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created here, destroyed once; the driver keeps it until work that waits for it is done.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// Page-locked bytes with the event behind the last copy that touched them.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: *mut u8,
    bytes: usize,
    /// Recorded behind the last copy.
    pub event: CudaEvent,
    gpu: Arc<Cuda>,
}

impl Pinned {
    pub fn new(gpu: &Arc<Cuda>, bytes: usize) -> Result<Self> {
        let event = CudaEvent::new(gpu, false)?;
        let mut start = null_mut();
        // SAFETY: the context is current (the event bound it); the pointer is to a local. Not write-combined:
        // the host reads such memory slowly.
        check(unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) }, "pinned host memory")?;
        Ok(Self { start: start.cast(), bytes, event, gpu: gpu.clone() })
    }

    /// Whether it belongs to this device.
    pub fn is_of(&self, gpu: &Arc<Cuda>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Puts the event behind the copy that was just enqueued, or waits for it.
    pub fn mark(&self, stream: CUstream) -> Result<()> {
        self.event.record(stream).inspect_err(|_| {
            // SAFETY: the stream lives.
            let _ = unsafe { self.gpu.wait_for_stream("a copy", stream) };
        })
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Copies `from` to the front.
    ///
    /// # Safety
    /// No copy that reads the bytes is on its way.
    pub unsafe fn fill(&mut self, from: &[u8]) {
        debug_assert!(from.len() <= self.bytes);
        // SAFETY: inside both; the caller rules out readers.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start, from.len()) }
    }

    /// Copies the front to `to`.
    ///
    /// # Safety
    /// The copy that writes the bytes has been waited for, and wrote at least `to.len()`.
    pub unsafe fn read(&self, to: &mut [u8]) {
        debug_assert!(to.len() <= self.bytes);
        // SAFETY: inside both; the caller rules out writers.
        unsafe { std::ptr::copy_nonoverlapping(self.start, to.as_mut_ptr(), to.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A copy may be on its way: it must end before its memory goes.
        if self.gpu.bind().is_ok() {
            let _ = self.event.wait();
            // SAFETY: allocated here, freed once, and nothing uses it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}

/// Slots that uploads go through, one after the other; each is made when it is first reached.
#[derive(Debug)]
pub(crate) struct Ring {
    gpu: Arc<Cuda>,
    slots: Vec<Pinned>,
    next: usize,
}

impl Ring {
    const SLOTS: usize = 16;
    const BYTES: usize = 64 << 10;

    pub fn new(gpu: &Arc<Cuda>) -> Self {
        Self { gpu: gpu.clone(), slots: Vec::with_capacity(Self::SLOTS), next: 0 }
    }

    /// Enqueues a copy of `from` to `address`; `from` may be reused at once.
    pub fn upload(&mut self, stream: CUstream, from: &[u8], address: u64) -> Result<()> {
        for (at, part) in from.chunks(Self::BYTES).enumerate() {
            if self.next == self.slots.len() {
                self.slots.push(Pinned::new(&self.gpu, Self::BYTES)?);
            }
            let slot = &mut self.slots[self.next];
            self.next = (self.next + 1) % Self::SLOTS;
            slot.event.wait()?;
            // SAFETY: the last copy out of this slot was waited for.
            unsafe { slot.fill(part) };
            let to = address + (at * Self::BYTES) as u64;
            // SAFETY: the caller has checked that the destination holds `from`; the slot lives until its
            // event.
            let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, slot.start().cast(), part.len(), stream) };
            check(code, "an upload")?;
            slot.mark(stream)?;
        }
        Ok(())
    }
}
