//! Shape of paged keys and values.

use super::KvFormat;
use crate::{Error, Result};

/// Shape of the paged KV of one layer.
///
/// With one head and one position per page both slabs are plain matrices, `[pages, k_dim]` and
/// `[pages, v_dim]`, on every backend (the op registry holds this): what is appended there may be read by
/// [`super::KvRef::rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Pages in the slab.
    pub pages: usize,
    /// Positions per page.
    pub page_size: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Element type.
    pub format: KvFormat,
}

impl KvLayout {
    /// Slots: positions of all pages.
    pub fn slots(&self) -> usize {
        self.pages * self.page_size
    }

    /// Bytes of a position's keys and of its values, all heads.
    pub fn row_bytes(&self) -> [usize; 2] {
        [self.k_dim, self.v_dim].map(|width| self.kv_heads * self.format.head_bytes(width))
    }

    /// Whether all of its sizes are numbers, with room for what backends pad.
    pub(super) fn check(&self) -> Result<()> {
        let width = self.k_dim.max(self.v_dim);
        let sizes = [self.pages, self.page_size, self.kv_heads, width, 16];
        if sizes.iter().try_fold(1usize, |all, n| all.checked_mul((*n).max(1))).is_none() {
            let what = "slots of so many heads";
            return Err(Error::Shape { op: "kv slab", what, got: usize::MAX, want: usize::MAX / 16 });
        }
        match self.page_size {
            0 => Err(Error::Shape { op: "kv slab", what: "page size", got: 0, want: 1 }),
            _ => Ok(()),
        }
    }
}
