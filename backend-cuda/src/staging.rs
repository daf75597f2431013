//! Pinned memory that weights are packed into, and the queues that copy it.

use crate::driver::check;
use cudarc::driver::sys::{self, CUevent_flags_enum, CUstream_flags_enum};
use engraft_core::{Error, Result};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

/// Bytes of a slot.
pub(crate) const SLOT: usize = 4 << 20;
/// Slots of a reader: one is filled while the other one's bytes are copied.
pub(crate) const SLOTS: usize = 2;

/// Host memory and the event behind its last copy.
#[derive(Debug)]
pub(crate) struct Slot {
    pub start: *mut u8,
    pub bytes: usize,
    pub event: sys::CUevent,
    /// Whether the driver gave it. It may refuse (a container's limit): the program's own memory works, too,
    /// more slowly.
    pub pinned: bool,
}

/// A queue with its slots; one thread has it at a time.
#[derive(Debug)]
pub(crate) struct Reader {
    pub queue: sys::CUstream,
    pub slots: Vec<Slot>,
    /// Slot that was filled last.
    pub turn: usize,
}

// SAFETY: handles and memory that any thread may use; one thread has a reader at a time.
unsafe impl Send for Reader {}

/// The readers of a device; made when they are first needed.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    pub readers: Mutex<Vec<Reader>>,
    /// Whether copies may be under way that nothing has waited for.
    pub in_flight: AtomicBool,
    /// Whether a weight was packed after the load, so that nothing else gives the memory back.
    pub late: AtomicBool,
}

impl Slot {
    /// The context is current.
    pub fn new(bytes: usize) -> Result<Self> {
        let (mut start, mut event) = (null_mut(), null_mut());
        // SAFETY: the context is current; pointers are to locals.
        let given = check(unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) }, "pinned host memory");
        let (start, pinned) = match given {
            Ok(()) => (start.cast(), true),
            Err(Error::OutOfMemory { .. }) => {
                tracing::debug!(
                    "{bytes} bytes of pinned memory were refused: weights are copied from other memory"
                );
                (Box::into_raw(vec![0u8; bytes].into_boxed_slice()).cast(), false)
            }
            Err(error) => return Err(error),
        };
        let flags = CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: as above.
        let made = check(unsafe { sys::cuEventCreate(&mut event, flags) }, "cuEventCreate");
        let slot = Self { start, bytes, event, pinned };
        match made {
            Ok(()) => Ok(slot),
            Err(error) => {
                slot.free();
                Err(error)
            }
        }
    }

    /// Gives everything back; no copy is under way, the context is current.
    pub fn free(self) {
        // SAFETY: made above, freed once.
        unsafe {
            if !self.event.is_null() {
                let _ = sys::cuEventDestroy_v2(self.event);
            }
            if self.pinned {
                let _ = sys::cuMemFreeHost(self.start.cast());
            } else {
                drop(Box::from_raw(slice_from_raw_parts_mut(self.start, self.bytes)));
            }
        }
    }
}

impl Reader {
    /// The context is current.
    pub fn new() -> Result<Self> {
        let mut queue = null_mut();
        let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the pointer is to a local.
        check(unsafe { sys::cuStreamCreate(&mut queue, flags) }, "cuStreamCreate")?;
        Ok(Self { queue, slots: Vec::with_capacity(SLOTS), turn: 0 })
    }
}
