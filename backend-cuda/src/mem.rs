//! Device memory: owners that any thread may drop, and the pool that their memory goes back to.
//!
//! Dropping the last owner of a block informs the pool alone: work that still uses the block may be on its
//! way. The pool gives memory out again, or back to the driver, only after the whole context has been waited
//! for, and work that knows an address is enqueued while its owner is borrowed: what was dropped before the
//! wait is used by nothing behind it. The wait happens when something is allocated, which no step does, and
//! not while a stream captures, which waiting would end: until then what was dropped stays where it is. A
//! captured step holds the scratch that it knows; that everything else lives is the promise of whoever
//! replays it. Blocks are reused for requests of exactly their size (an engine that is closed and opened
//! again), so the checks of a software driver see the sizes that were asked for.
//!
//! An allocation has one owner as far as others can tell: [`CudaMem`] is no `Clone`, inside the package it is
//! shared where something has to live on. It knows its pool, and a device takes memory of its own pool alone.

use crate::driver::check;
use cudarc::driver::sys;
use engraft_core::mem::DeviceMem;
use engraft_core::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that may lie idle in a pool.
const MOST_IDLE: usize = 256 << 20;

/// One allocation.
#[derive(Debug)]
pub struct CudaMem(Arc<Block>);

#[derive(Debug)]
struct Block {
    address: u64,
    bytes: usize,
    dropped: Arc<Mutex<Vec<(u64, usize)>>>,
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.dropped).push((self.address, self.bytes));
    }
}

impl CudaMem {
    /// Device address of the first byte: for kernels, and for whoever measures what they read.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Another owner of the same allocation, which lives as long as one of them.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// The same allocation once more: for tests of what the contract forbids.
    ///
    /// # Safety
    /// No view to write of one is in use together with a view of the other.
    pub unsafe fn alias(&self) -> Self {
        self.share()
    }
}

impl DeviceMem for CudaMem {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// Memory of one context. The context has to be current where a method is called.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    dropped: Arc<Mutex<Vec<(u64, usize)>>>,
    idle: Mutex<Vec<(u64, usize)>>,
}

pub(crate) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Whether this pool gave an allocation out.
    pub fn owns(&self, mem: &CudaMem) -> bool {
        Arc::ptr_eq(&self.dropped, &mem.0.dropped)
    }

    /// Allocates, without clearing. `wait` waits for all work of the context; none: it may not be waited for
    /// now (while capturing).
    pub fn alloc(&self, bytes: usize, wait: Option<impl FnOnce() -> Result<()>>) -> Result<CudaMem> {
        let mut idle = lock(&self.idle);
        if let Some(wait) = wait {
            self.reclaim(&mut idle, wait)?;
        }
        let address = match idle.iter().position(|(_, have)| *have == bytes) {
            Some(at) => idle.swap_remove(at).0,
            None => match fresh(bytes) {
                Err(Error::OutOfMemory { .. }) => {
                    release(&mut idle)?;
                    fresh(bytes).map_err(|e| explain(e, bytes))?
                }
                other => other?,
            },
        };
        Ok(CudaMem(Arc::new(Block { address, bytes, dropped: self.dropped.clone() })))
    }

    /// Gives everything back that has no owner.
    pub fn close(&self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut idle = lock(&self.idle);
        self.reclaim(&mut idle, wait)?;
        release(&mut idle)
    }

    fn reclaim(&self, idle: &mut Vec<(u64, usize)>, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut dropped = lock(&self.dropped);
        if dropped.is_empty() {
            return Ok(());
        }
        wait()?;
        idle.append(&mut dropped);
        drop(dropped);
        if idle.iter().map(|(_, bytes)| bytes).sum::<usize>() > MOST_IDLE {
            release(idle)?;
        }
        Ok(())
    }
}

fn fresh(bytes: usize) -> Result<u64> {
    let mut address = 0;
    // SAFETY: the pointer is to a local; an allocation of nothing is refused, so there is at least one byte.
    check(unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) }, "a buffer")?;
    Ok(address)
}

fn release(idle: &mut Vec<(u64, usize)>) -> Result<()> {
    for (address, _) in idle.drain(..) {
        // SAFETY: allocated here, without an owner, and everything that used it has been waited for.
        check(unsafe { sys::cuMemFree_v2(address) }, "freeing memory")?;
    }
    Ok(())
}

/// Adds the numbers to the driver's refusal.
fn explain(error: Error, bytes: usize) -> Error {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are to locals.
    let known = check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo").is_ok();
    match error {
        Error::OutOfMemory { what, .. } => {
            Error::OutOfMemory { what, wanted: bytes as u64, free: if known { free as u64 } else { 0 } }
        }
        other => other,
    }
}
