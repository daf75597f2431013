//! Models of random weights, and the parts of which f64 descriptions are made: for families without a golden.

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Shape and values by name.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;
/// A row per token.
pub type Matrix = Vec<Vec<f64>>;

/// Writes a model's folder.
pub fn write(dir: &Path, config: &Value, tensors: &Tensors) {
    std::fs::write(dir.join("config.json"), serde_json::to_vec(config).unwrap()).unwrap();
    let bytes: Vec<Vec<u8>> =
        tensors.values().map(|t| t.1.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes);
    let views = views.map(|((n, t), b)| (n, TensorView::new(Dtype::F32, t.0.clone(), b).unwrap()));
    std::fs::write(dir.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
}

/// The same values.
pub fn widened(row: &[f32]) -> Vec<f64> {
    row.iter().map(|v| f64::from(*v)).collect()
}

/// `w x`.
pub fn matvec(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

/// LayerNorm.
pub fn layer_norm(w: &[f32], b: Option<&[f32]>, eps: f64, x: &[f64]) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let bias = |i: usize| b.map_or(0.0, |b| f64::from(b[i]));
    let one = |(i, v): (usize, &f64)| (v - mean) / (variance + eps).sqrt() * f64::from(w[i]) + bias(i);
    x.iter().enumerate().map(one).collect()
}

/// The first `columns` of a head turned by its position, halves as pairs, base 10000.
pub fn rotated(x: &[f64], position: usize, columns: usize) -> Vec<f64> {
    let half = columns / 2;
    let angle = |i: usize| position as f64 * 10000f64.powf(-2.0 * (i % half) as f64 / columns as f64);
    let other = |i: usize| if i < half { -x[i + half] } else { x[i - half] };
    let one = |i: usize| if i < columns { x[i] * angle(i).cos() + other(i) * angle(i).sin() } else { x[i] };
    (0..x.len()).map(one).collect()
}

/// What token `t` of one head takes from those up to it.
pub fn attend(q: &Matrix, k: &Matrix, v: &Matrix, t: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let root = (q[t].len() as f64).sqrt();
    let scores: Vec<f64> = (0..=t).map(|j| (dot(&q[t], &k[j]) / root).exp()).collect();
    let total: f64 = scores.iter().sum();
    (0..v[t].len()).map(|d| (0..=t).map(|j| scores[j] / total * v[j][d]).sum()).collect()
}

/// To 2e-5 of the largest value.
pub fn close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1f64, |m, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*got) - want).abs();
        assert!(off <= 2e-5 * scale, "{what}: value {i} is off by {off}");
    }
}
