//! Shape of paged keys and values, and borrowed views of slabs and tables.

use crate::mem::{BufRef, Float, MatRef};
use crate::{Error, Result};

/// Shape of the paged KV of one layer.
///
/// With one head and one position per page both slabs are plain matrices, `[pages, k_dim]` and `[pages, v_dim]`, on every
/// backend (the op registry holds this): what is appended there may be read by [`KvView::rows`].
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
    pub dtype: Float,
}

/// One layer's KV slab; the order inside a page is the backend's secret.
#[derive(Debug)]
pub struct KvView<'a, M> {
    /// Keys.
    pub k: &'a M,
    /// Values.
    pub v: &'a M,
    /// Shape.
    pub layout: KvLayout,
}

impl<'a, M> KvView<'a, M> {
    /// Keys and values `[slots, k_dim]`, `[slots, v_dim]` of a layout of one head and one position per page.
    ///
    /// # Errors
    /// `Internal` for any other layout: the order inside a page is the backend's secret.
    pub fn rows(self) -> Result<[MatRef<'a, M>; 2]> {
        let KvLayout { pages, page_size, kv_heads, k_dim, v_dim, dtype } = self.layout;
        if (page_size, kv_heads) != (1, 1) {
            return Err(Error::internal("rows of a slab with pages of several positions or heads"));
        }
        let rows = |mem, cols| MatRef { mem, offset: 0, rows: pages, cols, pitch: cols, dtype };
        Ok([rows(self.k, k_dim), rows(self.v, v_dim)])
    }
}

impl<M> Clone for KvView<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for KvView<'_, M> {}

/// Page table: row `r` of `[rows, stride]` lists the pages of a sequence, position `p` lies in entry `p / page_size`.
#[derive(Debug)]
pub struct Table<'a, M> {
    /// `[rows * stride]` page numbers.
    pub pages: BufRef<'a, M, u32>,
    /// Entries per row.
    pub stride: usize,
}

impl<M> Clone for Table<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Table<'_, M> {}
