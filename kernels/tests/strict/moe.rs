//! Experts.

use crate::embed::{Weight, every_weight, plain};
use crate::linear::{leaves, matmul};
use crate::machine::{Machine, Runs, numbers, round, rounded, same};
use engraft_core::math::{FusedMadd as F, exp, sigmoid};
use engraft_core::numerics::{leaf_bounds, tree};
use engraft_kernels::params::moe::{Combine, ExpertLinear, Group, Route};
use engraft_kernels::params::{Elem, WeightView};
use std::ops::Range;

/// Of `from`, so many with the largest keys, ascending.
fn largest(keys: &[f32], mut from: Vec<usize>, count: usize) -> Vec<usize> {
    let key = |i: &usize| if keys[*i].is_nan() { f32::NEG_INFINITY } else { keys[*i] };
    from.sort_by(|a, b| key(b).partial_cmp(&key(a)).unwrap().then(a.cmp(b)));
    from.truncate(count);
    from.sort_unstable();
    from
}

/// How experts are chosen: by logits, or by scores with a bias, in groups `(count, chosen, by the two best)`.
#[derive(Clone, Copy)]
struct Way<'a> {
    top_k: usize,
    softmax: bool,
    renormalise: bool,
    bias: Option<&'a [f32]>,
    groups: Option<(usize, usize, bool)>,
    near: Option<f32>,
}

/// Experts of a row, ascending, and their weights.
fn routed(row: &[f32], way: Way<'_>, scale: f32) -> (Vec<u32>, Vec<f32>) {
    let Way { top_k, softmax, renormalise, .. } = way;
    let max = row.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
    let score: Vec<f32> =
        row.iter().map(|v| if softmax { exp::<F>(v - max) } else { sigmoid::<F>(*v) }).collect();
    let b = leaf_bounds(row.len(), 1);
    let all = tree(std::array::from_fn(|l| score[b[l]..b[l + 1]].iter().fold(0.0, |a, v| a + v)));
    let whole = if softmax { all } else { 1.0 };
    let keys: Vec<f32> = match way.bias.is_some() || way.groups.is_some() {
        true => (0..row.len()).map(|i| score[i] / whole + way.bias.map_or(-0.0, |bias| bias[i])).collect(),
        false => row.to_vec(),
    };
    let mut from: Vec<usize> = (0..row.len()).collect();
    if let Some((count, open, two)) = way.groups {
        let size = row.len() / count;
        let rank = |group: &[usize]| {
            let best = largest(&keys, group.to_vec(), if two { 2 } else { 1 });
            best.iter().map(|e| keys[*e]).reduce(|a, b| a + b).unwrap()
        };
        let ranks: Vec<f32> = from.chunks(size).map(rank).collect();
        let open = largest(&ranks, (0..count).collect(), open);
        from.retain(|e| open.contains(&(e / size)));
    }
    let chosen = largest(&keys, from, top_k);
    if let Some(near) = way.near {
        let weights = chosen.iter().map(|c| scale / left(row, *c, near)).collect();
        return (chosen.iter().map(|c| *c as u32).collect(), weights);
    }
    let total = match (renormalise, softmax) {
        (true, _) => chosen.iter().fold(0.0, |a, c| a + score[*c]),
        (false, true) => all,
        (false, false) => 1.0,
    };
    let total = if total == 0.0 { 1.0 } else { total };
    let weights = chosen.iter().map(|c| score[*c] / total * scale).collect();
    (chosen.iter().map(|c| *c as u32).collect(), weights)
}

/// The sum of a softmax over the logits left when `c` is chosen and near its own, in the contract's order.
fn left(row: &[f32], c: usize, near: f32) -> f32 {
    let (best, b) = (row[c], leaf_bounds(row.len(), 1));
    let term = |i: usize| {
        let before = row[i] > best || row[i] == best && i < c;
        let out = before || best - row[i] > near * row[i].abs().max(best);
        if out { 0.0 } else { exp::<F>(row[i] - best) }
    };
    tree(std::array::from_fn(|l| (b[l]..b[l + 1]).map(term).fold(0.0, |a, v| a + v)))
}

/// Slots by expert.
fn grouped(experts: &[u32], count: usize) -> Vec<u32> {
    let mut bounds = vec![0];
    let mut order = Vec::new();
    for e in 0..count as u32 {
        order.extend((0..experts.len()).filter(|s| experts[*s] == e).map(|s| s as u32));
        bounds.push(order.len() as u32);
    }
    [bounds, order].concat()
}

#[test]
fn routes_and_groups_are_the_contracts() {
    for (experts, top_k, tokens, groups) in [
        (5, 2, 7, None),
        (64, 8, 9, None),
        (70, 40, 3, None),
        (5, 2, 7, Some((1, 1, true))),
        (64, 8, 9, Some((8, 4, true))),
        (70, 33, 3, Some((14, 7, false))),
        (32, 3, 5, Some((32, 3, true))),
    ] {
        for (softmax, renormalise, biased, near) in [
            (true, false, false, None),
            (true, true, true, None),
            (false, false, true, None),
            (false, true, false, None),
            (true, false, false, Some(0.2)),
        ] {
            let groups = groups.filter(|_| near.is_none());
            let bias = numbers(experts, 3);
            let way = Way { top_k, softmax, renormalise, bias: biased.then_some(&bias[..]), groups, near };
            let mut logits: Vec<f32> =
                numbers(tokens * experts, 1).iter().map(|v| (v * 12.0).round() / 3.0).collect();
            logits[experts + 1] = f32::NEG_INFINITY;
            let rows: Vec<_> = logits.chunks(experts).map(|r| routed(r, way, 1.5)).collect();
            let chosen: Vec<u32> = rows.iter().flat_map(|r| r.0.clone()).collect();
            let weights: Vec<f32> = rows.iter().flat_map(|r| r.1.clone()).collect();
            Machine::each(&mut |gpu| {
                let out = gpu.matrix(&vec![0.0; tokens * top_k], top_k, Elem::F32, top_k + 1, 0);
                let (experts_at, grouped_at) =
                    (gpu.empty(4 * chosen.len()), gpu.empty(4 * (experts + 1 + chosen.len())));
                let p = Route {
                    logits: gpu.matrix(&logits, experts, Elem::F32, experts + 3, 0),
                    weights: out,
                    experts: experts_at,
                    top_k: top_k as u32,
                    sigmoid: u32::from(!softmax),
                    renormalise: u32::from(renormalise),
                    scale: 1.5,
                    bias: way.bias.map_or(0, |bias| gpu.put(bias)),
                    by_score: u32::from(biased || groups.is_some()),
                    groups: groups.map_or(0, |groups| groups.0 as u32),
                    open_groups: groups.map_or(0, |groups| groups.1 as u32),
                    best_two: u32::from(groups.is_some_and(|groups| groups.2)),
                    one_by_one: u32::from(near.is_some()),
                    near: near.unwrap_or(0.0),
                };
                gpu.run(&p, &p.launch());
                assert_eq!(gpu.get::<u32>(experts_at, chosen.len()), chosen);
                same(&gpu.values(out, Elem::F32), &weights, "route");
                let (count, slots) = (experts as u32, chosen.len() as u32);
                let p = Group { experts: experts_at, groups: grouped_at, count, slots };
                gpu.run(&p, &p.launch());
                let length = experts + 1 + chosen.len();
                assert_eq!(gpu.get::<u32>(grouped_at, length), grouped(&chosen, experts));
            });
        }
    }
}

#[test]
fn every_slot_uses_its_expert() {
    // Expert 3 has most slots, expert 4 none.
    let few = [[0u32, 3], [3, 5], [1, 3], [2, 3], [0, 3], [3, 5], [1, 2]].concat();
    check_experts(&few, 96, usize::MAX, 0);
    // Every format with every type of activations.
    [1, 2].iter().for_each(|turn| check_experts(&few[..8], 64, usize::MAX, *turn));
    // Seven times as many: 16 slots at a time, of plain weights.
    check_experts(&few.repeat(7), 77, 3, 0);
}

/// Slots that go to these experts, two of a token, with the first formats of [`every_weight`] and types of
/// activations by turns.
fn check_experts(experts: &[u32], k: usize, formats: usize, turn: usize) {
    const COUNT: usize = 6;
    for (i, w) in every_weight(COUNT * 35, k).iter().take(formats).enumerate() {
        let slots =
            Slots { experts, count: COUNT, top_k: 2, elem: Elem::ALL[(i + turn) % 3], per_token: i % 2 == 0 };
        // All experts, and those of a rank: slots of others keep what they hold.
        for own in [0..COUNT, 2..5] {
            slots.check(w, own, Machine::each);
        }
    }
}

/// Slots on their way to experts.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pub experts: &'a [u32],
    pub count: usize,
    pub top_k: usize,
    pub elem: Elem,
    /// Whether x has a row per token, and not per slot.
    pub per_token: bool,
}

/// What a matmul of slots stores, and how it sums.
#[derive(Clone, Copy)]
pub struct How {
    pub elem_out: Elem,
    pub bias: bool,
    pub grain: usize,
}

impl Slots<'_> {
    /// The bits of the contract, by the weights of the experts `own`.
    pub fn check(&self, w: &Weight, own: Range<usize>, on: Runs) {
        self.check_how(w, own, How { elem_out: self.elem, bias: true, grain: 1 }, on);
    }

    /// The same of other outputs and leaves.
    pub fn check_how(&self, w: &Weight, own: Range<usize>, how: How, on: Runs) {
        let (Self { experts, count, top_k, elem, .. }, k, n) = (*self, w.cols, w.rows / self.count);
        let How { elem_out, grain, .. } = how;
        let rows = if self.per_token { experts.len() / top_k } else { experts.len() };
        let (x, bias) = (numbers(rows * k, 1), numbers(count * n, 2));
        let xs = rounded(&x, elem);
        let of_slot = |(slot, expert): (usize, &u32)| -> Vec<f32> {
            let (row, e) = (if self.per_token { slot / top_k } else { slot }, *expert as usize);
            if !own.contains(&e) {
                return vec![0.0; n];
            }
            let y = matmul(&xs[row * k..(row + 1) * k], &w.values[e * n * k..(e + 1) * n * k], k, grain);
            let bias = bias[e * n..].iter().map(|b| how.bias.then_some(*b));
            y.iter().zip(bias).map(|(y, b)| round(b.map_or(*y, |b| y + b), elem_out)).collect()
        };
        let want: Vec<f32> = experts.iter().enumerate().flat_map(of_slot).collect();
        on(&mut |gpu| {
            let out = gpu.matrix(&vec![0.0; experts.len() * n], n, elem_out, n + 1, 0);
            let whole = w.view(gpu);
            let row_bytes = whole.row_bytes as usize;
            let p = ExpertLinear {
                x: gpu.dense(&x, k, elem),
                weight: WeightView { ptr: whole.ptr + (own.start * n * row_bytes) as u64, ..whole },
                out,
                bias: if how.bias { gpu.put(&bias[own.start * n..own.end * n]) } else { 0 },
                groups: gpu.put(&grouped(experts, count)),
                leaves: leaves(k, grain),
                count: count as u32,
                first: own.start as u32,
                own: own.len() as u32,
                elem,
                elem_out,
            };
            gpu.run(&p, &p.launch(w.format));
            same(&gpu.values(out, elem_out), &want, w.format.name());
        });
    }
}

/// Slots to an expert from which 16 are taken at a time (8), and slots of a tile (4 and 16).
#[test]
fn slots_on_both_sides_of_every_threshold() {
    let w = plain(Elem::BF16, 2 * 33, 40);
    for slots in [4, 8, 16, 32].into_iter().flat_map(|at| at - 1..=at + 1) {
        let experts: Vec<u32> = (0..slots).map(|i| u32::from(i % 5 == 3)).collect();
        let slots = Slots { experts: &experts, count: 2, top_k: 1, elem: Elem::F16, per_token: false };
        slots.check(&w, 0..2, Machine::each);
    }
}

/// Sums over the slots of a token: leaves by expert number, or one chain.
fn sum_of(experts: Option<(&[u32], usize)>, own: Range<usize>, terms: &[(f32, f32)]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (j, (w, y)) in terms.iter().enumerate() {
        let leaf = experts.map_or(0, |(experts, count)| {
            let bounds = leaf_bounds(count, 1);
            (0..8).find(|l| (experts[j] as usize) < bounds[l + 1]).unwrap()
        });
        if own.contains(&leaf) {
            sums[leaf] = w.mul_add(*y, sums[leaf]);
        }
    }
    tree(sums)
}

#[test]
fn slots_are_added_by_leaves() {
    let (tokens, top_k, count) = (5usize, 3usize, 13usize);
    let experts: Vec<u32> = (0..tokens as u32).flat_map(|t| [t, t + 4, t + 8]).collect();
    for elem in Elem::ALL {
        for (n, add, chosen, own) in [
            (24, 0, false, 0..8),
            (17, 1, false, 0..8),
            (24, 1, true, 0..8),
            (17, 1, true, 0..8),
            (33, 0, true, 0..8),
            (40, 0, true, 2..4),
            (40, 1, true, 0..8),
            (9, 0, true, 7..8),
        ] {
            // Of 16 bits every second row begins 8 bytes behind a multiple of 16.
            let gap = if n == 40 { 4 } else { 0 };
            let (y, w, old) =
                (numbers(tokens * top_k * n, 1), numbers(tokens * top_k, 2), numbers(tokens * n, 3));
            let (ys, olds) = (rounded(&y, elem), rounded(&old, elem));
            // A rank's part is not rounded.
            let elem_out = if own == (0..8) { elem } else { Elem::F32 };
            let want: Vec<f32> = (0..tokens * n)
                .map(|i| {
                    let (t, c) = (i / n, i % n);
                    let slots = t * top_k..(t + 1) * top_k;
                    let terms: Vec<_> = slots.clone().map(|s| (w[s], ys[s * n + c])).collect();
                    let sum = sum_of(chosen.then_some((&experts[slots], count)), own.clone(), &terms);
                    round(if add == 1 { sum + olds[i] } else { sum }, elem_out)
                })
                .collect();
            Machine::each(&mut |gpu| {
                let out = gpu.matrix(&old, n, elem_out, n + gap, 0);
                let p = Combine {
                    y: gpu.dense(&y, n, elem),
                    weights: gpu.matrix(&w, top_k, Elem::F32, top_k + 2, 0),
                    out,
                    experts: if chosen { gpu.put(&experts) } else { 0 },
                    leaves: leaf_bounds(count, 1).map(|at| at as u32),
                    own: own.clone().fold(0, |own, leaf| own | 1 << leaf),
                    elem,
                    elem_out,
                    add,
                    reserved: 0,
                };
                gpu.run(&p, &p.launch());
                same(&gpu.values(out, elem_out), &want, "combine");
            });
        }
    }
}
