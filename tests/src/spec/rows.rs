//! Ops that move rows and words: `gather_rows`, `patch`, `mark_seen`. All exact.

use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::poison::{Grid, Lay};
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, PrimitiveOps};
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;

/// Rows of a matrix by number.
#[derive(Debug, Clone)]
pub struct GatherCase {
    x: Grid,
    rows: Vec<u32>,
    lay: Lay,
}

/// `gather_rows`.
#[derive(Debug, Clone, Copy)]
pub struct GatherRows;

impl OpSpec for GatherRows {
    type Case = GatherCase;
    fn name(&self) -> &'static str {
        "gather_rows"
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
        dev.launch(|s, _| s.gather_rows(x.view(), rows.view(), out.view_mut()))?;
        Ok(vec![dev.read(&out, "out")?])
    }
    fn oracle(&self, case: &GatherCase, _: Madd) -> Vec<Want> {
        let row = |r: &u32| match (*r as usize) < case.x.rows {
            true => case.x.row(*r as usize).to_vec(),
            false => vec![0.0; case.x.cols],
        };
        vec![Want::Exact(case.rows.iter().flat_map(row).collect())]
    }
    fn alone(&self, case: &GatherCase, dice: &mut Dice) -> Option<Part<GatherCase>> {
        let r = dice.below(case.rows.len());
        Some((GatherCase { rows: vec![case.rows[r]], ..case.clone() }, vec![r..r + 1]))
    }
}

/// Words and their changes, or bits and their row.
#[derive(Debug, Clone)]
pub struct WordsCase {
    words: Vec<u32>,
    changes: Vec<u32>,
    slot: usize,
    width: usize,
}

/// `patch`.
#[derive(Debug, Clone, Copy)]
pub struct Patch;

impl OpSpec for Patch {
    type Case = WordsCase;
    fn name(&self) -> &'static str {
        "patch"
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
        dev.launch(|s, _| s.patch(pairs.view(), words.view_mut()))?;
        Ok(vec![dev.read_words(&words, "dst")?])
    }
    fn oracle(&self, case: &WordsCase, _: Madd) -> Vec<Want> {
        let mut words = case.words.clone();
        for pair in case.changes.chunks(2) {
            if let Some(word) = words.get_mut(pair[0] as usize) {
                *word = pair[1];
            }
        }
        vec![Want::Words(words)]
    }
}

/// `mark_seen`.
#[derive(Debug, Clone, Copy)]
pub struct MarkSeen;

impl OpSpec for MarkSeen {
    type Case = WordsCase;
    fn name(&self) -> &'static str {
        "mark_seen"
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> WordsCase {
        let (slots, width) = (1 + dice.below(4), dice.pick(&[1, 2, 7]));
        let words = (0..slots * width).map(|_| dice.bits() as u32).collect();
        let changes = (0..dice.size()).map(|_| dice.below(32 * width) as u32).collect();
        WordsCase { words, changes, slot: dice.below(slots), width }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &WordsCase) -> Result<Vec<Output>> {
        let (mut seen, ids) = (dev.buffer(&case.words)?, dev.buffer(&case.changes)?);
        dev.launch(|s, _| s.mark_seen(ids.view(), case.slot, case.width, seen.view_mut()))?;
        Ok(vec![dev.read_words(&seen, "seen")?])
    }
    fn oracle(&self, case: &WordsCase, _: Madd) -> Vec<Want> {
        let mut words = case.words.clone();
        let row = &mut words[case.slot * case.width..(case.slot + 1) * case.width];
        row.fill(0);
        for id in &case.changes {
            row[*id as usize / 32] |= 1 << (id % 32);
        }
        vec![Want::Words(words)]
    }
}
