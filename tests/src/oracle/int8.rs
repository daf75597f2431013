//! Matmuls of quantized activations: codes and scales by their definition, sums of integers, what follows as
//! for any matmul.

use super::linear::Matmul;
use super::order;
use crate::budget;
use crate::dice::round;
use crate::spec::int8::Case;
use engraft_core::numerics::{Madd, leaf_bounds};

/// Values that share a scale.
const SPAN: usize = 32;

/// Codes and scales of a row, block by block.
fn quantized(row: &[f32]) -> Vec<(f32, Vec<i64>)> {
    let block = |values: &[f32]| {
        let top = values.iter().fold(0f32, |top, v| top.max(v.abs()));
        if f64::from(top) < 2f64.powi(-100) {
            return (0.0, vec![0; SPAN]);
        }
        let factor = 127.0 / top;
        let codes = values.iter().map(|v| f64::from(v * factor).round_ties_even() as i64).collect();
        (top * (1.0 / 127.0), codes)
    };
    row.chunks(SPAN).map(block).collect()
}

/// Scales and codes of the weight's rows: in these blocks every value is a whole multiple of the first two
/// bytes' f16.
fn stored(case: &Case) -> Vec<Vec<(f32, Vec<i64>)>> {
    let size = 2 + SPAN;
    let block = |raw: &[u8]| {
        let d = half::f16::from_le_bytes([raw[0], raw[1]]).to_f32();
        (d, raw[2..].iter().map(|q| i64::from(*q as i8)).collect())
    };
    let row = case.w.cols / SPAN * size;
    case.w.bytes.chunks(row).map(|row| row.chunks(size).map(block).collect()).collect()
}

/// `x w^T + b` of the quantized rows.
pub fn matmul(case: &Case) -> Matmul {
    let mut matmul = Matmul { values: Vec::new(), slack: Vec::new() };
    let w = stored(case);
    for r in 0..case.x.rows {
        let x = quantized(case.x.row(r));
        for (n, w) in w.iter().enumerate() {
            let bias = case.bias.as_ref().map_or(0.0, |b| f64::from(b[n]));
            let (mut sum, mut condition) = (bias, bias.abs());
            for ((dx, qx), (dw, qw)) in x.iter().zip(w) {
                let d = f64::from(*dx) * f64::from(*dw);
                sum += d * qx.iter().zip(qw).map(|(a, b)| a * b).sum::<i64>() as f64;
                condition += d.abs() * qx.iter().zip(qw).map(|(a, b)| (a * b).abs()).sum::<i64>() as f64;
            }
            matmul.values.push(sum);
            matmul.slack.push(budget::sum(condition));
        }
    }
    matmul
}

/// The matmul in the contract's order: chains of blocks, leaves that end at blocks.
pub fn strict(case: &Case, kind: Madd) -> Vec<f32> {
    let (w, k) = (stored(case), case.w.cols);
    // The least grain that is a multiple of both.
    let grain = (1..=SPAN).map(|i| i * case.grain.max(1)).find(|g| g % SPAN == 0).unwrap_or(SPAN);
    let bounds = leaf_bounds(k, grain);
    let mut out = Vec::new();
    for r in 0..case.x.rows {
        let x = quantized(case.x.row(r));
        for (n, w) in w.iter().enumerate() {
            let leaf = |leaf: usize| {
                let blocks = bounds[leaf] / SPAN..bounds[leaf + 1] / SPAN;
                blocks.fold(0.0, |sum, b| {
                    let ((dx, qx), (dw, qw)) = (&x[b], &w[b]);
                    let integer: i64 = qx.iter().zip(qw).map(|(a, b)| a * b).sum();
                    order::madd(kind, dx * dw, integer as f32, sum)
                })
            };
            let s: [f32; 8] = std::array::from_fn(leaf);
            let sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
            out.push(round(case.bias.as_ref().map_or(sum, |b| sum + b[n]), case.out));
        }
    }
    out
}
