//! From logits to tokens.

use super::check::Check;
use super::stem::kinds;
use super::{Rules, Signature, rules};
use crate::Result;
use crate::mem::{BufMut, BufRef, Device, Float, MatRef};
use crate::sample::SampleRow;

/// Samples `out[r]` from row `r` of f32 logits `[rows, vocab]` by the rule of [`crate::sample`]; rows without
/// a slot, with one beyond the table, or without a logit above -infinity give [`crate::sample::NO_TOKEN`].
pub struct Sample<'a, D: Device> {
    /// `[rows, vocab]` f32.
    pub logits: MatRef<'a, D::Mem>,
    /// The sampling table `[slots]`: parameters of every live request.
    pub table: BufRef<'a, D::Mem, SampleRow>,
    /// `[rows]` per row of logits the row of `table`; [`crate::mem::NO_ROW`] = sample nothing.
    pub slots: BufRef<'a, D::Mem, u32>,
    /// `[rows]` positions of the new tokens.
    pub positions: BufRef<'a, D::Mem, u32>,
    /// `[slots, seen_words]` bits of tokens already seen, for the repetition penalty; sampled tokens are
    /// added.
    pub seen: BufMut<'a, D::Mem, u32>,
    /// Words of one row of `seen`: the vocabulary over 32, rounded up.
    pub seen_words: usize,
    /// `[rows]`.
    pub out: BufMut<'a, D::Mem, u32>,
}

kinds!(Sample, SampleOpKind: Sample = "sample");

impl<'a, D: Device> Rules<'a, D> for Sample<'a, D> {
    rules!(SampleOpKind::Sample: logits, table, slots, positions, seen, seen_words, out);

    fn check(&self, check: &Check) -> Result<()> {
        let rows = self.logits.rows();
        check.same("tokens", self.out.len(), rows)?;
        check.same("slots", self.slots.len(), rows)?;
        check.same("positions", self.positions.len(), rows)?;
        check.at_least("vocabulary", self.logits.cols(), 1)?;
        check.same("words of seen bits", self.seen_words, self.logits.cols().div_ceil(32))?;
        check.dtype("element type of the logits", self.logits.dtype(), Float::F32)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.logits.dtype(), self.logits.cols(), 1)
    }
}
