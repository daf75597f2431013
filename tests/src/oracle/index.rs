//! An index of keys, in f64 and by sorting.

use crate::budget;
use crate::compare::Want;
use crate::spec::index::{ChooseCase, ScoresCase};
use engraft_core::numerics::Madd;
use std::cmp::Reverse;

/// Column `d` of the key in a slot.
fn key(case: &ScoresCase, slot: usize, d: usize) -> f32 {
    match d.checked_sub(case.low.cols) {
        None => case.low.row(slot)[d],
        Some(d) => case.high.row(slot)[d],
    }
}

/// `index_scores`; what is not written stays.
pub fn scores(case: &ScoresCase) -> Want {
    let width = case.low.cols + case.high.cols;
    let mut values: Vec<f64> = case.out.values.iter().map(|v| f64::from(*v)).collect();
    let mut slack = vec![0.0; values.len()];
    for r in 0..case.seen.rows {
        let (slots, token) = (case.seen.of_row(r), case.seen.first + r);
        if slots.len() <= case.seen.count {
            continue;
        }
        for (j, slot) in slots.into_iter().enumerate() {
            let (mut score, mut size) = (0.0, 0.0);
            for h in 0..case.heads {
                let terms = (0..width)
                    .map(|d| f64::from(case.q.row(token)[h * width + d]) * f64::from(key(case, slot, d)));
                let (sum, condition) = terms.fold((0.0, 0.0), |(s, c), term: f64| (s + term, c + term.abs()));
                let (factor, scale) = (f64::from(case.factors.row(token)[h]), f64::from(case.scale));
                score += factor * (scale * sum).max(0.0);
                size += factor.abs() * scale * condition;
            }
            values[r * case.out.cols + j] = score;
            // A chain of `width` steps, the scale, a chain of `heads`; the bend at 0 makes no error larger.
            slack[r * case.out.cols + j] =
                (width + case.heads + 2) as f64 * budget::U * size + f64::from(f32::MIN_POSITIVE);
        }
    }
    Want::Near { values, slack }
}

/// The same in the contract's order.
pub fn strict_scores(case: &ScoresCase, madd: Madd) -> Want {
    let width = case.low.cols + case.high.cols;
    let step = |a: f32, b: f32, c: f32| match madd {
        Madd::Fused => a.mul_add(b, c),
        Madd::Separate => a * b + c,
    };
    let mut values = case.out.values.clone();
    for r in 0..case.seen.rows {
        let (slots, token) = (case.seen.of_row(r), case.seen.first + r);
        if slots.len() <= case.seen.count {
            continue;
        }
        for (j, slot) in slots.into_iter().enumerate() {
            let mut score = 0.0f32;
            for h in 0..case.heads {
                let sum = (0..width)
                    .fold(0.0, |sum, d| step(case.q.row(token)[h * width + d], key(case, slot, d), sum));
                let dot = sum * case.scale;
                let dot = if dot < 0.0 { 0.0 } else { dot };
                score = step(case.factors.row(token)[h], dot, score);
            }
            values[r * case.out.cols + j] = score;
        }
    }
    Want::Exact(values)
}

/// `index_choose`: sorted by score and place, then by place.
pub fn choose(case: &ChooseCase) -> Vec<Want> {
    let count = case.seen.count;
    let (mut chosen, mut counts) = (Vec::new(), Vec::new());
    for r in 0..case.seen.rows {
        let slots = case.seen.of_row(r);
        let mut keys: Vec<usize> = (0..slots.len()).collect();
        if slots.len() > count {
            let score = |key: &usize| case.scores.row(r)[*key];
            // No number counts as less than all; both zeros are one number.
            let of = |key: &usize| {
                (!score(key).is_nan(), if score(key).is_nan() { 0.0 } else { score(key) + 0.0 })
            };
            keys.sort_by(|a, b| {
                let ((a_is, a_score), (b_is, b_score)) = (of(a), of(b));
                (Reverse(a_is).cmp(&Reverse(b_is))).then(b_score.total_cmp(&a_score)).then(a.cmp(b))
            });
            keys.truncate(count);
            keys.sort_unstable();
        }
        counts.push(keys.len() as u32);
        let taken = keys.iter().map(|key| slots[*key] as u32);
        chosen.extend(taken.chain(std::iter::repeat(0)).take(count));
    }
    vec![Want::Words(chosen), Want::Words(counts)]
}
