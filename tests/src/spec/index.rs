//! An index of keys: `index_scores` and `index_choose`.
//!
//! Pages are handed out in random order, and slots that no sequence owns hold NaN. Scores begin as a pattern
//! that stays where nothing is written.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::ORACLE;
use crate::oracle::index as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::{Backend, Mem};
use engraft_core::mem::{Buf, DeviceMem, Float, Table};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, IndexOp, IndexOpKind, Op, OpKind, Sequences};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(IndexScores);
    visitor.visit(IndexChoose);
}

/// Sequences, their pages, and which rows are looked at.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Queries and keys of every sequence.
    pub seqs: Vec<(usize, usize)>,
    /// Token rows behind the last one.
    pub padding: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// `[seqs, stride]`.
    pub pages: Vec<u32>,
    /// Entries of a row.
    pub stride: usize,
    /// Pages that there are.
    pub count_of_pages: usize,
    /// The first token row, and how many.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// Keys that have a score at most.
    pub keys: usize,
    /// Keys that a query chooses.
    pub count: usize,
}

impl Seen {
    fn random(dice: &mut Dice) -> Self {
        let counts = dice.pick(&[1, 2, 3, 5]);
        let seqs: Vec<(usize, usize)> = (0..counts)
            .map(|_| {
                let len: usize = dice.pick(&[0, 1, 2, 5, 31, 64, 65, 130, 300]);
                (dice.pick(&[0, 1, 1, 2, 7]).min(len), len)
            })
            .collect();
        let padding = dice.pick(&[0, 0, 1, 3]);
        let tokens = seqs.iter().map(|seq| seq.0).sum::<usize>() + padding;
        let first = if tokens > 1 && dice.once_in(2) { dice.below(tokens) } else { 0 };
        let rows = if dice.once_in(2) { tokens - first } else { dice.below(tokens - first + 1) };
        let longest = seqs.iter().map(|seq| seq.1).max().unwrap_or(0).max(1);
        let keys = if dice.once_in(4) { 1 + dice.below(longest) } else { longest + dice.below(3) };
        let count = dice.pick(&[1, 2, 4, 7, 33, 64, 100, 400]);
        Self::of(dice, seqs, padding, (first, rows), [keys, count])
    }

    fn of(
        dice: &mut Dice,
        seqs: Vec<(usize, usize)>,
        padding: usize,
        (first, rows): (usize, usize),
        [keys, count]: [usize; 2],
    ) -> Self {
        let page_size = dice.pick(&[1, 3, 16, 64]);
        let of = |len: usize| len.div_ceil(page_size);
        let stride = seqs.iter().map(|seq| of(seq.1)).max().unwrap_or(0).max(1);
        let count_of_pages = seqs.iter().map(|seq| of(seq.1)).sum::<usize>() + 2;
        let mut free = dice.shuffled(count_of_pages).into_iter();
        let mut pages = vec![u32::MAX; seqs.len() * stride];
        for (s, (_, len)) in seqs.iter().enumerate() {
            for entry in 0..of(*len) {
                pages[s * stride + entry] = free.next().unwrap_or(0) as u32;
            }
        }
        Self { seqs, padding, page_size, pages, stride, count_of_pages, first, rows, keys, count }
    }

    fn tokens(&self) -> usize {
        self.seqs.iter().map(|seq| seq.0).sum::<usize>() + self.padding
    }

    /// Page slots.
    pub fn slots(&self) -> usize {
        self.count_of_pages * self.page_size
    }

    /// The page slots of the keys that a row sees.
    pub fn of_row(&self, row: usize) -> Vec<usize> {
        let mut begin = 0;
        for (s, (queries, len)) in self.seqs.iter().enumerate() {
            let token = self.first + row;
            if token >= begin && token < begin + queries {
                let seen = (len - queries + token - begin + 1).min(self.keys);
                let slot = |key: usize| {
                    let page = self.pages[s * self.stride + key / self.page_size] as usize;
                    page * self.page_size + key % self.page_size
                };
                return (0..seen).map(slot).collect();
            }
            begin += queries;
        }
        Vec::new()
    }

    /// Bounds, rows of the table, lengths.
    fn words(&self) -> Vec<u32> {
        let mut bounds = vec![0];
        self.seqs.iter().for_each(|seq| bounds.push(bounds[bounds.len() - 1] + seq.0 as u32));
        let rows = 0..self.seqs.len() as u32;
        bounds.into_iter().chain(rows).chain(self.seqs.iter().map(|seq| seq.1 as u32)).collect()
    }

    fn sequences<'a, M: DeviceMem>(&self, words: &'a Buf<M, u32>) -> Result<Sequences<'a, M>> {
        let n = self.seqs.len();
        let part = |from: usize, len: usize| words.view().slice(from..from + len);
        Ok(Sequences {
            bounds: part(0, n + 1)?,
            table_rows: part(n + 1, n)?,
            kv_lens: part(2 * n + 1, n)?,
            max_query: self.seqs.iter().map(|seq| seq.0).max().unwrap_or(0),
            max_keys: self.seqs.iter().map(|seq| seq.1).max().unwrap_or(0),
        })
    }

    /// Row `r` of those that are looked at, alone.
    fn only(&self, r: usize) -> Self {
        Self { first: self.first + r, rows: 1, ..self.clone() }
    }
}

/// Queries and keys.
#[derive(Debug, Clone)]
pub struct ScoresCase {
    /// What rows see.
    pub seen: Seen,
    /// `[tokens, heads * width]`.
    pub q: Grid,
    /// `[tokens, heads]`.
    pub factors: Grid,
    /// `[slots, some of width]`.
    pub low: Grid,
    /// `[slots, the rest of width]`.
    pub high: Grid,
    /// Heads.
    pub heads: usize,
    /// Factor of the products.
    pub scale: f32,
    /// What the scores hold at first.
    pub out: Grid,
}

impl ScoresCase {
    fn new(dice: &mut Dice, dtype: Float, seen: Seen, [heads, low, high]: [usize; 3]) -> Self {
        let kv = if dice.once_in(3) { dice.pick(&[Float::F32, Float::F16, Float::Bf16]) } else { dtype };
        let tokens = seen.tokens();
        let owned: Vec<bool> = {
            let mut owned = vec![false; seen.slots()];
            for (s, (_, len)) in seen.seqs.iter().enumerate() {
                for key in 0..*len {
                    let page = seen.pages[s * seen.stride + key / seen.page_size] as usize;
                    owned[page * seen.page_size + key % seen.page_size] = true;
                }
            }
            owned
        };
        let mut keys = |cols: usize| {
            let mut grid = Grid::random(dice, seen.slots(), cols, kv, 1.0);
            for (slot, row) in grid.values.chunks_mut(cols).enumerate() {
                if !owned[slot] {
                    row.fill(f32::NAN);
                }
            }
            grid
        };
        let (low, high) = (keys(low), keys(high));
        let width = low.cols + high.cols;
        let mut out = Grid::random(dice, seen.rows, seen.keys, Float::F32, 1.0);
        out.lay = Lay::random(dice);
        Self {
            q: Grid::random(dice, tokens, heads * width, dtype, 2.0),
            factors: Grid::random(dice, tokens, heads, dtype, 1.0),
            low,
            high,
            heads,
            scale: dice.pick(&[1.0, 0.125, 0.037]),
            out,
            seen,
        }
    }
}

/// `index_scores`.
#[derive(Debug, Clone, Copy)]
pub struct IndexScores;

impl OpSpec for IndexScores {
    type Case = ScoresCase;
    fn kind(&self) -> OpKind {
        IndexOpKind::IndexScores.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> ScoresCase {
        let seen = Seen::random(dice);
        let sizes = [dice.pick(&[1, 2, 7, 8, 9, 17]), dice.pick(&[1, 4, 9]), dice.pick(&[1, 4, 16])];
        ScoresCase::new(dice, dtype, seen, sizes)
    }
    fn large(&self, dtype: Float, dice: &mut Dice) -> Vec<ScoresCase> {
        let seen = Seen::of(dice, vec![(2, 1500)], 0, (0, 2), [1500, 512]);
        vec![ScoresCase::new(dice, dtype, seen, [32, 64, 64])]
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ScoresCase) -> Result<Vec<Output>> {
        let (q, factors, low, high) =
            (dev.grid(&case.q)?, dev.grid(&case.factors)?, dev.grid(&case.low)?, dev.grid(&case.high)?);
        let (words, pages) = (dev.buffer(&case.seen.words())?, dev.buffer(&case.seen.pages)?);
        let mut out = dev.grid(&case.out)?;
        let Seen { page_size, first, count, stride, .. } = case.seen;
        dev.launch(|to| {
            to.run(ops::IndexScores {
                q: q.view()?,
                factors: factors.view()?,
                low: low.view()?,
                high: high.view()?,
                heads: case.heads,
                scale: case.scale,
                seqs: case.seen.sequences(&words)?,
                table: Table { pages: pages.view(), stride },
                page_size,
                first,
                count,
                out: out.view_mut()?,
            })
        })?;
        Ok(vec![dev.read(&out, "scores")?])
    }
    fn oracle(&self, case: &ScoresCase, _: Madd) -> Vec<Want> {
        vec![oracle::scores(case)]
    }
    fn strict(&self, case: &ScoresCase, madd: Madd) -> Option<Vec<Want>> {
        Some(vec![oracle::strict_scores(case, madd)])
    }
    fn alone(&self, case: &ScoresCase, dice: &mut Dice) -> Option<Part<ScoresCase>> {
        if case.seen.rows == 0 {
            return None;
        }
        let r = dice.below(case.seen.rows);
        Some((ScoresCase { seen: case.seen.only(r), out: case.out.only(r), ..case.clone() }, vec![r..r + 1]))
    }
}

/// Scores.
#[derive(Debug, Clone)]
pub struct ChooseCase {
    /// What rows see.
    pub seen: Seen,
    /// `[rows, keys]`.
    pub scores: Grid,
}

/// `index_choose`.
#[derive(Debug, Clone, Copy)]
pub struct IndexChoose;

impl OpSpec for IndexChoose {
    type Case = ChooseCase;
    fn kind(&self) -> OpKind {
        IndexOpKind::IndexChoose.into()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> ChooseCase {
        let seen = Seen::random(dice);
        let mut scores = Grid::random(dice, seen.rows, seen.keys, Float::F32, 1.0);
        // Many equals, both zeros and what is no number among them; or all of them one number, which both
        // zeros are.
        let few = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];
        let equals = dice.once_in(4).then(|| dice.pick(&[[0.5, 0.5], [0.0, -0.0]]));
        for score in &mut scores.values {
            if let Some(equals) = &equals {
                *score = dice.pick(equals);
            } else if dice.once_in(2) {
                *score = dice.pick(&few);
            }
        }
        ChooseCase { seen, scores }
    }
    fn large(&self, _: Float, dice: &mut Dice) -> Vec<ChooseCase> {
        let seen = Seen::of(dice, vec![(3, 5000), (1, 2048)], 0, (0, 4), [5000, 2048]);
        let scores = Grid::random(dice, seen.rows, seen.keys, Float::F32, 1.0);
        // One number in two spellings, of the first too few for the choice; some above and below it.
        let mut equals = scores.clone();
        equals.values.iter_mut().for_each(|score| *score = dice.pick(&[0.0, -0.0, -0.0, -0.0, 1.0, -1.0]));
        vec![ChooseCase { seen: seen.clone(), scores }, ChooseCase { seen, scores: equals }]
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &ChooseCase) -> Result<Vec<Output>> {
        let (scores, words) = (dev.grid(&case.scores)?, dev.buffer(&case.seen.words())?);
        let pages = dev.buffer(&case.seen.pages)?;
        let Seen { page_size, first, count, stride, rows, .. } = case.seen;
        let (mut chosen, mut counts): (Buf<Mem<B>, u32>, _) = (dev.words(rows * count)?, dev.words(rows)?);
        dev.launch(|to| {
            to.run(ops::IndexChoose {
                scores: scores.view()?,
                seqs: case.seen.sequences(&words)?,
                table: Table { pages: pages.view(), stride },
                page_size,
                first,
                count,
                chosen: chosen.view_mut(),
                counts: counts.view_mut(),
            })
        })?;
        Ok(vec![dev.read_words(&chosen, "chosen")?, dev.read_words(&counts, "counts")?])
    }
    fn oracle(&self, case: &ChooseCase, _: Madd) -> Vec<Want> {
        oracle::choose(case)
    }
    fn alone(&self, case: &ChooseCase, dice: &mut Dice) -> Option<Part<ChooseCase>> {
        if case.seen.rows == 0 {
            return None;
        }
        let (r, count) = (dice.below(case.seen.rows), case.seen.count);
        let part = ChooseCase { seen: case.seen.only(r), scores: case.scores.only(r) };
        Some((part, vec![r * count..(r + 1) * count, r..r + 1]))
    }
}

/// Planted in the index.
pub const BUGS: &[Bug] = &[
    Bug::new("IndexForgetsScale", "index_scores", ORACLE, forgets_scale),
    Bug::new("IndexIsOfTheNextToken", "index_scores", ORACLE, next_token),
    Bug::new("IndexChoosesOneLess", "index_choose", ORACLE, one_less),
    Bug::new("IndexCountsOneMore", "index_choose", ORACLE, one_more),
];

fn forgets_scale(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Index(IndexOp::IndexScores(op)) = op else { return s.run(op) };
    s.run(ops::IndexScores { scale: 2.0 * op.scale, ..op })
}

fn next_token(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Index(IndexOp::IndexScores(op)) = op else { return s.run(op) };
    let rows = op.out.rows();
    match op.first + rows < op.q.rows() {
        true => s.run(ops::IndexScores { first: op.first + 1, ..op }),
        false => s.run(ops::IndexScores { first: op.first.saturating_sub(1), ..op }),
    }
}

fn one_less(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Index(IndexOp::IndexChoose(op)) = op else { return s.run(op) };
    let keys = op.scores.cols() - 1;
    s.run(ops::IndexChoose { scores: op.scores.columns(0..keys)?, ..op })
}

fn one_more(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Index(IndexOp::IndexChoose(op)) = op else { return s.run(op) };
    let lens = s.changed(op.seqs.kv_lens, |len| len + 1)?;
    s.run(ops::IndexChoose { seqs: Sequences { kv_lens: lens.view(), ..op.seqs }, ..op })
}

/// Sizes that only bound what is looked at.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("index_scores", "out", Field::Cols, "keys behind them have no score"),
    Lawful::new("index_scores", "out", Field::Rows, "fewer rows"),
    Lawful::new("index_scores", "first", Field::Size, "other rows"),
    Lawful::new("index_scores", "count", Field::Size, "more or fewer rows need scores"),
    Lawful::new("index_scores", "page_size", Field::Size, "other slots"),
    Lawful::new("index_choose", "scores", Field::Cols, "keys behind them are not chosen"),
    Lawful::new("index_choose", "first", Field::Size, "other rows"),
    Lawful::new("index_choose", "page_size", Field::Size, "other slots"),
    Lawful::new("index_scores", "table", Field::Len, "any whole rows"),
    Lawful::new("index_scores", "stride", Field::Size, "rows of another length that fill the table"),
    Lawful::new("index_scores", "most queries", Field::Size, "launches are sized by other numbers"),
    Lawful::new("index_scores", "most keys", Field::Size, "launches are sized by other numbers"),
    Lawful::new("index_choose", "table", Field::Len, "any whole rows"),
    Lawful::new("index_choose", "stride", Field::Size, "rows of another length that fill the table"),
    Lawful::new("index_choose", "most queries", Field::Size, "launches are sized by other numbers"),
    Lawful::new("index_choose", "most keys", Field::Size, "launches are sized by other numbers"),
];
