//! Routing, experts' matmuls and their sum.

use super::{order, weight};
use crate::budget;
use crate::compare::Want;
use crate::dice::round;
use crate::spec::moe::{CombineCase, ExpertCase, RouteCase};
use engraft_core::numerics::{Madd, leaf_bounds};
use engraft_core::params::{GroupRank, Router, RouterScore};

/// Bounds of the experts' slots, then the slots of expert 0, of expert 1, ...
pub fn groups(experts: &[u32], count: usize) -> Vec<u32> {
    let (mut bounds, mut slots) = (vec![0], Vec::new());
    for e in 0..count as u32 {
        slots.extend((0..experts.len()).filter(|s| experts[*s] == e).map(|s| s as u32));
        bounds.push(slots.len() as u32);
    }
    [bounds, slots].concat()
}

/// The chosen experts, their weights, the slots by expert.
pub fn route(case: &RouteCase) -> Vec<Want> {
    let router = case.router;
    let (mut experts, mut values, mut slack) = (Vec::new(), Vec::new(), Vec::new());
    for t in 0..case.logits.rows {
        let logits = case.logits.row(t);
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
        let score = |i: usize| match router.score {
            RouterScore::Softmax => libm::exp(f64::from(logits[i]) - f64::from(max)),
            RouterScore::Sigmoid => 1.0 / (1.0 + libm::exp(-f64::from(logits[i]))),
        };
        let all: f64 = match router.score {
            RouterScore::Softmax => (0..logits.len()).map(score).sum(),
            RouterScore::Sigmoid => 1.0,
        };
        let bias = |i: usize| case.choice_bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
        let keys: Vec<f64> = match router.is_by_score() {
            true => (0..logits.len()).map(|i| score(i) / all + bias(i)).collect(),
            false => logits.iter().map(|v| f64::from(*v)).collect(),
        };
        let chosen = chosen(&keys, router);
        let of_chosen: f64 = chosen.iter().map(|c| score(*c)).sum();
        let total = if router.renormalise { of_chosen } else { all };
        for c in &chosen {
            let (weight, spread) = match router.near {
                None => (score(*c) / total, f64::from(max - logits[*c]).abs()),
                Some(near) => one_of_those_left(logits, *c, f64::from(near)),
            };
            let weight = weight * f64::from(router.scale);
            values.push(weight);
            slack.push(budget::routed(weight, spread, logits.len(), f64::from(router.scale)));
        }
        experts.extend(chosen.into_iter().map(|c| c as u32));
    }
    let groups = groups(&experts, router.experts);
    vec![Want::Words(experts), Want::Near { values, slack }, Want::Words(groups)]
}

/// The part that expert `c` has of a softmax over the logits left when it is chosen and near its own, and how
/// far apart those are.
fn one_of_those_left(logits: &[f32], c: usize, near: f64) -> (f64, f64) {
    let best = f64::from(logits[c]);
    let there = |(i, s): (usize, &f32)| {
        let s = f64::from(*s);
        let before = s > best || s == best && i < c;
        (!before && best - s <= near * s.abs().max(best)).then_some(s - best)
    };
    let steps: Vec<f64> = logits.iter().enumerate().filter_map(there).collect();
    (1.0 / steps.iter().map(|s| libm::exp(*s)).sum::<f64>(), steps.iter().fold(0.0, |m, s| s.abs().max(m)))
}

/// Of `from`, the `count` with the largest keys, ascending; of equals the lowest.
fn largest(keys: &[f64], mut from: Vec<usize>, count: usize) -> Vec<usize> {
    // A stable sort: of equals the lowest stays in front.
    from.sort_by(|a, b| keys[*b].partial_cmp(&keys[*a]).unwrap_or(std::cmp::Ordering::Equal));
    from.truncate(count);
    from.sort_unstable();
    from
}

/// The experts of a token.
fn chosen(keys: &[f64], router: Router) -> Vec<usize> {
    let all: Vec<usize> = (0..keys.len()).collect();
    let Some(groups) = router.groups else { return largest(keys, all, router.top_k) };
    let size = keys.len() / groups.count;
    let best = match groups.rank {
        GroupRank::Best => 1,
        GroupRank::BestTwo => 2,
    };
    let rank = |group: &[usize]| largest(keys, group.to_vec(), best).iter().map(|e| keys[*e]).sum();
    let ranks: Vec<f64> = all.chunks(size).map(rank).collect();
    let open = largest(&ranks, (0..groups.count).collect(), groups.chosen);
    let from = all.into_iter().filter(|e| open.contains(&(e / size))).collect();
    largest(keys, from, router.top_k)
}

/// Row of x and rows of w of a slot.
fn slot<'a>(case: &'a ExpertCase, w: &'a [f32], slot: usize) -> (&'a [f32], usize, Vec<&'a [f32]>) {
    let n = case.w.rows / case.count;
    let first = case.experts[slot] as usize * n;
    let rows = (first..first + n).map(|r| &w[r * case.w.cols..(r + 1) * case.w.cols]).collect();
    (case.x.row(slot / case.per_row()), first, rows)
}

/// Every slot's matmul.
pub fn expert_linear(case: &ExpertCase) -> Want {
    let w = weight::values(&case.w);
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for s in 0..case.experts.len() {
        let (x, first, rows) = slot(case, &w, s);
        for (i, row) in rows.iter().enumerate() {
            let bias = case.bias.as_ref().map_or(0.0, |b| f64::from(b[first + i]));
            let terms = x.iter().zip(*row).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, condition) =
                terms.fold((bias, bias.abs()), |(sum, condition), t| (sum + t, condition + t.abs()));
            values.push(sum);
            slack.push(budget::sum(condition));
        }
    }
    Want::Near { values, slack }
}

/// Every slot's matmul in the contract's order, to the bit.
pub fn expert_linear_strict(case: &ExpertCase, kind: Madd) -> Vec<f32> {
    let w = weight::values(&case.w);
    let mut out = Vec::new();
    for s in 0..case.experts.len() {
        let (x, first, rows) = slot(case, &w, s);
        for (i, row) in rows.iter().enumerate() {
            let sum = order::dot(kind, x, row, (case.grain, 1));
            out.push(round(case.bias.as_ref().map_or(sum, |b| sum + b[first + i]), case.x.dtype));
        }
    }
    out
}

/// The weighed sum of every token.
pub fn combine(case: &CombineCase) -> Want {
    let k = case.weights.cols;
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for t in 0..case.out.rows {
        for c in 0..case.out.cols {
            let there = if case.add { f64::from(case.out.row(t)[c]) } else { 0.0 };
            let own = (0..k).filter(|j| case.counts(t * k + j));
            let terms = own.map(|j| f64::from(case.weights.row(t)[j]) * f64::from(case.y.row(t * k + j)[c]));
            let (sum, condition) =
                terms.fold((there, there.abs()), |(sum, condition), t| (sum + t, condition + t.abs()));
            values.push(sum);
            slack.push(budget::sum(condition));
        }
    }
    Want::Near { values, slack }
}

/// The same in the contract's order, to the bit: leaves by expert number, without experts one chain.
pub fn combine_strict(case: &CombineCase, kind: Madd) -> Vec<f32> {
    let k = case.weights.cols;
    let leaf_of = |slot: usize| match &case.chosen {
        None => 0,
        Some((experts, share)) => {
            let bounds = leaf_bounds(share.count(), 1);
            (0..8).find(|l| (experts[slot] as usize) < bounds[l + 1]).unwrap_or(0)
        }
    };
    let mut out = Vec::new();
    for t in 0..case.out.rows {
        for c in 0..case.out.cols {
            let mut leaves = [0.0; 8];
            for slot in (t * k..(t + 1) * k).filter(|slot| case.counts(*slot)) {
                let (w, leaf) = (case.weights.row(t)[slot - t * k], &mut leaves[leaf_of(slot)]);
                *leaf = order::madd(kind, w, case.y.row(slot)[c], *leaf);
            }
            let sum = order::tree(leaves.to_vec());
            let sum = if case.add { sum + case.out.row(t)[c] } else { sum };
            out.push(round(sum, case.out.dtype));
        }
    }
    out
}
