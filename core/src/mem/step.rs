//! What changes from step to step, in one device buffer.
//!
//! Ids, positions, write slots, sequence bounds, lengths and page-table changes are `u32` words of a single
//! allocation that one upload fills. Kernels read them from there and never from host-side arguments: that is
//! what lets a captured step be replayed. A bucket of [`crate::graph`] has a fixed [`StepShape`] and so fixed
//! offsets; unused rows are padded so that they write nothing.
//!
//! | part | words | meaning |
//! | --- | --- | --- |
//! | `ids` | tokens | token ids |
//! | `positions` | tokens | absolute position in the sequence |
//! | `slots` | tokens, `i32` | `page * page_size + offset` to write K and V to, [`SKIP`] for none |
//! | `token_type_ids` | tokens | token type ids (encoders), else 0 |
//! | `before` | tokens | slot of the position before, [`NO_ROW`] for none |
//! | `bounds` | seqs + 1 | sequence `s` has the query rows `bounds[s]..bounds[s + 1]` |
//! | `table_rows` | seqs | the sequence's row of the page table |
//! | `kv_lens` | seqs | its keys, this step's included; 0 for padding |
//! | `wanted` | rows | token rows whose logits are asked for |
//! | `sample_slots` | rows | row of the sampling table, [`NO_ROW`] for none |
//! | `sample_positions` | rows | position of the token to sample |
//! | `table_edits` | 2 x table_edits | `(index, page)` to write into the page table, index [`NO_ROW`] for none |

use super::DeviceMem;
use super::view::{Buf, BufRef};
use crate::{Error, Result};

/// Write slot of a token that writes nothing.
pub const SKIP: i32 = -1;
/// Index that means "no row".
pub const NO_ROW: u32 = u32::MAX;

/// Sizes of one step, or the bounds of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StepShape {
    /// Token rows.
    pub tokens: usize,
    /// Sequences.
    pub seqs: usize,
    /// Rows whose logits are wanted.
    pub rows: usize,
    /// Page-table changes.
    pub table_edits: usize,
    /// Most query rows of one sequence.
    pub max_query: usize,
    /// Most keys of one sequence (a bound; launch grids may depend on it, results may not).
    pub max_keys: usize,
}

impl StepShape {
    /// Words of all parts.
    pub fn words(&self) -> usize {
        5 * self.tokens + (self.seqs + 1) + 2 * self.seqs + 3 * self.rows + 2 * self.table_edits
    }

    /// Whether a step of this shape fits into `bound` part by part.
    pub fn fits(&self, bound: &StepShape) -> bool {
        self.tokens <= bound.tokens
            && self.seqs <= bound.seqs
            && self.rows <= bound.rows
            && self.table_edits <= bound.table_edits
            && self.max_query <= bound.max_query
            && self.max_keys <= bound.max_keys
    }

    fn starts(&self) -> [usize; 12] {
        let sizes = [
            self.tokens,
            self.tokens,
            self.tokens,
            self.tokens,
            self.tokens,
            self.seqs + 1,
            self.seqs,
            self.seqs,
            self.rows,
            self.rows,
            self.rows,
        ];
        let mut starts = [0; 12];
        for (i, size) in sizes.iter().enumerate() {
            starts[i + 1] = starts[i] + size;
        }
        starts
    }
}

/// The step's device buffer with its host image.
#[derive(Debug)]
pub struct StepBuffers<M> {
    device: Buf<M, u32>,
    host: Vec<u32>,
    shape: StepShape,
}

impl<M: DeviceMem> StepBuffers<M> {
    /// Takes a device buffer; steps of up to its length fit.
    pub fn new(device: Buf<M, u32>) -> Self {
        let host = Vec::with_capacity(device.len());
        Self { device, host, shape: StepShape::default() }
    }

    /// Lays out a step of `shape`, every part padded: nothing is written, nothing is attended, nothing is
    /// sampled.
    pub fn begin(&mut self, shape: StepShape) -> Result<StepFill<'_>> {
        let words = shape.words();
        if words > self.device.len() {
            return Err(Error::Shape { op: "step", what: "words", got: words, want: self.device.len() });
        }
        self.shape = shape;
        self.host.clear();
        self.host.resize(words, 0);
        let starts = shape.starts();
        self.host[starts[2]..starts[3]].fill(SKIP as u32);
        for part in [4, 9] {
            self.host[starts[part]..starts[part + 1]].fill(NO_ROW);
        }
        self.host[starts[11]..].fill(NO_ROW);
        Ok(StepFill { words: &mut self.host, starts })
    }

    /// The host image and the device buffer it goes to.
    pub fn upload_parts(&mut self) -> (&[u32], super::BufMut<'_, M, u32>) {
        (&self.host, self.device.view_mut())
    }

    /// Sizes of the step laid out last.
    pub fn shape(&self) -> StepShape {
        self.shape
    }

    /// Typed views of all parts.
    ///
    /// # Errors
    /// None where a step was laid out.
    pub fn view(&self) -> Result<StepView<'_, M>> {
        let (s, all) = (self.shape.starts(), self.device.view());
        let words = |part: usize| all.of_allocation(s[part]..s[part + 1]);
        Ok(StepView {
            shape: self.shape,
            ids: words(0)?,
            positions: words(1)?,
            slots: all.of_allocation(s[2]..s[3])?,
            token_type_ids: words(3)?,
            before: words(4)?,
            bounds: words(5)?,
            table_rows: words(6)?,
            kv_lens: words(7)?,
            wanted: words(8)?,
            sample_slots: words(9)?,
            sample_positions: words(10)?,
            table_edits: all.of_allocation(s[11]..self.shape.words())?,
        })
    }
}

/// The host image of a step while it is filled.
#[derive(Debug)]
pub struct StepFill<'a> {
    words: &'a mut [u32],
    starts: [usize; 12],
}

impl StepFill<'_> {
    fn part(&mut self, i: usize) -> &mut [u32] {
        let end = if i + 1 < self.starts.len() { self.starts[i + 1] } else { self.words.len() };
        &mut self.words[self.starts[i]..end]
    }

    /// Sets one token row.
    pub fn token(&mut self, row: usize, id: u32, position: u32, slot: i32, kind: u32) {
        self.part(0)[row] = id;
        self.part(1)[row] = position;
        self.part(2)[row] = slot as u32;
        self.part(3)[row] = kind;
    }

    /// Tells where the position before a token row lies: the slot that it was, or will be in this step,
    /// written to.
    pub fn before(&mut self, row: usize, slot: i32) {
        self.part(4)[row] = u32::try_from(slot).unwrap_or(NO_ROW);
    }

    /// Sets one sequence: its query rows end before `end`.
    pub fn seq(&mut self, s: usize, end: usize, table_row: u32, kv_len: u32) {
        // Padding sequences after this one are empty: they begin and end here.
        self.part(5)[s + 1..].fill(end as u32);
        self.part(6)[s] = table_row;
        self.part(7)[s] = kv_len;
    }

    /// Asks for the logits of token row `token`, and for a token sampled from them when `sample` is given as
    /// `(row of the sampling table, position of the new token)`.
    pub fn want(&mut self, row: usize, token: u32, sample: Option<(u32, u32)>) {
        self.part(8)[row] = token;
        if let Some((slot, position)) = sample {
            self.part(9)[row] = slot;
            self.part(10)[row] = position;
        }
    }

    /// Changes entry `index` of the page table to `page`.
    pub fn table_edit(&mut self, i: usize, index: u32, page: u32) {
        self.part(11)[2 * i] = index;
        self.part(11)[2 * i + 1] = page;
    }
}

/// Typed views of a step's parts; see the module's table.
#[derive(Debug)]
pub struct StepView<'a, M> {
    /// Sizes.
    pub shape: StepShape,
    /// `[tokens]` token ids.
    pub ids: BufRef<'a, M, u32>,
    /// `[tokens]` positions.
    pub positions: BufRef<'a, M, u32>,
    /// `[tokens]` write slots, [`SKIP`] = none.
    pub slots: BufRef<'a, M, i32>,
    /// `[tokens]` token type ids.
    pub token_type_ids: BufRef<'a, M, u32>,
    /// `[tokens]` slots of the positions before, [`NO_ROW`] = none.
    pub before: BufRef<'a, M, u32>,
    /// `[seqs + 1]` query row bounds.
    pub bounds: BufRef<'a, M, u32>,
    /// `[seqs]` page-table rows.
    pub table_rows: BufRef<'a, M, u32>,
    /// `[seqs]` keys, this step's included.
    pub kv_lens: BufRef<'a, M, u32>,
    /// `[rows]` token rows whose logits are wanted.
    pub wanted: BufRef<'a, M, u32>,
    /// `[rows]` rows of the sampling table, [`NO_ROW`] = none.
    pub sample_slots: BufRef<'a, M, u32>,
    /// `[rows]` positions of the tokens to sample.
    pub sample_positions: BufRef<'a, M, u32>,
    /// `[2 * table_edits]` page-table changes.
    pub table_edits: BufRef<'a, M, u32>,
}

copied!([M] StepView<'_, M>);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Host(usize);
    impl DeviceMem for Host {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn an_unfilled_step_does_nothing_and_parts_do_not_overlap() {
        let shape = StepShape { tokens: 3, seqs: 2, rows: 2, table_edits: 1, max_query: 2, max_keys: 9 };
        let mut step = StepBuffers::new(Buf::new(Host(4 * shape.words()), shape.words()).unwrap());
        let mut fill = step.begin(shape).unwrap();
        fill.token(0, 7, 5, 40, 1);
        fill.before(0, 39);
        fill.before(1, SKIP);
        fill.seq(0, 1, 3, 6);
        fill.want(0, 0, Some((3, 6)));
        let (host, _) = step.upload_parts();
        let want: [&[u32]; 12] = [
            &[7, 0, 0],
            &[5, 0, 0],
            &[40, SKIP as u32, SKIP as u32],
            &[1, 0, 0],
            &[39, NO_ROW, NO_ROW],
            &[0, 1, 1],
            &[3, 0],
            &[6, 0],
            &[0, 0],
            &[3, NO_ROW],
            &[6, 0],
            &[NO_ROW, NO_ROW],
        ];
        assert_eq!(host, want.concat());
    }

    #[test]
    fn a_step_that_is_too_large_is_refused() {
        let mut step = StepBuffers::new(Buf::new(Host(40), 10).unwrap());
        assert!(step.begin(StepShape { tokens: 3, ..Default::default() }).is_err());
    }
}
