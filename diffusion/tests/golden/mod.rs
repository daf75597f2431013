//! Reads goldens: tensors of a case, their tolerance.
//!
//! The files hold pictures as `[items, channels, lines, columns]`; rows here are pixels.

#![allow(dead_code, reason = "each test uses a part of it")]

use engraft_diffusion::graph::Grid;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where cases of a kind lie.
pub fn folder(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image").join(kind)
}

/// Tensors of a case.
pub struct Golden {
    pub name: String,
    said: Value,
    bytes: Vec<u8>,
}

impl Golden {
    /// A single model.
    pub fn component(name: &str) -> Self {
        let path = folder("components").join(name);
        let said = std::fs::read_to_string(path.join("golden.json")).unwrap();
        let bytes = std::fs::read(path.join("golden.safetensors")).unwrap();
        Self { name: name.to_string(), said: serde_json::from_str(&said).unwrap(), bytes }
    }

    /// A run of a pipeline.
    pub fn run(path: &Path, case: &str, run: &str, said: &Value) -> Self {
        let bytes = std::fs::read(path.join(format!("golden.{run}.safetensors"))).unwrap();
        Self { name: format!("{case} {run}"), said: said.clone(), bytes }
    }

    pub fn find(&self, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
        let all = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = all.tensor(name).ok()?;
        let values = match tensor.dtype() {
            Dtype::F32 => tensor
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()).into())
                .collect(),
            Dtype::I64 => tensor
                .data()
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            other => panic!("{name}: {other:?}"),
        };
        Some((tensor.shape().to_vec(), values))
    }

    pub fn get(&self, name: &str) -> (Vec<usize>, Vec<f64>) {
        self.find(name).unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }

    /// Rows of pixels, how many pictures, and their size.
    pub fn picture(&self, name: &str) -> (Vec<f32>, usize, Grid) {
        let (shape, values) = self.get(name);
        let [items, channels, height, width] = shape[..] else { panic!("{name}: {shape:?}") };
        (rows(&values, items, channels, height * width), items, Grid { height, width })
    }

    /// The reference's own error in f32.
    pub fn f32_error(&self, name: &str) -> f64 {
        let old = self.said["f32_error"][name.trim_start_matches("out.")].as_f64();
        old.or(self.said["tensors"][name][2].as_f64()).unwrap_or(0.0)
    }

    /// A picture as rows.
    pub fn wanted(&self, name: &str) -> Vec<f64> {
        let (shape, values) = self.get(name);
        let [items, channels, height, width] = shape[..] else { panic!("{name}: {shape:?}") };
        rows(&values, items, channels, height * width).into_iter().map(f64::from).collect()
    }

    /// Latents after the last step, as rows.
    pub fn last_latents(&self) -> Vec<f64> {
        let (shape, values) = self.get("latents");
        let last = &values[(shape[0] - 1) * values.len() / shape[0]..];
        // FLUX: rows already.
        let [_, items, channels, height, width] = shape[..] else { return last.to_vec() };
        rows(last, items, channels, height * width).into_iter().map(f64::from).collect()
    }

    /// A tensor of bytes.
    pub fn bytes_of(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).unwrap().data().to_vec()
    }

    /// The largest difference as a part of the tolerance.
    pub fn judge(&self, name: &str, got: &[f32], want: &[f64], relative: f64) -> f64 {
        assert_eq!(got.len(), want.len(), "{} {name}", self.name);
        let largest = want.iter().fold(1.0f64, |max, x| max.max(x.abs()));
        let allowed = (relative * largest).max(10.0 * self.f32_error(name));
        let worst = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
        assert!(got.iter().all(|x| x.is_finite()), "{} {name}: not finite", self.name);
        let part = worst / allowed;
        println!("{} {name}: {part:.3} of the tolerance ({worst:.2e})", self.name);
        assert!(part <= 1.0, "{} {name}: {worst:e} off, {allowed:e} allowed", self.name);
        part
    }
}

/// `[items, channels, pixels]` as `[items * pixels, channels]`.
pub fn rows(values: &[f64], items: usize, channels: usize, pixels: usize) -> Vec<f32> {
    let at = |item: usize, pixel: usize, channel: usize| {
        values[(item * channels + channel) * pixels + pixel] as f32
    };
    let pixels = (0..items).flat_map(|item| (0..pixels).map(move |pixel| (item, pixel)));
    pixels.flat_map(|(item, pixel)| (0..channels).map(move |channel| at(item, pixel, channel))).collect()
}
