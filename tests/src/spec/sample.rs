//! `argmax` and `sample`: tokens must be these very tokens.

use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::oracle::sample as oracle;
use crate::poison::Grid;
use crate::registry::{OpSpec, Part};
use engraft_core::Result;
use engraft_core::backend::{Backend, PrimitiveOps, SampleCall};
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;
use engraft_core::sample::{SampleRow, SamplingParams};

/// Rows of logits with equal maxima now and then.
fn logits(dice: &mut Dice, rows: usize, vocab: usize, dtype: Float) -> Grid {
    let scale = dice.pick(&[0.0, 1.0, 10.0]);
    let mut grid = Grid::random(dice, rows, vocab, dtype, scale);
    for r in 0..rows {
        if dice.once_in(2) {
            let best = grid.row(r).iter().copied().fold(f32::MIN, f32::max);
            for _ in 0..3 {
                let at = r * vocab + dice.below(vocab);
                grid.values[at] = best;
            }
        }
    }
    grid
}

/// `argmax`.
#[derive(Debug, Clone, Copy)]
pub struct Argmax;

impl OpSpec for Argmax {
    type Case = Grid;
    fn name(&self) -> &'static str {
        "argmax"
    }
    fn sample(&self, dtype: Float, dice: &mut Dice) -> Grid {
        let (rows, vocab) = (dice.rows(), dice.pick(&[1usize, 2, 31, 33, 111, 1000]));
        logits(dice, rows, vocab, dtype)
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Grid) -> Result<Vec<Output>> {
        let x = dev.grid(case)?;
        let mut out = dev.words(case.rows)?;
        dev.launch(|s, _| s.argmax(x.view(), out.view_mut()))?;
        Ok(vec![dev.read_words(&out, "tokens")?])
    }
    fn oracle(&self, case: &Grid, _: Madd) -> Vec<Want> {
        vec![Want::Words((0..case.rows).map(|r| oracle::first_largest(case.row(r))).collect())]
    }
    fn alone(&self, case: &Grid, dice: &mut Dice) -> Option<Part<Grid>> {
        let r = dice.below(case.rows);
        Some((case.only(r), vec![r..r + 1]))
    }
}

/// Logits, parameters, tokens seen.
#[derive(Debug, Clone)]
pub struct Case {
    /// `[rows, vocab]`.
    pub logits: Grid,
    /// `[slots]`.
    pub table: Vec<SampleRow>,
    /// Per row of logits.
    pub slots: Vec<u32>,
    /// Per row of logits.
    pub positions: Vec<u32>,
    /// `[slots, words]`.
    pub seen: Vec<u32>,
}

fn params(dice: &mut Dice, vocab: usize) -> SamplingParams {
    SamplingParams {
        temperature: dice.pick(&[0.0, 0.7, 1.0, 3.0]),
        top_k: if dice.once_in(2) { 0 } else { 1 + dice.below(vocab) as u32 },
        top_p: dice.pick(&[1.0, 1.0, 0.9, 0.5, 0.01]),
        min_p: dice.pick(&[0.0, 0.0, 0.05, 0.5]),
        repetition_penalty: dice.pick(&[1.0, 1.3, 0.8]),
        seed: dice.bits(),
    }
}

/// `sample`.
#[derive(Debug, Clone, Copy)]
pub struct Sample;

impl OpSpec for Sample {
    type Case = Case;
    fn name(&self) -> &'static str {
        "sample"
    }
    fn dtypes(&self) -> &'static [Float] {
        &[Float::F32]
    }
    fn sample(&self, _: Float, dice: &mut Dice) -> Case {
        let (rows, vocab) = (dice.rows(), dice.pick(&[1usize, 2, 31, 33, 111, 1000]));
        let (slots, words) = (rows + 2, vocab.div_ceil(32));
        let table = (0..slots)
            .map(|slot| {
                let seen = if dice.once_in(2) { slot as i32 } else { -1 };
                params(dice, vocab).row(dice.below(3) as u32, 0, 0, seen)
            })
            .collect();
        let order = dice.shuffled(slots);
        let slots_of = order[..rows].iter().map(|s| if dice.once_in(8) { NO_ROW } else { *s as u32 });
        let slots_of = slots_of.collect();
        Case {
            logits: logits(dice, rows, vocab, Float::F32),
            table,
            slots: slots_of,
            positions: (0..rows).map(|_| dice.below(5000) as u32).collect(),
            // Bits beyond the vocabulary stay clear, as `mark_seen` leaves them.
            seen: (0..slots * words)
                .map(|i| dice.bits() as u32 & dice.bits() as u32 & live_bits(vocab, i % words))
                .collect(),
        }
    }
    fn run<B: Backend>(&self, dev: &mut Device<B>, case: &Case) -> Result<Vec<Output>> {
        let logits = dev.grid(&case.logits)?;
        let (table, slots) = (dev.buffer(&case.table)?, dev.buffer(&case.slots)?);
        let (positions, mut seen) = (dev.buffer(&case.positions)?, dev.buffer(&case.seen)?);
        let mut out = dev.words(case.logits.rows)?;
        dev.launch(|s, _| {
            let call = SampleCall {
                table: table.view(),
                slots: slots.view(),
                positions: positions.view(),
                seen: seen.view_mut(),
                seen_words: case.logits.cols.div_ceil(32),
            };
            s.sample(logits.view(), call, out.view_mut())
        })?;
        Ok(vec![dev.read_words(&out, "tokens")?, dev.read_words(&seen, "seen")?])
    }
    fn oracle(&self, case: &Case, madd: Madd) -> Vec<Want> {
        oracle::sample(case, madd)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let r = dice.below(case.logits.rows);
        let (slots, positions) = (vec![case.slots[r]], vec![case.positions[r]]);
        // The bits of other rows' draws are missing then: tokens only.
        Some((Case { logits: case.logits.only(r), slots, positions, ..case.clone() }, vec![r..r + 1]))
    }
}

fn live_bits(vocab: usize, word: usize) -> u32 {
    match vocab - 32 * word {
        32.. => u32::MAX,
        rest => (1 << rest) - 1,
    }
}
