//! Convolutions in groups and attention that is linear in the rows, by their definitions.

use super::order;
use crate::budget;
use crate::compare::Want;
use crate::dice::round;
use crate::spec::picture::{ConvCase, LinearCase};
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;

/// What column `c` of row `r` sums: pairs of value and weight.
fn operands(case: &ConvCase, r: usize, c: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut x, mut w) = (Vec::new(), Vec::new());
    let groups = case.x.cols / case.inputs;
    let group = (c / case.outputs) % groups;
    for tap in 0..case.taps {
        let row = case.rows[r * case.taps + tap] as usize;
        for input in 0..case.inputs {
            let there = row < case.x.rows;
            x.push(if there { case.x.row(row)[group * case.inputs + input] } else { 0.0 });
            w.push(case.weight[(tap * case.inputs + input) * case.cols + c]);
        }
    }
    (x, w)
}

/// `grouped_conv`.
pub fn grouped_conv(case: &ConvCase) -> Want {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for (r, c) in (0..case.count()).flat_map(|r| (0..case.cols).map(move |c| (r, c))) {
        let (x, w) = operands(case, r, c);
        let terms: Vec<f64> = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w)).collect();
        let sum: f64 = terms.iter().sum();
        let value = sum + case.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
        let off = budget::sum(terms.iter().map(|term| term.abs()).sum());
        // The bias is added with one rounding; a product below 2^-126 may be flushed.
        let flushed = terms.len() as f64 * f64::from(f32::MIN_POSITIVE);
        slack.push(off + budget::U * value.abs() + flushed);
        values.push(value);
    }
    Want::Near { values, slack }
}

/// The same in the contract's order.
pub fn grouped_conv_in_order(case: &ConvCase, madd: Madd) -> Want {
    let at = |(r, c): (usize, usize)| {
        let (x, w) = operands(case, r, c);
        let sum = order::dot(madd, &x, &w, (1, 1));
        round(case.bias.as_ref().map_or(sum, |bias| sum + bias[c]), case.x.dtype)
    };
    let all = (0..case.count()).flat_map(|r| (0..case.cols).map(move |c| (r, c)));
    Want::Exact(all.map(at).collect())
}

fn positive(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Columns of a head of some rows: queries or keys, values with a one behind them.
fn head(case: &LinearCase, item: usize, head: usize) -> [Vec<Vec<f32>>; 3] {
    let (rows, columns) = (case.item(item), head * case.step..head * case.step + case.width);
    let part = |row: &[f32]| row[columns.clone()].to_vec();
    let above = |row: &[f32]| part(row).into_iter().map(positive).collect();
    let with_one = |row: &[f32]| [part(row), vec![1.0]].concat();
    [
        rows.clone().map(|r| above(case.q.row(r))).collect(),
        rows.clone().map(|r| above(case.k.row(r))).collect(),
        rows.map(|r| with_one(case.v.row(r))).collect(),
    ]
}

/// `linear_attend`: the sums, and what queries make of them.
pub fn linear_attend(case: &LinearCase) -> Vec<Want> {
    let (width, tiny) = (case.width, f64::from(f32::MIN_POSITIVE));
    let (mut sums, mut sums_off) = (Vec::new(), Vec::new());
    let mut out = vec![0.0; case.q.rows * case.heads * width];
    let mut out_off = out.clone();
    for (item, at) in (0..case.items()).flat_map(|item| (0..case.heads).map(move |head| (item, head))) {
        let [queries, keys, values] = head(case, item, at);
        let of = |d: usize, c: usize| {
            let terms = keys.iter().zip(&values).map(|(k, v)| f64::from(k[d]) * f64::from(v[c]));
            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
        };
        let own: Vec<(f64, f64)> =
            (0..width * (width + 1)).map(|i| of(i / (width + 1), i % (width + 1))).collect();
        let flushed = keys.len() as f64 * tiny;
        sums.extend(own.iter().map(|(sum, _)| *sum));
        sums_off.extend(own.iter().map(|(_, size)| budget::sum(*size) + flushed));
        for (query, row) in queries.iter().zip(case.item(item)) {
            // A sum, and how far it may be off: by the sums that it is made of, and by its own order.
            let read = |c: usize| {
                let (mut sum, mut off) = (0.0, 0.0);
                for (d, q) in query.iter().enumerate() {
                    let ((of, size), q) = (own[d * (width + 1) + c], f64::from(*q));
                    sum += q * of;
                    off += q * (budget::sum(size) + flushed) + budget::sum(q * of.abs()) + tiny;
                }
                (sum, off)
            };
            let (by, by_off) = read(width);
            let by = by + f64::from(case.eps);
            for c in 0..width {
                let (sum, off) = read(c);
                let (value, place) = (sum / by, (row * case.heads + at) * width + c);
                out[place] = value;
                // What divides has one sign; its last sum and the quotient round once each.
                out_off[place] =
                    (off + value.abs() * by_off) / (by - by_off).max(tiny) + 3.0 * budget::U * value.abs();
            }
        }
    }
    vec![Want::Near { values: sums, slack: sums_off }, Want::Near { values: out, slack: out_off }]
}

/// The same in the contract's order.
pub fn linear_attend_in_order(case: &LinearCase, madd: Madd) -> Vec<Want> {
    let (width, mut sums) = (case.width, Vec::new());
    let mut out = vec![0.0; case.q.rows * case.heads * width];
    let column = |rows: &[Vec<f32>], c: usize| rows.iter().map(|row| row[c]).collect::<Vec<f32>>();
    for (item, at) in (0..case.items()).flat_map(|item| (0..case.heads).map(move |head| (item, head))) {
        let [queries, keys, values] = head(case, item, at);
        let of = |d: usize, c: usize| order::dot(madd, &column(&keys, d), &column(&values, c), (1, 1));
        let own: Vec<Vec<f32>> = (0..width).map(|d| (0..=width).map(|c| of(d, c)).collect()).collect();
        for (query, row) in queries.iter().zip(case.item(item)) {
            let read = |c: usize| order::dot(madd, query, &column(&own, c), (1, 1));
            let by = read(width) + case.eps;
            for c in 0..width {
                out[(row * case.heads + at) * width + c] = round(read(c) / by, case.q.dtype);
            }
        }
        sums.extend(own.concat().into_iter().map(|sum| round(sum, Float::F32)));
    }
    vec![Want::Exact(sums), Want::Exact(out)]
}
