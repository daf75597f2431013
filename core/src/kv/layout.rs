//! Shape of paged keys and values, and borrowed views of slabs and tables.

use crate::mem::{BufRef, Float};

/// Shape of the paged KV of one layer.
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
