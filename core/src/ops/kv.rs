//! Paged keys and values: rows appended, pages copied, rows read back.

use super::check::Check;
use super::stem::stem;
use super::{OpKind, Rules, Signature, rules};
use crate::Result;
use crate::mem::{BufRef, Device, KvLayout, KvMut, KvRef, MatLayout, MatMut, MatRef, Table};

/// Writes k `[tokens, kv_heads * k_dim]` and v `[tokens, kv_heads * v_dim]` to their slots;
/// [`crate::mem::SKIP`] and slots beyond the slab write nothing.
pub struct KvAppend<'a, D: Device> {
    /// `[tokens, kv_heads * k_dim]`.
    pub k: MatRef<'a, D::Mem>,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: MatRef<'a, D::Mem>,
    /// `[tokens]`.
    pub slots: BufRef<'a, D::Mem, i32>,
    /// The slab.
    pub kv: KvMut<'a, D::Mem>,
}

/// Copies whole pages, one pair after the other: `pairs` is `[from, to, from, to, ...]`; a pair of equal
/// numbers, or with a page beyond the slab, does nothing.
pub struct KvCopyPages<'a, D: Device> {
    /// `[2 * pairs]`.
    pub pairs: BufRef<'a, D::Mem, u32>,
    /// The slab.
    pub kv: KvMut<'a, D::Mem>,
}

/// A sequence's cache as plain rows: positions `0..k.rows` of table row `row`, k
/// `[positions, kv_heads * k_dim]`, v `[positions, kv_heads * v_dim]`. Rows of positions in a page beyond the
/// slab are not written.
pub struct KvRead<'a, D: Device> {
    /// The slab.
    pub kv: KvRef<'a, D::Mem>,
    /// Pages of sequences.
    pub table: Table<'a, D::Mem>,
    /// The sequence's row of the table.
    pub row: usize,
    /// `[positions, kv_heads * k_dim]`.
    pub k: MatMut<'a, D::Mem>,
    /// `[positions, kv_heads * v_dim]`.
    pub v: MatMut<'a, D::Mem>,
}

stem!(
    Kv,
    KvOp,
    KvOpKind: KvAppend = "kv_append",
    KvCopyPages = "kv_copy_pages",
    KvRead = "kv_read",
);

/// Rows of keys and of values for a slab.
fn rows_fit(check: &Check, k: MatLayout, v: MatLayout, kv: KvLayout) -> Result<()> {
    check.same("rows of v", v.rows, k.rows)?;
    check.factors("columns of k", k.cols, &[kv.kv_heads, kv.k_dim])?;
    check.factors("columns of v", v.cols, &[kv.kv_heads, kv.v_dim])?;
    check.dtype("element type of v", v.dtype, k.dtype)
}

fn signature(kind: OpKind, x: MatLayout, kv: KvLayout) -> Signature {
    Signature { kv: Some(kv.format), ..Signature::new(kind, x.dtype, kv.k_dim, kv.kv_heads) }
}

impl<'a, D: Device> Rules<'a, D> for KvAppend<'a, D> {
    rules!(KvOpKind::KvAppend: k, v, slots, kv);

    fn check(&self, check: &Check) -> Result<()> {
        check.slab::<D>(self.kv.as_ref())?;
        check.same("slots", self.slots.len(), self.k.rows())?;
        rows_fit(check, self.k.layout(), self.v.layout(), self.kv.layout())
    }

    fn signature(&self) -> Signature {
        signature(self.kind(), self.k.layout(), self.kv.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for KvCopyPages<'a, D> {
    rules!(KvOpKind::KvCopyPages: pairs, kv);

    fn check(&self, check: &Check) -> Result<()> {
        check.slab::<D>(self.kv.as_ref())?;
        check.same("words beyond whole pairs", self.pairs.len() % 2, 0)
    }

    fn signature(&self) -> Signature {
        let kv = self.kv.layout();
        Signature {
            kv: Some(kv.format),
            ..Signature::new(self.kind(), kv.format.widened(), kv.k_dim, kv.kv_heads)
        }
    }
}

impl<'a, D: Device> Rules<'a, D> for KvRead<'a, D> {
    rules!(KvOpKind::KvRead: kv, table, row, k, v);

    fn check(&self, check: &Check) -> Result<()> {
        let kv = self.kv.layout();
        check.slab::<D>(self.kv)?;
        rows_fit(check, self.k.layout(), self.v.layout(), kv)?;
        let rows = self.row.checked_add(1).and_then(|rows| rows.checked_mul(self.table.stride));
        check.at_least("entries of the page table", self.table.pages.len(), rows.unwrap_or(usize::MAX))?;
        let positions = self.table.stride.saturating_mul(kv.page_size);
        check.at_least("positions of a row of the page table", positions, self.k.rows())
    }

    fn signature(&self) -> Signature {
        signature(self.kind(), self.k.layout(), self.kv.layout())
    }
}
