//! Kernels that choose by numbers, or make codes of them: operands to try one with, and what it must leave,
//! by the definitions in core. Of each there is one for any number of rows.
//!
//! Among the rows are those in which a result that was rounded otherwise would be another choice: equal
//! logits, neighbours that a temperature makes equal, no number, both zeros.

use crate::trial::{Dice, Trial};
use engraft_core::math::{SeparateMadd, exp, sigmoid};
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_core::quant::activation;
use engraft_core::sample::{SampleRow, SamplingParams, Scratch, sample_row};
use engraft_shaders::{BLOCK_WORDS, Elem, Kernel, Moe};

/// The trial of such a kernel.
pub(crate) fn trial(kernel: &Kernel) -> Option<Trial> {
    let mut dice = Dice::default();
    match *kernel {
        Kernel::Sample => Some(sample(&mut dice)),
        Kernel::Moe(Moe::Route, _) => Some(route(&mut dice, false)),
        Kernel::Moe(Moe::RouteByScore, _) => Some(route(&mut dice, true)),
        Kernel::Quantize(Elem::F32) => Some(quantize(&mut dice)),
        _ => None,
    }
}

/// What it writes, and to which binding.
pub(crate) fn of(kernel: &Kernel, trial: &Trial) -> Option<(usize, Vec<u32>)> {
    let bits = |all: Vec<f32>| all.into_iter().map(f32::to_bits).collect();
    match *kernel {
        Kernel::Sample => Some((5, sampled(trial))),
        Kernel::Moe(Moe::Route, _) => Some((2, bits(routed(trial, false)))),
        Kernel::Moe(Moe::RouteByScore, _) => Some((2, bits(routed(trial, true)))),
        Kernel::Quantize(_) => Some((1, quantized(trial))),
        _ => None,
    }
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|bits| f32::from_bits(*bits)).collect()
}

/// Rows that are sampled, and their logits.
const ROWS: u32 = 24;
const LOGITS: u32 = 600;
/// Words of a row of the table, and of a row's seen tokens.
const ROW_WORDS: usize = size_of::<SampleRow>() / 4;
const SEEN_WORDS: u32 = LOGITS.div_ceil(32);

/// Six ways to sample.
fn params(row: u32) -> SamplingParams {
    let seed = Some(u64::from(row) << 32 | 77);
    let plain = SamplingParams { seed, ..SamplingParams::default() };
    match row % 6 {
        0 => plain,
        1 => SamplingParams { repetition_penalty: 1.3, ..plain },
        2 => SamplingParams { temperature: 0.3, top_k: 40, ..plain },
        3 => SamplingParams { temperature: 0.7, top_p: 0.9, min_p: 0.05, ..plain },
        4 => SamplingParams { temperature: 1.6, top_k: 1, ..plain },
        _ => SamplingParams { temperature: 0.1, top_k: 9, top_p: 0.5, repetition_penalty: 0.8, ..plain },
    }
}

/// Rows of the table are taken backwards.
fn sample(dice: &mut Dice) -> Trial {
    let mut logits = dice.rows(Elem::F32, ROWS * LOGITS);
    for (row, logits) in logits.chunks_exact_mut(LOGITS as usize).enumerate() {
        // No number, the least one, both zeros; the two largest are neighbours, or equal.
        (logits[5], logits[6], logits[7], logits[8]) = (0x7fc0_0000, 0xff80_0000, 1 << 31, 0);
        let largest = 0x3fd0_0001 + 2 * row as u32;
        (logits[31], logits[17], logits[400]) = (largest, largest - 1, largest - (row as u32 & 1));
    }
    let mut table = Vec::new();
    for row in 0..ROWS {
        let params = params(row);
        let seen = if params.repetition_penalty == 1.0 { -1 } else { row as i32 };
        table.push(params.row(3 * row, 0, row % 2, seen));
    }
    let buffers = vec![
        logits,
        bytemuck::cast_slice(&table).to_vec(),
        (0..ROWS).rev().collect(),
        (0..ROWS).map(|row| 1 + 5 * row).collect(),
        (0..ROWS * SEEN_WORDS).map(|_| dice.next()).collect(),
        vec![u32::MAX - 1; ROWS as usize],
    ];
    let words = vec![ROWS, LOGITS, 0, LOGITS, 0, 0, ROWS, 0, 0, 0, SEEN_WORDS, ROWS];
    Trial { buffers, words, grid: [ROWS, 1, 1] }
}

fn sampled(trial: &Trial) -> Vec<u32> {
    let Trial { buffers, .. } = trial;
    let (logits, seen) = (floats(&buffers[0]), buffers[4].chunks_exact(SEEN_WORDS as usize));
    let (table, seen): (Vec<&[u32]>, Vec<&[u32]>) =
        (buffers[1].chunks_exact(ROW_WORDS).collect(), seen.collect());
    let mut scratch = Scratch::new(LOGITS as usize);
    let rows = logits.chunks_exact(LOGITS as usize).zip(&buffers[2]).zip(&buffers[3]);
    let token = |((logits, slot), position): ((&[f32], &u32), &u32)| {
        let row: SampleRow = bytemuck::pod_read_unaligned(bytemuck::cast_slice(table[*slot as usize]));
        let row = SampleRow { position: *position, ..row };
        let seen = usize::try_from(row.seen_slot).ok().map(|slot| seen[slot]);
        sample_row(logits, seen, &row, exp::<SeparateMadd>, &mut scratch)
    };
    rows.map(token).collect()
}

/// Tokens, experts, those that a token chooses; groups of experts, and those that it chooses of.
const ROUTED: [u32; 5] = [60, 40, 4, 4, 2];
/// Flags of `moe.wgsl`: sigmoids, renormalised, with a bias for the choice, groups by their two largest.
const BY_SCORE: u32 = 1 | 2 | 4 | 8;
const SCALE: f32 = 2.5;

/// By a softmax over all; or by sigmoids with a bias, in groups, renormalised.
fn route(dice: &mut Dice, by_score: bool) -> Trial {
    let [tokens, experts, top_k, groups, open] = ROUTED;
    let flags = if by_score { BY_SCORE } else { 0 };
    let mut logits = dice.rows(Elem::F32, tokens * experts);
    // Two of a token's are equal.
    logits[3] = logits[30];
    let mut buffers = vec![logits, vec![0; (tokens * top_k) as usize], vec![0; (tokens * top_k) as usize]];
    let mut words = vec![tokens, experts, top_k, flags, SCALE.to_bits(), 0, 0, experts, 0, 0, top_k];
    if by_score {
        buffers.push(dice.rows(Elem::F32, experts));
        words.extend([groups, open]);
    }
    Trial { buffers, words, grid: [tokens, 1, 1] }
}

/// The `count` with the largest keys, ascending; of equal ones the first.
fn largest(keys: &[f32], from: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
    let mut all: Vec<usize> = from.collect();
    all.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
    all.truncate(count);
    all.sort_unstable();
    all
}

fn routed(trial: &Trial, by_score: bool) -> Vec<f32> {
    let [_, experts, top_k, groups, open] = ROUTED.map(|n| n as usize);
    let logits = floats(&trial.buffers[0]);
    let weights = logits.chunks_exact(experts).flat_map(|logits| -> Vec<f32> {
        let most = logits.iter().copied().fold(logits[0], f32::max);
        let score =
            |v: &f32| if by_score { sigmoid::<SeparateMadd>(*v) } else { exp::<SeparateMadd>(v - most) };
        let scores: Vec<f32> = logits.iter().map(score).collect();
        let (chosen, total) = match by_score {
            true => {
                let chosen = of_best_groups(&scores, &floats(&trial.buffers[3]), (groups, open), top_k);
                let total = chosen.iter().fold(0.0, |sum, e| sum + scores[*e]);
                (chosen, total)
            }
            false => {
                let bounds = leaf_bounds(experts, 1);
                let leaf = |l: usize| scores[bounds[l]..bounds[l + 1]].iter().fold(0.0, |sum, s| sum + s);
                (largest(logits, 0..experts, top_k), tree(std::array::from_fn(leaf)))
            }
        };
        chosen.into_iter().map(|e| scores[e] / total * SCALE).collect()
    });
    weights.collect()
}

/// Experts by their scores and a bias, of the groups with the largest sums of two.
fn of_best_groups(scores: &[f32], bias: &[f32], (groups, open): (usize, usize), top_k: usize) -> Vec<usize> {
    let keys: Vec<f32> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let size = keys.len() / groups;
    let best_two = |group: &[f32]| {
        let two = largest(group, 0..size, 2);
        // The larger one first: a sum of two has no other order.
        group[two[0]] + group[two[1]]
    };
    let ranks: Vec<f32> = keys.chunks_exact(size).map(best_two).collect();
    let best = largest(&ranks, 0..groups, open);
    largest(&keys, (0..keys.len()).filter(|expert| best.contains(&(expert / size))), top_k)
}

/// Rows and blocks of a row that become bytes.
const BLOCKS: [u32; 2] = [3, 5];

/// One block of zeros, and one of numbers next to a multiple of their step.
fn quantize(dice: &mut Dice) -> Trial {
    let [rows, blocks] = BLOCKS;
    let mut x = dice.rows(Elem::F32, rows * blocks * 32);
    x[32..64].fill(0);
    x[64] = 127f32.to_bits();
    for (i, v) in x[65..96].iter_mut().enumerate() {
        *v = (i as f32 + 0.5).to_bits() - i as u32 % 2;
    }
    let out = vec![u32::MAX; rows as usize * blocks as usize * BLOCK_WORDS];
    Trial { buffers: vec![x, out], words: vec![rows, blocks, 0, blocks * 32], grid: [1, 1, 1] }
}

fn quantized(trial: &Trial) -> Vec<u32> {
    let values = floats(&trial.buffers[0]);
    let of_block = |values: &[f32; activation::SPAN]| -> Vec<u32> {
        let mut codes = [0i8; activation::SPAN];
        let scale = activation::encode(values, &mut codes);
        let words =
            codes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(four.map(|code| code as u8)));
        words.chain([scale.to_bits()]).collect()
    };
    values.as_chunks::<{ activation::SPAN }>().0.iter().flat_map(of_block).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use engraft_shaders::{Carrier, Dialect, source};

    const ALL: [Kernel; 4] = [
        Kernel::Sample,
        Kernel::Moe(Moe::Route, Elem::F32),
        Kernel::Moe(Moe::RouteByScore, Elem::F32),
        Kernel::Quantize(Elem::F32),
    ];

    #[test]
    fn trials_have_what_templates_ask_for_and_results_that_differ() {
        let dialect = Dialect { carrier: Carrier::Immediate, f16: false, dot: true, strict: true };
        for kernel in ALL {
            let (label, trial, said) =
                (kernel.label(), trial(&kernel).unwrap(), source(&kernel, dialect).unwrap());
            assert_eq!(
                (said.words, said.bindings.len()),
                (trial.words.len() + 1, trial.buffers.len()),
                "{label}"
            );
            let (binding, want) = of(&kernel, &trial).unwrap();
            assert_eq!(want.len(), trial.buffers[binding].len(), "{label}");
            let same =
                want.iter().zip(&trial.buffers[binding]).filter(|(want, before)| want == before).count();
            let different: std::collections::BTreeSet<&u32> = want.iter().collect();
            assert!(same == 0 && different.len() > want.len() / 4, "{label}: {same}, {want:?}");
        }
        assert!(trial(&Kernel::Rope(Elem::F32)).is_none());
    }

    /// Neighbours that are one number under a temperature: the first of them is taken, not the larger.
    #[test]
    fn some_tokens_depend_on_how_a_multiplication_is_rounded() {
        let trial = trial(&Kernel::Sample).unwrap();
        let tokens = sampled(&trial);
        let of_one: Vec<u32> = (0..ROWS).filter(|row| params(ROWS - 1 - row).top_k == 1).collect();
        let first = of_one.iter().filter(|row| tokens[**row as usize] == 17).count();
        assert!(of_one.len() == 4 && (1..4).contains(&first), "{tokens:?}");
    }
}
