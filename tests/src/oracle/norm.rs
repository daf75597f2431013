//! Norms, in f64 over values as stored.

use super::added;
use crate::budget;
use crate::compare::Want;
use crate::spec::norm::{Case, MatchCase, NormSet, TopkCase};
use engraft_core::params::NormKind;

/// One normed row with its slack.
pub fn row(x: &[f32], set: &NormSet) -> (Vec<f64>, Vec<f64>) {
    let n = x.len() as f64;
    let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let mean = match set.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => x.iter().sum::<f64>() / n,
    };
    let mean_abs = x.iter().map(|v| v.abs()).sum::<f64>() / n;
    let square = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    let r = 1.0 / (square + f64::from(set.eps)).sqrt();
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for (i, v) in x.iter().enumerate() {
        let w = set.weight.as_ref().map_or(1.0, |w| f64::from(w[i]));
        let w = if set.plus_one && set.weight.is_some() { 1.0 + w } else { w };
        let (scaled, bias) = ((v - mean) * r * w, set.bias.as_ref().map_or(0.0, |b| f64::from(b[i])));
        let y = scaled + bias;
        values.push(y);
        slack.push(match set.kind {
            // A bias is added with one rounding.
            NormKind::Rms => {
                budget::rms(x.len(), scaled) + if bias == 0.0 { 0.0 } else { budget::U * y.abs() }
            }
            NormKind::Layer => budget::layer(x.len(), (v - mean, r, w), y, mean_abs),
        });
    }
    (values, slack)
}

/// Every row (or head of a row) of `x`, `width` values each.
pub fn rows(x: &[f32], width: usize, set: &NormSet) -> Want {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for part in x.chunks(width) {
        let (v, s) = row(part, set);
        values.extend(v);
        slack.extend(s);
    }
    Want::Near { values, slack }
}

/// `add_norm`: the rounded sum, exact, and its norm.
pub fn add_norm(case: &Case) -> Vec<Want> {
    let sum: Vec<f32> =
        case.x.values.iter().zip(&case.other.values).map(|(r, x)| added(*r, *x, case.x.dtype)).collect();
    let normed = rows(&sum, case.x.cols, &case.set);
    vec![Want::Exact(sum), normed]
}

/// Every group of columns over all rows; sums are chains of `rows / 64`, then of a group's columns.
pub fn groups(x: &[f32], cols: usize, groups: usize, set: &NormSet) -> Want {
    let (rows, width) = (x.len() / cols, cols / groups);
    let (mut values, mut slack) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    for group in 0..groups {
        let at = |i: usize| i / width * cols + group * width + i % width;
        let part: Vec<f32> = (0..rows * width).map(|i| x[at(i)]).collect();
        // A value of a column for each of the group's.
        let spread = |of: &Option<Vec<f32>>| {
            of.as_ref().map(|of| (0..part.len()).map(|i| of[group * width + i % width]).collect())
        };
        let set = NormSet { weight: spread(&set.weight), bias: spread(&set.bias), ..set.clone() };
        let (v, s) = row(&part, &set);
        for (i, (v, s)) in v.into_iter().zip(s).enumerate() {
            (values[at(i)], slack[at(i)]) = (v, s);
        }
    }
    Want::Near { values, slack }
}

/// `gaussian_topk`.
pub fn topk(case: &TopkCase) -> Want {
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    for row in case.x.values.chunks(case.x.cols) {
        let n = row.len() as f64;
        let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        let mean = row.iter().sum::<f64>() / n;
        let spread = (row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n).sqrt();
        let mean_abs = row.iter().map(|v| v.abs()).sum::<f64>() / n;
        let k = f64::from(case.deviations);
        for v in &row {
            let y = v - (mean + k * spread);
            values.push(y.max(0.0));
            slack.push(budget::above_cutoff(row.len(), (mean, mean_abs), spread, k, y));
        }
    }
    Want::Near { values, slack }
}

/// `match_rms`.
pub fn matched(case: &MatchCase) -> Want {
    let mean_square = |x: &[f32]| {
        let squares = x.iter().map(|v| f64::from(*v) * f64::from(*v));
        squares.sum::<f64>() / x.len() as f64
    };
    let (mut values, mut slack) = (Vec::new(), Vec::new());
    let rows = case.x.values.chunks(case.x.cols).zip(case.like.values.chunks(case.like.cols));
    for (row, like) in rows {
        for part in row.chunks(like.len()) {
            let own = mean_square(part).max(f64::from(case.floor));
            let factor = (mean_square(like) / own).sqrt();
            values.extend(part.iter().map(|v| f64::from(*v) * factor));
            slack.extend(part.iter().map(|v| budget::matched(like.len(), f64::from(*v) * factor)));
        }
    }
    Want::Near { values, slack }
}
