//! What changes from step to step, in one device buffer.
//!
//! Ids, positions, page slots, sequence bounds, lengths and page-table changes are `u32` words of a single
//! allocation that one upload fills. Kernels read them from there and never from host-side arguments: that is
//! what lets a captured step be replayed. The words themselves ([`StepWords`]) are plain data that know of no
//! device: whoever plans a step fills them, whoever runs it uploads them and looks at the parts
//! ([`StepView`]). A bucket of [`crate::graph`] has a fixed [`StepShape`] and so fixed
//! offsets; unused rows are padded so that they write nothing.
//!
//! | part | words | meaning |
//! | --- | --- | --- |
//! | `ids` | tokens | token ids |
//! | `positions` | tokens | absolute position in the sequence |
//! | `slots` | tokens, `i32` | page slot, `page * page_size + offset`, to write K and V to, [`SKIP`] for none |
//! | `token_type_ids` | tokens | token type ids (encoders), else 0 |
//! | `before` | tokens | page slot of the position before, [`NO_ROW`] for none |
//! | `feeds` | tokens | row of the logits of the step before whose sampled token takes the place of the id, or [`NO_ROW`] |
//! | `bounds` | seqs + 1 | sequence `s` has the query rows `bounds[s]..bounds[s + 1]` |
//! | `table_rows` | seqs | the sequence's request slot: its row of the page table |
//! | `kv_lens` | seqs | its keys, this step's included; 0 for padding |
//! | `cross_rows` | seqs | of models with an encoder: row of the page table with the keys of its rows |
//! | `cross_lens` | seqs | those keys; 0 for padding |
//! | `wanted` | rows | token rows whose logits are asked for |
//! | `sample_slots` | rows | request slot: row of the sampling table, [`NO_ROW`] for none |
//! | `sample_positions` | rows | position of the token to sample |
//! | `table_edits` | 2 x table_edits | `(index, page)` to write into the page table, index [`NO_ROW`] for none |

use super::DeviceMem;
use super::view::BufRef;
use crate::Result;

/// Page slot of a token that writes nothing.
pub const SKIP: i32 = -1;
/// Index that means "no row".
pub const NO_ROW: u32 = u32::MAX;

/// Most tokens, sequences, rows and edits of a step that another process sends.
const MOST_SENT: usize = 1 << 28;

/// Numbers of the parts, in their order.
const IDS: usize = 0;
const POSITIONS: usize = 1;
const SLOTS: usize = 2;
const TOKEN_TYPES: usize = 3;
const BEFORE: usize = 4;
const FEEDS: usize = 5;
const BOUNDS: usize = 6;
const TABLE_ROWS: usize = 7;
const KV_LENS: usize = 8;
const CROSS_ROWS: usize = 9;
const CROSS_LENS: usize = 10;
const WANTED: usize = 11;
const SAMPLE_SLOTS: usize = 12;
const SAMPLE_POSITIONS: usize = 13;
const TABLE_EDITS: usize = 14;
const PARTS: usize = 15;

/// Sizes of one step, or the bounds of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct StepShape {
    /// Token rows.
    pub tokens: usize,
    /// Sequences.
    pub seqs: usize,
    /// Token rows whose logits are wanted.
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
        6 * self.tokens + (self.seqs + 1) + 4 * self.seqs + 3 * self.rows + 2 * self.table_edits
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

    fn starts(&self) -> [usize; PARTS] {
        let sizes = [
            self.tokens,
            self.tokens,
            self.tokens,
            self.tokens,
            self.tokens,
            self.tokens,
            self.seqs + 1,
            self.seqs,
            self.seqs,
            self.seqs,
            self.seqs,
            self.rows,
            self.rows,
            self.rows,
        ];
        let mut starts = [0; PARTS];
        for (i, size) in sizes.iter().enumerate() {
            starts[i + 1] = starts[i] + size;
        }
        starts
    }
}

/// The words of one step.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "SentWords")]
pub struct StepWords {
    shape: StepShape,
    words: Vec<u32>,
}

/// Words as another process sends them: of any length.
#[derive(serde::Deserialize)]
struct SentWords {
    shape: StepShape,
    words: Vec<u32>,
}

impl TryFrom<SentWords> for StepWords {
    type Error = String;

    fn try_from(SentWords { shape, words }: SentWords) -> std::result::Result<Self, String> {
        let StepShape { tokens, seqs, rows, table_edits, .. } = shape;
        // Of as many no sum overflows.
        let counted = [tokens, seqs, rows, table_edits].iter().all(|n| *n <= MOST_SENT);
        match counted && (words.len() == shape.words() || shape == StepShape::default() && words.is_empty()) {
            true => Ok(Self { shape, words }),
            false => Err(format!("{} words are no step of {shape:?}", words.len())),
        }
    }
}

impl StepWords {
    /// Room for steps of up to so many words: laying them out allocates nothing.
    pub fn with_capacity(words: usize) -> Self {
        Self { shape: StepShape::default(), words: Vec::with_capacity(words) }
    }

    /// Lays out a step of `shape`, every part padded: nothing is written, nothing is attended, nothing is
    /// sampled.
    pub fn begin(&mut self, shape: StepShape) -> StepFill<'_> {
        self.begin_lone(shape, 0)
    }

    /// The same, but for the words of its first `n` token rows, rows of logits and sequences, which
    /// [`StepFill::lone`] has to set: what they hold now is not known.
    pub(crate) fn begin_lone(&mut self, shape: StepShape, n: usize) -> StepFill<'_> {
        let starts = shape.starts();
        self.shape = shape;
        self.words.resize(shape.words(), 0);
        let mut rest = self.words.as_mut_slice();
        let parts = std::array::from_fn(|i| {
            let len = starts.get(i + 1).map_or(rest.len(), |end| end - starts[i]);
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            let set = match i {
                TOKEN_TYPES | BEFORE | CROSS_ROWS | CROSS_LENS | TABLE_EDITS => 0,
                BOUNDS => n + 1,
                _ => n,
            };
            part.get_mut(set..).unwrap_or_default().fill(match i {
                SLOTS => SKIP as u32,
                BEFORE | FEEDS | SAMPLE_SLOTS | TABLE_EDITS => NO_ROW,
                _ => 0,
            });
            part
        });
        let fill = StepFill { parts };
        fill.parts[BOUNDS][0] = 0;
        fill
    }

    /// Sizes of the step laid out last.
    pub fn shape(&self) -> StepShape {
        self.shape
    }

    /// All parts, one after the other.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Query rows of every sequence.
    pub fn query_rows(&self) -> Vec<usize> {
        let starts = self.shape.starts();
        let bounds = self.words.get(starts[BOUNDS]..starts[BOUNDS + 1]).unwrap_or_default();
        bounds.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as usize).collect()
    }
}

/// A sequence whose part of a step is one token, from which the next one is sampled.
#[derive(Debug, Clone, Copy)]
pub struct LoneRow {
    /// Token id, and the row of the logits of the step before whose token takes its place, or [`NO_ROW`].
    pub id: u32,
    /// See `id`.
    pub feed: u32,
    /// Page slot to write keys and values to.
    pub slot: i32,
    /// Request slot.
    pub row: u32,
    /// Position in the sequence.
    pub position: u32,
    /// How far its row of the rotary tables lies behind its position.
    pub shift: u32,
}

/// The host image of a step while it is filled.
#[derive(Debug)]
pub struct StepFill<'a> {
    parts: [&'a mut [u32]; PARTS],
}

impl StepFill<'_> {
    /// Sets one token row.
    #[inline]
    pub fn token(&mut self, row: usize, id: u32, position: u32, slot: i32, token_type: u32) {
        self.parts[IDS][row] = id;
        self.parts[POSITIONS][row] = position;
        self.parts[SLOTS][row] = slot as u32;
        self.parts[TOKEN_TYPES][row] = token_type;
    }

    /// Sets parts of one token each, from a token row, a row of logits and a sequence on.
    #[inline(never)]
    pub fn lone<P>(&mut self, [token, row, seq]: [usize; 3], parts: &[P], of: impl Fn(&P) -> LoneRow) {
        let [ids, positions, slots, _, _, feeds, bounds, table_rows, kv_lens, _, _, wanted, sampled, next, _] =
            &mut self.parts;
        let n = parts.len();
        let [ids, positions, slots, feeds] =
            [ids, positions, slots, feeds].map(|part| &mut part[token..][..n]);
        let bounds = &mut bounds[seq + 1..][..n];
        let [table_rows, kv_lens] = [table_rows, kv_lens].map(|part| &mut part[seq..][..n]);
        let [wanted, sampled, next] = [wanted, sampled, next].map(|part| &mut part[row..][..n]);
        // Few words at a time, so that where they go is in registers.
        for (((part, id), feed), position) in parts.iter().zip(ids).zip(feeds).zip(positions) {
            let of = of(part);
            (*id, *feed, *position) = (of.id, of.feed, of.position + of.shift);
        }
        for (((part, slot), row), next) in parts.iter().zip(slots).zip(&mut *sampled).zip(&mut *next) {
            let of = of(part);
            (*slot, *row, *next) = (of.slot as u32, of.row, of.position + 1);
        }
        // What follows from these, many at once.
        table_rows.copy_from_slice(sampled);
        kv_lens.copy_from_slice(next);
        for ((bound, wanted), at) in bounds.iter_mut().zip(wanted).zip(0..n as u32) {
            (*bound, *wanted) = (token as u32 + at + 1, token as u32 + at);
        }
    }

    /// Sets where the position before a token row lies: the page slot that it was, or will be in this step,
    /// written to.
    pub fn before(&mut self, row: usize, slot: i32) {
        self.parts[BEFORE][row] = u32::try_from(slot).unwrap_or(NO_ROW);
    }

    /// Takes the id of a token row from the device: what was sampled from row `from` of the
    /// logits of the step before.
    #[inline]
    pub fn feed(&mut self, row: usize, from: u32) {
        self.parts[FEEDS][row] = from;
    }

    /// Sets one sequence: its query rows end before `end`. Sequences are set in their order.
    #[inline]
    pub fn seq(&mut self, s: usize, end: usize, table_row: u32, kv_len: u32) {
        self.parts[BOUNDS][s + 1] = end as u32;
        self.parts[TABLE_ROWS][s] = table_row;
        self.parts[KV_LENS][s] = kv_len;
    }

    /// Of a sequence that was set: the row of the page table with the keys of its encoder's rows, and how
    /// many there are.
    pub fn cross(&mut self, s: usize, table_row: u32, len: u32) {
        self.parts[CROSS_ROWS][s] = table_row;
        self.parts[CROSS_LENS][s] = len;
    }

    /// Behind the last sequence that was set, `s`: those after it are padding, empty, and begin and end where
    /// it ends.
    pub fn pad_behind(&mut self, s: usize) {
        let bounds = &mut self.parts[BOUNDS];
        let end = bounds[s + 1];
        bounds[s + 2..].fill(end);
    }

    /// Asks for the logits of token row `token`, and for a token sampled from them when `sample` is given as
    /// `(request slot, position of the new token)`.
    #[inline]
    pub fn want(&mut self, row: usize, token: u32, sample: Option<(u32, u32)>) {
        self.parts[WANTED][row] = token;
        if let Some((slot, position)) = sample {
            self.parts[SAMPLE_SLOTS][row] = slot;
            self.parts[SAMPLE_POSITIONS][row] = position;
        }
    }

    /// Changes entry `index` of the page table to `page`.
    pub fn table_edit(&mut self, i: usize, index: u32, page: u32) {
        self.parts[TABLE_EDITS][2 * i] = index;
        self.parts[TABLE_EDITS][2 * i + 1] = page;
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
    /// `[tokens]` page slots to write to, [`SKIP`] = none.
    pub slots: BufRef<'a, M, i32>,
    /// `[tokens]` token type ids.
    pub token_type_ids: BufRef<'a, M, u32>,
    /// `[tokens]` page slots of the positions before, [`NO_ROW`] = none.
    pub before: BufRef<'a, M, u32>,
    /// `[tokens]` rows of the logits of the step before, whose tokens to take as ids, [`NO_ROW`] = none.
    pub feeds: BufRef<'a, M, u32>,
    /// `[seqs + 1]` query row bounds.
    pub bounds: BufRef<'a, M, u32>,
    /// `[seqs]` request slots: rows of the page table.
    pub table_rows: BufRef<'a, M, u32>,
    /// `[seqs]` keys, this step's included.
    pub kv_lens: BufRef<'a, M, u32>,
    /// `[seqs]` rows of the page table with the keys of encoders' rows.
    pub cross_rows: BufRef<'a, M, u32>,
    /// `[seqs]` those keys.
    pub cross_lens: BufRef<'a, M, u32>,
    /// `[rows]` token rows whose logits are wanted.
    pub wanted: BufRef<'a, M, u32>,
    /// `[rows]` request slots: rows of the sampling table, [`NO_ROW`] = none.
    pub sample_slots: BufRef<'a, M, u32>,
    /// `[rows]` positions of the tokens to sample.
    pub sample_positions: BufRef<'a, M, u32>,
    /// `[2 * table_edits]` page-table changes.
    pub table_edits: BufRef<'a, M, u32>,
}

copied!([M] StepView<'_, M>);

impl<'a, M: DeviceMem> StepView<'a, M> {
    /// The parts of a step of this shape, whose words lie at the front of a buffer.
    ///
    /// # Errors
    /// `Shape` where the buffer is too small for it.
    pub fn new(buffer: BufRef<'a, M, u32>, shape: StepShape) -> Result<Self> {
        let (s, all) = (shape.starts(), buffer.slice(0..shape.words())?);
        let words = |part: usize| all.of_allocation(s[part]..s[part + 1]);
        Ok(StepView {
            shape,
            ids: words(IDS)?,
            positions: words(POSITIONS)?,
            slots: all.of_allocation(s[SLOTS]..s[SLOTS + 1])?,
            token_type_ids: words(TOKEN_TYPES)?,
            before: words(BEFORE)?,
            feeds: words(FEEDS)?,
            bounds: words(BOUNDS)?,
            table_rows: words(TABLE_ROWS)?,
            kv_lens: words(KV_LENS)?,
            cross_rows: words(CROSS_ROWS)?,
            cross_lens: words(CROSS_LENS)?,
            wanted: words(WANTED)?,
            sample_slots: words(SAMPLE_SLOTS)?,
            sample_positions: words(SAMPLE_POSITIONS)?,
            table_edits: all.of_allocation(s[TABLE_EDITS]..shape.words())?,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::Buf;

    struct Host(usize);
    impl DeviceMem for Host {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn an_unfilled_step_does_nothing_and_parts_do_not_overlap() {
        let shape = StepShape { tokens: 3, seqs: 2, rows: 2, table_edits: 1, max_query: 2, max_keys: 9 };
        let mut step = StepWords::default();
        let mut fill = step.begin(shape);
        fill.token(0, 7, 5, 40, 1);
        fill.before(0, 39);
        fill.before(1, SKIP);
        fill.feed(2, 1);
        fill.seq(0, 1, 3, 6);
        fill.cross(0, 2, 5);
        fill.pad_behind(0);
        fill.want(0, 0, Some((3, 6)));
        let want: [&[u32]; PARTS] = [
            &[7, 0, 0],
            &[5, 0, 0],
            &[40, SKIP as u32, SKIP as u32],
            &[1, 0, 0],
            &[39, NO_ROW, NO_ROW],
            &[NO_ROW, NO_ROW, 1],
            &[0, 1, 1],
            &[3, 0],
            &[6, 0],
            &[2, 0],
            &[5, 0],
            &[0, 0],
            &[3, NO_ROW],
            &[6, 0],
            &[NO_ROW, NO_ROW],
        ];
        assert_eq!(step.words(), want.concat());
        assert_eq!(step.query_rows(), [1, 0]);
        assert!(StepWords::default().query_rows().is_empty());
        let buffer = Buf::<Host, u32>::new(Host(4 * shape.words()), shape.words()).unwrap();
        let view = StepView::new(buffer.view(), shape).unwrap();
        assert_eq!((view.feeds.offset(), view.table_edits.len()), (5 * 3, 2));
    }

    #[test]
    fn parts_of_one_token_are_as_if_set_one_by_one() {
        let shape = StepShape { tokens: 6, seqs: 5, rows: 4, ..StepShape::default() };
        let lone = |i: u32| LoneRow {
            id: 7 + i,
            feed: if i == 1 { 2 } else { NO_ROW },
            slot: 40 + i as i32,
            row: 9 - i,
            position: 100 * i,
            shift: 30 + i,
        };
        let (mut all, mut each) = (StepWords::default(), StepWords::default());
        let (mut run, mut one) = (all.begin(shape), each.begin(shape));
        run.lone([2, 1, 1], &[0, 1, 2], |i| lone(*i));
        run.pad_behind(3);
        for i in 0..3 {
            let (of, at) = (lone(i as u32), 2 + i);
            one.token(at, of.id, of.position + of.shift, of.slot, 0);
            one.feed(at, of.feed);
            one.seq(1 + i, at + 1, of.row, of.position + 1);
            one.want(1 + i, at as u32, Some((of.row, of.position + 1)));
        }
        one.pad_behind(3);
        assert_eq!(all, each);
        // Nor does it show what the words held before.
        let (mut again, mut fresh) = (each, StepWords::default());
        again.words.resize(900, 0);
        again.words.fill(77);
        for n in [3, 4] {
            let mut run = again.begin_lone(shape, n);
            run.lone([0; 3], &[0, 1, 2, 3][..n], |i| lone(*i));
            run.pad_behind(n - 1);
            let mut run = fresh.begin(shape);
            run.lone([0; 3], &[0, 1, 2, 3][..n], |i| lone(*i));
            run.pad_behind(n - 1);
            assert_eq!(again, fresh);
        }
    }

    #[test]
    fn a_step_that_is_too_large_is_refused() {
        let buffer = Buf::<Host, u32>::new(Host(40), 10).unwrap();
        assert!(StepView::new(buffer.view(), StepShape { tokens: 3, ..Default::default() }).is_err());
    }
}
