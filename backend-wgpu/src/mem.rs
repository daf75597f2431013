//! Buffers as device memory.
//!
//! A clone shares the buffer. When the last one goes, its number is handed to the streams, which drop the bind groups
//! that were cached with it. Sizes are rounded up to 16 bytes, so that kernels may read whole vectors at the end.

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

/// One buffer; clones share it.
#[derive(Debug, Clone)]
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

    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        &self.0.buffer
    }

    /// Tells buffers apart; never used twice.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }
}

impl DeviceMem for WgpuMem {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
}
