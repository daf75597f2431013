//! Pages: who owns which, in which order sequences read them, and the slabs they live in.
//!
//! [`PagePool`] counts references; [`PageTables`] maps a sequence's positions to pages and records the
//! changes that the device's copy has not seen yet; [`PrefixTree`] finds the pages that a prompt begins with;
//! [`KvManager`] holds the three together; a [`PageStore`] keeps what the pool has no room for; [`PagedKv`]
//! owns the slabs. No backend here: slabs are generic over memory.

mod audit;
mod manager;
mod pool;
mod prefix;
mod recency;
mod slab;
mod store;
mod table;

pub use manager::{CachedPrefix, KvManager, PrefixStats};
pub use pool::PagePool;
pub use prefix::{PrefixKey, PrefixTree};
pub use slab::PagedKv;
pub use store::{HostPages, PageStore};
pub use table::PageTables;
