//! What the plainest kernels must leave, computed on the host: the orders of `docs/numerics.md`, a loop each.
//!
//! Kernels of several rows have a plainer one that they are compared with ([`Kernel::twin`]); where that ends
//! stand a matmul of one row, the same of experts slot by slot, attention query by query, and norms. A driver
//! that contracts or reassociates a whole class of kernels gives all of them other bits alike: only numbers
//! from elsewhere show that. Operands are those of [`Trial`], activations in f32; packed weights are decoded
//! as core decodes the file that they would come from.

use crate::choices;
use crate::trial::Trial;
use engraft_core::math::{SeparateMadd, exp, silu, tanh};
use engraft_core::mem::{Block, WeightFormat};
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_core::quant::decode_rows;
use engraft_shaders::{Attention, Elem, Elementwise, Kernel, Moe, Norm, PANEL, Packing, Reduce};
use std::ops::Range;

/// The plainest kernel of every class, and whether its sums have the contract's order or the wide one; where
/// not `all` are wanted one of each.
pub(crate) fn cases(all: bool) -> Vec<(Kernel, bool)> {
    let (weight, x, out, vector) = (Packing::F32, Elem::F32, Elem::F32, true);
    let how = |capped| Attention { dense: false, columns: 1, capped, subgroups: false, distances: false };
    let linear = |weight, act| Kernel::Linear { weight, x, out, rows: 1, gate: false, vector, act };
    let [block, large] = [Packing::Q4_0, Packing::Q4K].map(|weight| linear(weight, false));
    let usual = [
        (linear(weight, false), true),
        (linear(weight, false), false),
        (Kernel::Experts { weight, x, out, rows: 1, vector, grouped: false }, true),
        (Kernel::Norm(Norm::Alone, x, Reduce::Leaves), true),
        (Kernel::Norm(Norm::Alone, x, Reduce::Shared), false),
        (Kernel::Attention(how(false), x, x.into()), true),
    ];
    let others = [
        (block, true),
        (block, false),
        (large, true),
        (large, false),
        (linear(weight, true), true),
        (Kernel::Attention(how(true), x, x.into()), true),
    ];
    usual.into_iter().chain(others.into_iter().filter(|_| all)).collect()
}

/// Kernels of which there is one for any number of rows: no bit depends on the batch whatever a driver makes
/// of them, but the host's bits do. Those that choose only where `all` are wanted.
pub(crate) fn lone(all: bool) -> Vec<Kernel> {
    let x = Elem::F32;
    let usual = [
        Kernel::Rope(x),
        Kernel::RopeAppend(x, x),
        Kernel::Elementwise(Elementwise::Gate, x, x),
        Kernel::Moe(Moe::Combine, x),
    ];
    let others =
        [Kernel::Sample, Kernel::Moe(Moe::Route, x), Kernel::Moe(Moe::RouteByScore, x), Kernel::Quantize(x)];
    usual.into_iter().chain(others.into_iter().filter(|_| all)).collect()
}

/// The operands of a case.
pub(crate) fn trial(kernel: &Kernel, leaves: bool) -> Option<Trial> {
    let trial = Trial::of(kernel).or_else(|| choices::trial(kernel))?;
    Some(if leaves { trial } else { trial.wide(kernel).unwrap_or(trial) })
}

/// What one of them writes, as bits, and to which binding.
pub(crate) fn of(kernel: &Kernel, trial: &Trial, leaves: bool) -> Option<(usize, Vec<u32>)> {
    let Trial { buffers, words, .. } = trial;
    let floats: Vec<Vec<f32>> =
        buffers.iter().map(|words| words.iter().map(|bits| f32::from_bits(*bits)).collect()).collect();
    let (binding, all) = match kernel {
        Kernel::Linear { weight, act, .. } => {
            let weights = weights(*weight, trial)?;
            let sums = matmul((&floats, &weights), words, leaves, |_| 0);
            let of = |y: f32| if *act { silu::<SeparateMadd>(y) } else { y };
            (4, sums.into_iter().map(of).collect())
        }
        Kernel::Experts { weight, .. } => {
            let (which, first, weights) = (&buffers[5], words[11] as usize, weights(*weight, trial)?);
            (4, matmul((&floats, &weights), words, true, |slot| which[first + slot] as usize))
        }
        Kernel::Norm(..) => (2, norm(&floats, words, leaves)),
        Kernel::Attention(how, ..) => (5, attention(&floats, words, how.capped)),
        Kernel::Rope(..) => (0, rotated(&floats, &buffers[1], (words[1], words[2], words[3], words[5]))),
        Kernel::RopeAppend(..) => {
            // Keys lie behind queries.
            (0, rotated(&floats, &buffers[1], (words[1] + words[2], words[3], words[5], words[7])))
        }
        Kernel::Elementwise(..) => (1, gated(&floats[0], words[1] as usize)),
        Kernel::Moe(Moe::Combine, _) => (2, combined(&floats, words)),
        _ => return choices::of(kernel, trial),
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

/// The weights of all outputs, those of an output side by side.
fn weights(packing: Packing, trial: &Trial) -> Option<Vec<f32>> {
    let (codes, scales, cols) = (&trial.buffers[0], &trial.buffers[1], trial.words[1] as usize);
    let outputs = codes.len() / packing.unit_words() * packing.unit() / cols;
    if packing == Packing::F32 {
        let place = |n: usize, k: usize| ((n / PANEL * (cols / 4) + k / 4) * PANEL + n % PANEL) * 4 + k % 4;
        let all = (0..outputs).flat_map(|n| (0..cols).map(move |k| place(n, k)));
        return Some(all.map(|at| f32::from_bits(codes[at])).collect());
    }
    let block = match packing {
        Packing::Q4_0 => Block::Q4_0,
        Packing::Q4K => Block::Q4K,
        _ => return None,
    };
    let blocks = cols / block.values();
    let mut raw = Vec::new();
    for (n, b) in (0..outputs).flat_map(|n| (0..blocks).map(move |b| (n, b))) {
        let (panel, lane, words) = (n / PANEL, n % PANEL, packing.scale_words());
        let code = |i: usize| {
            let k = b * block.values() + i;
            (codes[(panel * (cols / 8) + k / 8) * PANEL + lane] >> (k % 8 * 4) & 15) as u8
        };
        let shared = |word: usize| scales[((panel * blocks + b) * words + word) * PANEL + lane];
        match block {
            Block::Q4_0 => {
                raw.extend((shared(0) as u16).to_le_bytes());
                raw.extend((0..16).map(|j| code(j) | code(j + 16) << 4));
            }
            _ => {
                raw.extend(shared(0).to_le_bytes());
                raw.extend(small_scales(&[1, 2, 3, 4].map(|word| shared(word).to_le_bytes()).concat()));
                let pairs = (0..4).flat_map(|run| (0..32).map(move |l| run * 64 + l));
                raw.extend(pairs.map(|i| code(i) | code(i + 32) << 4));
            }
        }
    }
    let mut all = vec![0.0; outputs * cols];
    decode_rows(WeightFormat::Block(block), cols, &raw, &mut all).ok()?;
    Some(all)
}

/// Eight scales and eight minima of six bits each, as Q4_K has them in twelve bytes.
fn small_scales(all: &[u8]) -> [u8; 12] {
    let (s, t) = all.split_at(8);
    std::array::from_fn(|i| match i {
        0..4 => s[i] & 63 | s[i + 4] >> 4 << 6,
        4..8 => t[i - 4] & 63 | t[i] >> 4 << 6,
        _ => s[i - 4] & 15 | t[i - 4] << 4,
    })
}

/// Rows by the weights of a panel, an expert's panel after the other; two slots of experts read one row.
fn matmul(
    (floats, weights): (&[Vec<f32>], &[f32]),
    words: &[u32],
    leaves: bool,
    expert: impl Fn(usize) -> usize,
) -> Vec<f32> {
    let [bias, x] = [2, 3].map(|i| &floats[i]);
    let (rows, cols, grain) = (words[0] as usize, words[1] as usize, words[2] as usize);
    let per_row = rows / (x.len() / cols);
    let one = |row: usize, n: usize| {
        let output = expert(row) * PANEL + n;
        let (weight, of_row) = (&weights[output * cols..][..cols], &x[row / per_row * cols..][..cols]);
        let sum = summed((cols, grain), leaves, |part| chain(part.map(|k| (of_row[k], weight[k]))));
        sum + bias[output]
    };
    (0..rows).flat_map(|row| (0..PANEL).map(move |n| (row, n))).map(|(row, n)| one(row, n)).collect()
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
fn attention(floats: &[Vec<f32>], words: &[u32], capped: bool) -> Vec<f32> {
    let [q, keys, values, scores] = [0, 1, 2, 4].map(|i| &floats[i]);
    let (tokens, heads) = (words[0] as usize, (words[3] >> 16) as usize);
    let (k_dim, v_dim) = ((words[2] & 0xffff) as usize, (words[2] >> 16) as usize);
    let (page, length) = (words[13] as usize, floats[3][3].to_bits() as usize);
    let key = |j: usize, d: usize| keys[(j / page * k_dim + d) * page + j % page];
    let cap = |s: f32| if capped { scores[1] * tanh::<SeparateMadd>(s * scores[2]) } else { s };
    let one = |token: usize, head: usize| -> Vec<f32> {
        let of_head = &q[(token * heads + head) * k_dim..][..k_dim];
        let (mut top, mut sum, mut out) = (0.0f32, 0.0f32, vec![0.0f32; v_dim]);
        // Causal: from the first key to the row's own.
        let end = length - tokens + token + 1;
        for chunk in (0..end).step_by(64) {
            let all: Vec<f32> = (chunk..end.min(chunk + 64))
                .map(|j| cap(chain((0..k_dim).map(|d| (of_head[d], key(j, d)))) * scores[0]))
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

/// Rows whose heads' pairs are turned by the angles of their positions: heads, their width, pairs, pitch.
fn rotated(
    floats: &[Vec<f32>],
    positions: &[u32],
    (heads, width, pairs, pitch): (u32, u32, u32, u32),
) -> Vec<f32> {
    let (mut all, angles) = (floats[0].clone(), &floats[2]);
    let [width, pairs] = [width as usize, pairs as usize];
    for (row, position) in all.chunks_mut(pitch as usize).zip(positions) {
        for head in row.chunks_mut(width).take(heads as usize) {
            for pair in 0..pairs {
                let at = *position as usize * pairs + pair;
                let (c, s) = (angles[at], angles[angles.len() / 2 + at]);
                let (a, b) = (head[pair], head[pair + pairs]);
                (head[pair], head[pair + pairs]) = (a * c - b * s, b * c + a * s);
            }
        }
    }
    all
}

/// Rows of as many gates as what they are multiplied with.
fn gated(x: &[f32], cols: usize) -> Vec<f32> {
    let of_row = |row: &[f32]| -> Vec<f32> {
        let (gates, ups) = row.split_at(cols);
        gates.iter().zip(ups).map(|(gate, up)| silu::<SeparateMadd>(*gate) * up).collect()
    };
    x.chunks(2 * cols).flat_map(of_row).collect()
}

/// Rows by their experts' weights, and what was there.
fn combined(floats: &[Vec<f32>], words: &[u32]) -> Vec<f32> {
    let [y, weights, out] = [0, 1, 2].map(|i| &floats[i]);
    let (cols, top_k) = (words[1] as usize, words[2] as usize);
    let one = |(at, before): (usize, &f32)| {
        let (row, col) = (at / cols, at % cols);
        let slots = (0..top_k).map(|j| row * top_k + j);
        chain(slots.map(|slot| (weights[slot], y[slot * cols + col]))) + before
    };
    out.iter().enumerate().map(one).collect()
}
