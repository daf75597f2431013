//! Buffers of blocks with an index of keys.

use crate::Result;
use crate::mem::{Buf, DeviceMem, Float, Mat, StepShape, Table};
use crate::ops::Sequences;
use crate::policy::{IndexSpec, ModelSpec};

/// Scores that are kept at a time, unless a single row has more: 64 MiB of them.
const SCORES: usize = 1 << 24;

/// Sequences and their pages.
pub(super) type ReadBy<'a, M> = (Sequences<'a, M>, Table<'a, M>);

/// Buffers of such blocks.
#[derive(Debug)]
pub struct IndexScratch<M> {
    /// Queries, then the key `[tokens, (heads + 1) * width]`.
    pub(super) rows: Mat<M>,
    /// `[tokens, heads]`.
    pub(super) factors: Mat<M>,
    /// `[rows, keys]`, f32.
    pub(super) scores: Mat<M>,
    /// `[tokens * count]` page slots of the chosen keys.
    pub(super) chosen: Buf<M, u32>,
    /// The queries as sequences: bounds `[tokens + 1]`, rows of `chosen` `[tokens]`, keys `[tokens]`.
    pub(super) seqs: Buf<M, u32>,
    /// Positions of a page.
    pub(super) page_size: usize,
    /// Positions of a sequence at most.
    context: usize,
}

impl<M: DeviceMem> IndexScratch<M> {
    /// Buffers for steps of up to `tokens` rows of sequences of up to `context` positions; none where no
    /// block needs them.
    pub(super) fn new(
        spec: &ModelSpec,
        [tokens, context, page_size]: [usize; 3],
        dtype: Float,
        alloc: &dyn Fn(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let most = |f: &dyn Fn(IndexSpec) -> usize| spec.blocks.iter().filter_map(|b| b.index.map(f)).max();
        let Some(rows) = most(&|index| (index.heads + 1) * index.width) else { return Ok(None) };
        let (tokens, context) = (tokens.max(1), context.max(1));
        let (heads, count) = (most(&|index| index.heads), most(&|index| index.count.min(context)));
        let mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let words = |words: usize| Buf::new(alloc(words * 4)?, words);
        let scored = (SCORES / context).clamp(1, tokens);
        Ok(Some(Self {
            rows: mat(tokens, rows, dtype)?,
            factors: mat(tokens, heads.unwrap_or(1), dtype)?,
            scores: mat(scored, context, Float::F32)?,
            chosen: words(tokens * count.unwrap_or(1))?,
            seqs: words(3 * tokens + 1)?,
            page_size,
            context,
        }))
    }

    /// The words of the queries as sequences, before any has chosen: what is in [`Self::seqs`] at first.
    pub(crate) fn first_words(&mut self) -> (Vec<u32>, &mut Buf<M, u32>) {
        let tokens = self.tokens() as u32;
        let none = std::iter::repeat_n(0, tokens as usize);
        ((0..=tokens).chain(0..tokens).chain(none).collect(), &mut self.seqs)
    }

    fn tokens(&self) -> usize {
        self.rows.rows()
    }

    /// Keys that a query chooses at most.
    pub(super) fn count(&self, spec: &IndexSpec) -> usize {
        spec.count.min(self.context)
    }

    /// Token rows whose scores over so many keys have room.
    pub(super) fn rows_at_once(&self, keys: usize) -> usize {
        (self.scores.rows() * self.scores.cols() / keys).max(1)
    }

    /// Where the counts of chosen keys begin.
    pub(super) fn counts_at(&self) -> usize {
        2 * self.tokens() + 1
    }

    /// The queries of a step, each with the keys that were chosen for it.
    pub(super) fn read_by(&self, spec: &IndexSpec, shape: StepShape) -> Result<ReadBy<'_, M>> {
        let (all, tokens, count) = (self.tokens(), shape.tokens, self.count(spec));
        let words = |from: usize, len: usize| self.seqs.view().slice(from..from + len);
        let seqs = Sequences {
            bounds: words(0, tokens + 1)?,
            table_rows: words(all + 1, tokens)?,
            kv_lens: words(self.counts_at(), tokens)?,
            max_query: 1,
            max_keys: shape.max_keys.min(count),
        };
        Ok((seqs, Table { pages: self.chosen.view().slice(0..tokens * count)?, stride: count }))
    }
}
