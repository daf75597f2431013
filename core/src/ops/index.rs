//! An index of keys (DeepSeek's sparse attention): every cached key has a short one next to it, by which a
//! query chooses the keys that its attention reads.
//!
//! Two ops, because what stands between them, a score for every query and key, is the step's largest matrix:
//! whoever runs them gives it as many rows at a time as there is memory for ([`IndexScores::first`]). What is
//! chosen is a row of page slots in ascending order of positions: a page table of pages of one position, with
//! a query as a sequence of its own. So no attention kernel knows of the choice, and a query that sees no
//! more keys than it may choose has the bits of one without an index.

use super::attention::Sequences;
use super::check::Check;
use super::stem::stem;
use super::{Rules, Signature, rules};
use crate::Result;
use crate::mem::{BufMut, Device, Float, MatMut, MatRef, Table};

/// Scores of keys: of token row `first + r` and the key at position `j` that it sees
/// `out[r, j] = sum over h of factors[h] * max(scale * (q[h] . key[j]), 0)`, both sums one chain of
/// multiply-adds from 0, by columns and by heads. A key is the row of `low` and then that of `high` at its
/// page slot. Rows that see no more than `count` keys are left as they are, as is all behind the last key,
/// and rows outside every sequence; keys in a page beyond the slab have a score that means nothing.
pub struct IndexScores<'a, D: Device> {
    /// `[tokens, heads * width]`.
    pub q: MatRef<'a, D::Mem>,
    /// `[tokens, heads]`.
    pub factors: MatRef<'a, D::Mem>,
    /// `[slots, some of width]`: the first columns of keys.
    pub low: MatRef<'a, D::Mem>,
    /// `[slots, the rest of width]`: the others.
    pub high: MatRef<'a, D::Mem>,
    /// Of a query.
    pub heads: usize,
    /// Factor of the products.
    pub scale: f32,
    /// The sequences; a query sees the keys up to its own position.
    pub seqs: Sequences<'a, D::Mem>,
    /// Their pages.
    pub table: Table<'a, D::Mem>,
    /// Positions of a page.
    pub page_size: usize,
    /// The first token row.
    pub first: usize,
    /// Keys that a query chooses.
    pub count: usize,
    /// `[rows, keys]` f32; keys at later positions have no score.
    pub out: MatMut<'a, D::Mem>,
}

/// Chooses keys by their scores: row `r` of `chosen` has the page slots of the `count` keys that token row
/// `first + r` sees with the largest scores, in ascending order of positions; of equal scores the earlier
/// position counts more, and NaN is the smallest. A row that sees no more keys has the slots of all. Entries
/// behind them are 0. `counts` has how many there are: 0 outside every sequence.
pub struct IndexChoose<'a, D: Device> {
    /// `[rows, keys]` f32, of [`IndexScores`].
    pub scores: MatRef<'a, D::Mem>,
    /// The sequences.
    pub seqs: Sequences<'a, D::Mem>,
    /// Their pages.
    pub table: Table<'a, D::Mem>,
    /// Positions of a page.
    pub page_size: usize,
    /// The first token row.
    pub first: usize,
    /// Keys that a query chooses.
    pub count: usize,
    /// `[rows * count]` page slots.
    pub chosen: BufMut<'a, D::Mem, u32>,
    /// `[rows]`.
    pub counts: BufMut<'a, D::Mem, u32>,
}

stem!(
    Index,
    IndexOp,
    IndexOpKind: IndexScores = "index_scores",
    IndexChoose = "index_choose",
);

/// Sequences, their pages, and how many keys are chosen.
fn keys_fit<D: Device>(
    check: &Check,
    (seqs, table): (&Sequences<'_, D::Mem>, &Table<'_, D::Mem>),
    (page_size, count): (usize, usize),
) -> Result<()> {
    let Sequences { bounds, table_rows, kv_lens, .. } = seqs;
    check.same("bounds", bounds.len(), kv_lens.len().saturating_add(1))?;
    check.same("table rows", table_rows.len(), kv_lens.len())?;
    check.at_least("entries of a row of the page table", table.stride, 1)?;
    check.same("entries beyond whole rows", table.pages.len() % table.stride, 0)?;
    check.at_least("positions of a page", page_size, 1)?;
    // Slots are words.
    let slots = table.stride.saturating_mul(page_size);
    check.at_least("a number of slots below 2^31", i32::MAX as usize, slots)?;
    check.at_least("chosen keys", count, 1)
}

impl<'a, D: Device> Rules<'a, D> for IndexScores<'a, D> {
    rules!(IndexOpKind::IndexScores: q, factors, low, high, heads, seqs, table, page_size, first, count, out; scale);

    fn check(&self, check: &Check) -> Result<()> {
        let width = self.low.cols().saturating_add(self.high.cols());
        check.at_least("heads", self.heads, 1)?;
        check.factors("columns of q", self.q.cols(), &[self.heads, width])?;
        check.same("columns of the factors", self.factors.cols(), self.heads)?;
        check.same("rows of the factors", self.factors.rows(), self.q.rows())?;
        check.dtype("element type of the factors", self.factors.dtype(), self.q.dtype())?;
        check.same("rows of the second part of keys", self.high.rows(), self.low.rows())?;
        check.dtype("element type of the second part of keys", self.high.dtype(), self.low.dtype())?;
        check.dtype("element type of the scores", self.out.dtype(), Float::F32)?;
        let rows = self.first.saturating_add(self.out.rows());
        check.at_least("rows of q", self.q.rows(), rows)?;
        keys_fit::<D>(check, (&self.seqs, &self.table), (self.page_size, self.count))
    }

    fn signature(&self) -> Signature {
        let width = self.low.cols().saturating_add(self.high.cols());
        let kv = Some(self.low.dtype().into());
        Signature { kv, out: Float::F32, ..Signature::new(self.kind(), self.q.dtype(), width, self.heads) }
    }
}

impl<'a, D: Device> Rules<'a, D> for IndexChoose<'a, D> {
    rules!(IndexOpKind::IndexChoose: scores, seqs, table, page_size, first, count, chosen, counts);

    fn check(&self, check: &Check) -> Result<()> {
        check.dtype("element type of the scores", self.scores.dtype(), Float::F32)?;
        check.same("counts", self.counts.len(), self.scores.rows())?;
        check.factors("chosen slots", self.chosen.len(), &[self.scores.rows(), self.count])?;
        keys_fit::<D>(check, (&self.seqs, &self.table), (self.page_size, self.count))
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), Float::F32, 1, 1)
    }
}
