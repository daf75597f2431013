//! Ops that move rows and words: `gather_rows`, `scatter`, `mark_seen`, `feed_tokens`. All exact.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::ORACLE;
use crate::oracle::rows as oracle;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Op, OpKind, RowsOp, RowsOpKind};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(GatherRows);
    visitor.visit(Scatter);
    visitor.visit(MarkSeen);
    visitor.visit(FeedTokens);
}

/// Rows of a matrix by number.
#[derive(Debug, Clone)]
pub struct GatherCase {
    /// `[any, cols]`.
    pub x: Grid,
    /// Which of its rows.
    pub rows: Vec<u32>,
    lay: Lay,
}

/// `gather_rows`.
#[derive(Debug, Clone, Copy)]
pub struct GatherRows;

impl OpSpec for GatherRows {
    type Case = GatherCase;
    fn kind(&self) -> OpKind {
        RowsOpKind::GatherRows.into()
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> GatherCase {
        let (rows, cols) = (dice.rows(), dice.size());
        let x = Grid::random(dice, rows, cols, dtype, 1.0);
        let wanted = (0..dice.rows()).map(|_| dice.below(rows + 2) as u32).collect();
        GatherCase { x, rows: wanted, lay: Lay::random(dice) }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &GatherCase) -> Result<Vec<Output>> {
        let (x, rows) = (dev.grid(&case.x)?, dev.buffer(&case.rows)?);
        let mut out = dev.output(case.rows.len(), case.x.cols, case.x.dtype, case.lay)?;
        dev.launch(|to| to.run(ops::GatherRows { x: x.view()?, rows: rows.view(), out: out.view_mut()? }))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &GatherCase, _: Madd) -> Vec<Want> {
        vec![oracle::gather_rows(case)]
    }
    fn alone(&self, case: &GatherCase, dice: &mut Dice) -> Option<Part<GatherCase>> {
        let r = dice.below(case.rows.len());
        Some((GatherCase { rows: vec![case.rows[r]], ..case.clone() }, vec![r..r + 1]))
    }
}

/// Words and their changes, or bits and their row.
#[derive(Debug, Clone)]
pub struct WordsCase {
    /// What is there.
    pub words: Vec<u32>,
    /// Pairs of index and value, or ids.
    pub changes: Vec<u32>,
    /// The row.
    pub slot: usize,
    /// Words of a row.
    pub width: usize,
}

/// `scatter`.
#[derive(Debug, Clone, Copy)]
pub struct Scatter;

impl OpSpec for Scatter {
    type Case = WordsCase;
    fn kind(&self) -> OpKind {
        RowsOpKind::Scatter.into()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> WordsCase {
        let len = dice.size();
        let words = (0..len).map(|_| dice.bits() as u32).collect();
        let count = dice.below(len + 1);
        let mut changes = Vec::new();
        for index in dice.shuffled(len).into_iter().take(count) {
            // Every fifth change is addressed to nowhere.
            let index = if dice.once_in(5) { dice.pick(&[NO_ROW, len as u32]) } else { index as u32 };
            changes.extend([index, dice.bits() as u32]);
        }
        if changes.is_empty() {
            changes.extend([NO_ROW, 7]);
        }
        WordsCase { words, changes, slot: 0, width: 0 }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &WordsCase) -> Result<Vec<Output>> {
        let (mut words, pairs) = (dev.buffer(&case.words)?, dev.buffer(&case.changes)?);
        dev.launch(|to| to.run(ops::Scatter { pairs: pairs.view(), dst: words.view_mut() }))?;
        Ok(vec![dev.read_words(&words, "dst")?])
    }
    fn oracle(&self, case: &WordsCase, _: Madd) -> Vec<Want> {
        vec![oracle::scatter(case)]
    }
}

/// `mark_seen`.
#[derive(Debug, Clone, Copy)]
pub struct MarkSeen;

impl OpSpec for MarkSeen {
    type Case = WordsCase;
    fn kind(&self) -> OpKind {
        RowsOpKind::MarkSeen.into()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> WordsCase {
        let (slots, width) = (1 + dice.below(4), dice.pick(&[1, 2, 7]));
        let words = (0..slots * width).map(|_| dice.bits() as u32).collect();
        // Some ids lie beyond the row.
        let count = dice.size();
        let id = |_| if dice.once_in(9) { dice.bits() as u32 } else { dice.below(32 * width + 2) as u32 };
        let changes = (0..count).map(id).collect();
        WordsCase { words, changes, slot: dice.below(slots), width }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &WordsCase) -> Result<Vec<Output>> {
        let (mut seen, ids) = (dev.buffer(&case.words)?, dev.buffer(&case.changes)?);
        let (slot, words) = (case.slot, case.width);
        dev.launch(|to| to.run(ops::MarkSeen { ids: ids.view(), slot, words, seen: seen.view_mut() }))?;
        Ok(vec![dev.read_words(&seen, "seen")?])
    }
    fn oracle(&self, case: &WordsCase, _: Madd) -> Vec<Want> {
        vec![oracle::mark_seen(case)]
    }
}

/// Ids, and where some of them come from.
#[derive(Debug, Clone)]
pub struct FeedCase {
    feeds: Vec<u32>,
    last: Vec<u32>,
    ids: Vec<u32>,
}

/// `feed_tokens`.
#[derive(Debug, Clone, Copy)]
pub struct FeedTokens;

impl OpSpec for FeedTokens {
    type Case = FeedCase;
    fn kind(&self) -> OpKind {
        RowsOpKind::FeedTokens.into()
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> FeedCase {
        let (tokens, rows) = (dice.size(), dice.size());
        let mut words = |count: usize| (0..count).map(|_| dice.bits() as u32).collect::<Vec<u32>>();
        let (last, ids) = (words(rows), words(tokens));
        let nowhere = [NO_ROW, rows as u32];
        let row = |_| if dice.once_in(3) { dice.pick(&nowhere) } else { dice.below(rows) as u32 };
        FeedCase { feeds: (0..tokens).map(row).collect(), last, ids }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &FeedCase) -> Result<Vec<Output>> {
        let (feeds, last) = (dev.buffer(&case.feeds)?, dev.buffer(&case.last)?);
        let (ids, mut out) = (dev.buffer(&case.ids)?, dev.words(case.ids.len())?);
        let (ids, feeds, last) = (ids.view(), feeds.view(), last.view());
        dev.launch(|to| to.run(ops::FeedTokens { ids, feeds, last, out: out.view_mut() }))?;
        Ok(vec![dev.read_words(&out, "ids")?])
    }
    fn oracle(&self, case: &FeedCase, _: Madd) -> Vec<Want> {
        let fed = |(row, id): (&u32, &u32)| case.last.get(*row as usize).copied().unwrap_or(*id);
        vec![Want::Words(case.feeds.iter().zip(&case.ids).map(fed).collect())]
    }
    fn alone(&self, case: &FeedCase, dice: &mut Dice) -> Option<Part<FeedCase>> {
        let t = dice.below(case.ids.len());
        let part = FeedCase { feeds: vec![case.feeds[t]], ids: vec![case.ids[t]], ..case.clone() };
        Some((part, vec![t..t + 1]))
    }
}

/// Planted in what moves rows and words.
pub const BUGS: &[Bug] = &[
    Bug::new("GatherNextRow", "gather_rows", ORACLE, next_row),
    Bug::new("ScatterDropsLastPair", "scatter", ORACLE, drops_last_pair),
    Bug::new("MarkSeenDropsLastId", "mark_seen", ORACLE, drops_last_id),
    Bug::new("MarkSeenKeepsOldBits", "mark_seen", ORACLE, keeps_old_bits),
    Bug::new("FeedsNextRow", "feed_tokens", ORACLE, feeds_next_row),
    Bug::new("FeedsHalf", "feed_tokens", ORACLE, feeds_half),
];

fn next_row(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::GatherRows(op)) = op else { return s.run(op) };
    let next = s.changed(op.rows, |r| r + 1)?;
    s.run(ops::GatherRows { rows: next.view(), ..op })
}

fn drops_last_pair(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::Scatter(op)) = op else { return s.run(op) };
    let pairs = op.pairs.slice(0..op.pairs.len() - 2)?;
    s.run(ops::Scatter { pairs, ..op })
}

fn drops_last_id(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::MarkSeen(op)) = op else { return s.run(op) };
    let ids = op.ids.slice(0..op.ids.len() - 1)?;
    s.run(ops::MarkSeen { ids, ..op })
}

fn keeps_old_bits(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::MarkSeen(mut op)) = op else { return s.run(op) };
    let old = s.words(op.seen.as_ref())?;
    let ops::MarkSeen { ids, slot, words, .. } = op;
    s.run(ops::MarkSeen { ids, slot, words, seen: op.seen.reborrow() })?;
    let new = s.words(op.seen.as_ref())?;
    let both: Vec<u32> = new.iter().zip(&old).map(|(n, o)| n | o).collect();
    s.upload(&both, op.seen)
}

fn feeds_next_row(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::FeedTokens(op)) = op else { return s.run(op) };
    let next = s.changed(op.feeds, |row| if row == NO_ROW { row } else { row + 1 })?;
    s.run(ops::FeedTokens { feeds: next.view(), ..op })
}

fn feeds_half(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Rows(RowsOp::FeedTokens(op)) = op else { return s.run(op) };
    let half = op.feeds.len() / 2;
    let (feeds, ids) = (op.feeds.slice(0..half)?, op.ids.slice(0..half)?);
    s.run(ops::FeedTokens { feeds, ids, out: op.out.slice(0..half)?, last: op.last })
}

/// What is read by number may have any size.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("gather_rows", "x", Field::Rows, "rows beyond it give zeros"),
    Lawful::new("scatter", "pairs", Field::Len, "any whole pairs"),
    Lawful::new("scatter", "dst", Field::Len, "indices beyond it do nothing"),
    Lawful::new("mark_seen", "ids", Field::Len, "any ids"),
    Lawful::new("mark_seen", "slot", Field::Size, "another row"),
    Lawful::new("mark_seen", "words", Field::Size, "rows of another width that lie inside"),
    Lawful::new("mark_seen", "seen", Field::Len, "more rows, or fewer behind the one"),
    Lawful::new("feed_tokens", "last", Field::Len, "rows beyond it leave ids"),
];
