//! Buffers as device memory.
//!
//! No other code can have two owners of a buffer; the crate shares it with bind groups and caches. When the
//! last one goes, its number is handed to the device's open command buffer, which drops the bind groups that
//! were cached with it. Sizes are rounded up to 16 bytes, so that kernels may read whole vectors at the end.

use engraft_core::mem::DeviceMem;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers of buffers that are gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graveyard(Arc<Mutex<Vec<u64>>>);

impl Graveyard {
    /// Takes the numbers collected so far into `out`.
    pub fn drain_into(&self, out: &mut Vec<u64>) {
        out.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn push(&self, id: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }
}

/// One buffer.
#[derive(Debug)]
pub struct WgpuMem(Arc<Block>);

#[derive(Debug)]
struct Block {
    buffer: wgpu::Buffer,
    bytes: usize,
    id: u64,
    graveyard: Graveyard,
}

impl Drop for Block {
    fn drop(&mut self) {
        self.graveyard.push(self.id);
    }
}

impl WgpuMem {
    pub(crate) fn new(buffer: wgpu::Buffer, bytes: usize, id: u64, graveyard: Graveyard) -> Self {
        Self(Arc::new(Block { buffer, bytes, id, graveyard }))
    }

    /// A second handle, for what this crate keeps next to the owner: nothing is written through it that the
    /// owner's views would not write.
    pub(crate) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    /// A second owner of the same buffer, for tests of operands that share memory.
    ///
    /// # Safety
    /// No op gets a view to write of one owner together with a view of the other.
    pub unsafe fn alias(&self) -> Self {
        self.share()
    }

    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Identifies buffers; never used twice.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
}

impl DeviceMem for WgpuMem {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
}
