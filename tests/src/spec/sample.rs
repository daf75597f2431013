//! `sample`: tokens must be these very tokens.

use crate::bug::{Bug, Strike};
use crate::compare::{Output, Want};
use crate::device::Device;
use crate::dice::Dice;
use crate::lawful::{Field, Lawful};
use crate::laws::ORACLE;
use crate::oracle::sample as oracle;
use crate::poison::Grid;
use crate::registry::{OpSpec, Part, Visitor};
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::mem::{Float, NO_ROW};
use engraft_core::numerics::Madd;
use engraft_core::ops::{self, Op, OpKind, SampleOpKind};
use engraft_core::sample::{SampleRow, SamplingParams};
use engraft_cpu::Cpu;

/// Shows the ops of this stem.
pub fn each(visitor: &mut impl Visitor) {
    visitor.visit(Sample);
}

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
        seed: Some(dice.bits()),
    }
}

/// `sample`.
#[derive(Debug, Clone, Copy)]
pub struct Sample;

impl OpSpec for Sample {
    type Case = Case;
    fn kind(&self) -> OpKind {
        SampleOpKind::Sample.into()
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
        let slots_of = order[..rows].iter().map(|s| match dice.below(12) {
            0 => NO_ROW,
            1 => (slots + dice.below(3)) as u32,
            _ => *s as u32,
        });
        let slots_of = slots_of.collect();
        let mut logits = logits(dice, rows, vocab, Float::F32);
        // Models that overflowed: rows of which nothing, or not everything, can be sampled.
        for row in logits.values.chunks_mut(vocab) {
            let nothing = if dice.once_in(2) { f32::NAN } else { f32::NEG_INFINITY };
            match dice.below(10) {
                0 => row.fill(nothing),
                1 => row.iter_mut().step_by(2).for_each(|logit| *logit = nothing),
                _ => {}
            }
        }
        Case {
            logits,
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
        let seen_words = case.logits.cols.div_ceil(32);
        dev.launch(|to| {
            to.run(ops::Sample {
                logits: logits.view()?,
                table: table.view(),
                slots: slots.view(),
                positions: positions.view(),
                seen: seen.view_mut(),
                seen_words,
                out: out.view_mut(),
            })
        })?;
        Ok(vec![dev.read_words(&out, "tokens")?, dev.read_words(&seen, "seen")?])
    }
    fn oracle(&self, case: &Case, madd: Madd) -> Vec<Want> {
        oracle::sample(case, madd)
    }
    fn alone(&self, case: &Case, dice: &mut Dice) -> Option<Part<Case>> {
        let r = dice.below(case.logits.rows);
        let (slots, positions) = (vec![case.slots[r]], vec![case.positions[r]]);
        // The bits of other rows' samples are missing then: tokens only.
        Some((Case { logits: case.logits.only(r), slots, positions, ..case.clone() }, vec![r..r + 1]))
    }
}

fn live_bits(vocab: usize, word: usize) -> u32 {
    match vocab - 32 * word {
        32.. => u32::MAX,
        rest => (1 << rest) - 1,
    }
}

/// Planted in sampling.
pub const BUGS: &[Bug] = &[
    Bug::new("SampleNextPosition", "sample", ORACLE, next_position),
    Bug::new("SampleForgetsToMark", "sample", ORACLE, forgets_to_mark),
];

fn next_position(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Sample(op) = op else { return s.run(op) };
    let next = s.changed(op.positions, |p| p + 1)?;
    s.run(ops::Sample { positions: next.view(), ..op })
}

fn forgets_to_mark(s: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    let Op::Sample(op) = op else { return s.run(op) };
    let ops::Sample { logits, table, slots, positions, mut seen, seen_words, out } = op;
    let old = s.words(seen.as_ref())?;
    s.run(ops::Sample { logits, table, slots, positions, seen: seen.reborrow(), seen_words, out })?;
    s.upload(&old, seen)
}

/// Parameters and bits are named by data.
pub const LAWFUL: &[Lawful] = &[
    Lawful::new("sample", "logits", Field::Cols, "a vocabulary with as many words of bits"),
    Lawful::new("sample", "table", Field::Len, "slots beyond it sample nothing"),
    Lawful::new("sample", "seen", Field::Len, "rows of bits beyond it are neither read nor marked"),
];
