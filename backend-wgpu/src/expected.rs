//! What the plainest kernels must leave, computed on the host: the orders of `docs/numerics.md`, a loop each.
//!
//! Kernels of several rows have a plainer one that they are compared with ([`Kernel::twin`]); where that ends
//! stand a matmul of one row, the same of experts slot by slot, attention query by query, and norms. A driver
//! that contracts or reassociates a whole class of kernels gives all of them other bits alike: only numbers
//! from elsewhere show that. Operands are those of [`Trial`], in f32.

use crate::trial::Trial;
use engraft_core::math::{SeparateMadd, exp};
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_shaders::{Attention, Elem, Kernel, Norm, PANEL, Packing, Reduce};
use std::ops::Range;

/// The plainest kernel of every class, and whether its sums have the contract's order or the wide one.
pub(crate) fn cases() -> [(Kernel, bool); 6] {
    let (weight, x, out, vector) = (Packing::F32, Elem::F32, Elem::F32, true);
    let how = Attention { dense: false, columns: 1, capped: false, subgroups: false, distances: false };
    let linear = Kernel::Linear { weight, x, out, rows: 1, gate: false, vector, act: false };
    [
        (linear, true),
        (linear, false),
        (Kernel::Experts { weight, x, out, rows: 1, vector, grouped: false }, true),
        (Kernel::Norm(Norm::Alone, x, Reduce::Leaves), true),
        (Kernel::Norm(Norm::Alone, x, Reduce::Shared), false),
        (Kernel::Attention(how, x, x), true),
    ]
}

/// The operands of a case.
pub(crate) fn trial(kernel: &Kernel, leaves: bool) -> Option<Trial> {
    let trial = Trial::of(kernel)?;
    Some(if leaves { trial } else { trial.wide(kernel).unwrap_or(trial) })
}

/// What one of them writes, as bits, and to which binding.
pub(crate) fn of(kernel: &Kernel, trial: &Trial, leaves: bool) -> Option<(usize, Vec<u32>)> {
    let Trial { buffers, words, .. } = trial;
    let floats: Vec<Vec<f32>> =
        buffers.iter().map(|words| words.iter().map(|bits| f32::from_bits(*bits)).collect()).collect();
    let (binding, all) = match kernel {
        Kernel::Linear { .. } => (4, matmul(&floats, words, leaves, |_| 0)),
        Kernel::Experts { .. } => {
            let (which, first) = (&buffers[5], words[11] as usize);
            (4, matmul(&floats, words, true, |slot| which[first + slot] as usize))
        }
        Kernel::Norm(..) => (2, norm(&floats, words, leaves)),
        Kernel::Attention(..) => (5, attention(&floats, words)),
        _ => return None,
    };
    Some((binding, all.into_iter().map(f32::to_bits).collect()))
}

/// A chain over `terms`: the two of each multiplied, rounded, and added to what came before.
fn chain(terms: impl Iterator<Item = (f32, f32)>) -> f32 {
    terms.fold(0.0, |sum, (a, b)| a * b + sum)
}

/// The sum over `k` terms of which `part` gives the chain of any range, by eight leaves; in the wide order a
/// leaf is four chains of whole units of 8.
fn summed((k, grain): (usize, usize), leaves: bool, part: impl Fn(Range<usize>) -> f32) -> f32 {
    let bounds = leaf_bounds(k, grain);
    tree(std::array::from_fn(|leaf| {
        let (from, to) = (bounds[leaf], bounds[leaf + 1]);
        if leaves {
            return part(from..to);
        }
        let units = (to - from) / 8;
        let start = |i: usize| if i < 4 { from + 8 * (i * units.div_ceil(4)).min(units) } else { to };
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| part(start(i)..start(i + 1)));
        (a + b) + (c + d)
    }))
}

/// Rows by panels of weights, an expert's panel after the other; two slots of experts read one row.
fn matmul(floats: &[Vec<f32>], words: &[u32], leaves: bool, expert: impl Fn(usize) -> usize) -> Vec<f32> {
    let [codes, _, bias, x] = [0, 1, 2, 3].map(|i| &floats[i]);
    let (rows, cols, grain, panel) = (words[0] as usize, words[1] as usize, words[2] as usize, PANEL);
    let per_row = rows / (x.len() / cols);
    let one = |row: usize, n: usize| {
        let panel_of = expert(row);
        let weight = |k: usize| codes[((panel_of * (cols / 4) + k / 4) * panel + n) * 4 + k % 4];
        let of_row = &x[row / per_row * cols..][..cols];
        let sum = summed((cols, grain), leaves, |part| chain(part.map(|k| (of_row[k], weight(k)))));
        sum + bias[panel_of * panel + n]
    };
    (0..rows).flat_map(|row| (0..panel).map(move |n| (row, n))).map(|(row, n)| one(row, n)).collect()
}

/// Rows less their mean, by their deviation, with a weight and a bias.
fn norm(floats: &[Vec<f32>], words: &[u32], leaves: bool) -> Vec<f32> {
    let [weight, bias, _, x] = [0, 1, 2, 3].map(|i| &floats[i]);
    let (n, eps) = (words[2] as usize, f32::from_bits(words[10]));
    let sum = |terms: &[f32], add: &dyn Fn(f32, f32) -> f32| match leaves {
        true => {
            let bounds = leaf_bounds(n, 1);
            tree(std::array::from_fn(|l| terms[bounds[l]..bounds[l + 1]].iter().fold(0.0, |s, v| add(s, *v))))
        }
        false => {
            // Every 64th element, then at distances 1, 2, 4 and so on.
            let mut strands: Vec<f32> =
                (0..64).map(|v| terms.iter().skip(v).step_by(64).fold(0.0, |s, v| add(s, *v))).collect();
            while strands.len() > 1 {
                strands = strands.chunks(2).map(|pair| pair[0] + pair[1]).collect();
            }
            strands[0]
        }
    };
    let of_row = |row: &[f32]| -> Vec<f32> {
        let mean = sum(row, &|sum, v| sum + v) / n as f32;
        let squares = sum(row, &|sum, v| (v - mean) * (v - mean) + sum);
        let r = 1.0 / (squares / n as f32 + eps).sqrt();
        row.iter().enumerate().map(|(c, v)| ((v - mean) * r) * weight[c] + bias[c]).collect()
    };
    x.chunks(n).flat_map(of_row).collect()
}

/// The last rows of one sequence over its pages, which lie in order; heads share keys.
fn attention(floats: &[Vec<f32>], words: &[u32]) -> Vec<f32> {
    let [q, keys, values, scores] = [0, 1, 2, 4].map(|i| &floats[i]);
    let (tokens, heads) = (words[0] as usize, (words[3] >> 16) as usize);
    let (k_dim, v_dim) = ((words[2] & 0xffff) as usize, (words[2] >> 16) as usize);
    let (page, length) = (words[13] as usize, floats[3][3].to_bits() as usize);
    let key = |j: usize, d: usize| keys[(j / page * k_dim + d) * page + j % page];
    let one = |token: usize, head: usize| -> Vec<f32> {
        let of_head = &q[(token * heads + head) * k_dim..][..k_dim];
        let (mut top, mut sum, mut out) = (0.0f32, 0.0f32, vec![0.0f32; v_dim]);
        // Causal: from the first key to the row's own.
        let end = length - tokens + token + 1;
        for chunk in (0..end).step_by(64) {
            let all: Vec<f32> = (chunk..end.min(chunk + 64))
                .map(|j| chain((0..k_dim).map(|d| (of_head[d], key(j, d)))) * scores[0])
                .collect();
            let most = all.iter().copied().fold(all[0], f32::max);
            let weights: Vec<f32> = all.iter().map(|s| exp::<SeparateMadd>(s - most)).collect();
            let new_top = if chunk == 0 { most } else { top.max(most) };
            let [keep, take] = [top, most].map(|of| exp::<SeparateMadd>(of - new_top));
            let merged = |old: f32, new: f32| if chunk == 0 { new } else { old * keep + new * take };
            for (d, out) in out.iter_mut().enumerate() {
                let value = |i: usize| values[(chunk + i) * v_dim + d];
                *out = merged(*out, chain(weights.iter().enumerate().map(|(i, e)| (*e, value(i)))));
            }
            sum = merged(sum, weights.iter().fold(0.0, |sum, e| sum + e));
            top = new_top;
        }
        out.iter().map(|o| o / sum).collect()
    };
    let all = (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head)));
    all.flat_map(|(token, head)| one(token, head)).collect()
}
