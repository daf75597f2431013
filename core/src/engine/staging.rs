//! Device memory that keys and values go through between their pages and the host.

use crate::backend::{Backend, Mem};
use crate::mem::Buf;

/// Memory of so many positions, a slab at a time, in the order of the stream.
pub(super) struct Staging<B: Backend> {
    pub keys: Mem<B>,
    pub values: Mem<B>,
    /// Pages or slots of the positions.
    pub places: Buf<Mem<B>, u32>,
}

/// Memory that pages go through on their way to a store and back.
pub(super) struct Swap<B: Backend> {
    /// Pages at once.
    pub pages: usize,
    pub staging: Staging<B>,
}
