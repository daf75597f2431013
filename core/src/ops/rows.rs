//! Rows and words moved.

use super::check::Check;
use super::stem::stem;
use super::{Rules, Signature, rules};
use crate::Result;
use crate::mem::{BufMut, BufRef, Device, Float, MatMut, MatRef};

/// `out[r] = x[rows[r]]`; a row number beyond `x` gives zeros.
pub struct GatherRows<'a, D: Device> {
    /// `[any, cols]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[rows]`.
    pub rows: BufRef<'a, D::Mem, u32>,
    /// `[rows, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

/// `dst[index] = value` for every `(index, value)` of `pairs`; indices beyond `dst` do nothing, of several
/// for one entry the last counts.
pub struct Scatter<'a, D: Device> {
    /// `[2 * pairs]`.
    pub pairs: BufRef<'a, D::Mem, u32>,
    /// `[any]`.
    pub dst: BufMut<'a, D::Mem, u32>,
}

/// Clears row `slot` of the seen bits and sets those of `ids`, when a request enters; ids beyond the row do
/// nothing.
pub struct MarkSeen<'a, D: Device> {
    /// `[any]`.
    pub ids: BufRef<'a, D::Mem, u32>,
    /// The row.
    pub slot: usize,
    /// Words of a row.
    pub words: usize,
    /// `[rows * words]`.
    pub seen: BufMut<'a, D::Mem, u32>,
}

/// `out[t] = last[feeds[t]]`: token ids of a step taken from what the device sampled in the step before,
/// which the host does not know yet. Where the row is [`crate::mem::NO_ROW`], or any beyond `last`, `out[t] =
/// ids[t]`.
pub struct FeedTokens<'a, D: Device> {
    /// `[tokens]` as they were uploaded.
    pub ids: BufRef<'a, D::Mem, u32>,
    /// `[tokens]` rows of `last`.
    pub feeds: BufRef<'a, D::Mem, u32>,
    /// `[any]` what the rows of the step before sampled.
    pub last: BufRef<'a, D::Mem, u32>,
    /// `[tokens]`.
    pub out: BufMut<'a, D::Mem, u32>,
}

stem!(
    Rows,
    RowsOp,
    RowsOpKind: GatherRows = "gather_rows",
    Scatter = "scatter",
    MarkSeen = "mark_seen",
    FeedTokens = "feed_tokens",
);

/// Of ops over words, which have no element type.
fn over_words(kind: RowsOpKind) -> Signature {
    Signature::new(kind.into(), Float::F32, 1, 1)
}

impl<'a, D: Device> Rules<'a, D> for GatherRows<'a, D> {
    rules!(RowsOpKind::GatherRows: x, rows, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("rows", self.out.rows(), self.rows.len())?;
        check.same("columns", self.out.cols(), self.x.cols())?;
        check.dtype("element type", self.out.dtype(), self.x.dtype())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Scatter<'a, D> {
    rules!(RowsOpKind::Scatter: pairs, dst);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("words beyond whole pairs", self.pairs.len() % 2, 0)
    }

    fn signature(&self) -> Signature {
        over_words(RowsOpKind::Scatter)
    }
}

impl<D: Device> MarkSeen<'_, D> {
    /// Words before the row and behind it; both are numbers once the op is checked.
    pub fn bounds(&self) -> std::ops::Range<usize> {
        let start = self.slot.saturating_mul(self.words);
        start..start.saturating_add(self.words)
    }
}

impl<'a, D: Device> Rules<'a, D> for MarkSeen<'a, D> {
    rules!(RowsOpKind::MarkSeen: ids, slot, words, seen);

    fn check(&self, check: &Check) -> Result<()> {
        check.at_least("words of all rows", self.seen.len(), self.bounds().end)
    }

    fn signature(&self) -> Signature {
        over_words(RowsOpKind::MarkSeen)
    }
}

impl<'a, D: Device> Rules<'a, D> for FeedTokens<'a, D> {
    rules!(RowsOpKind::FeedTokens: ids, feeds, last, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("token ids", self.ids.len(), self.feeds.len())?;
        check.same("ids to run", self.out.len(), self.feeds.len())
    }

    fn signature(&self) -> Signature {
        over_words(RowsOpKind::FeedTokens)
    }
}
