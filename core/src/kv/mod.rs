//! Pages: who owns which, in which order sequences read them, and the slabs they live in.
//!
//! [`PagePool`] counts references; [`PageTables`] maps a sequence's positions to pages and records the
//! changes that the device's copy has not seen yet; [`PagedKv`] owns the slabs. No backend here: slabs are
//! generic over memory.

mod pool;
mod slab;
mod table;

pub use pool::PagePool;
pub use slab::PagedKv;
pub use table::PageTables;
