//! Tensors of a case, and the tolerance that they are compared within.
//!
//! `golden.json` lists every tensor with the reference's own error in float32. Whole numbers have to be
//! equal, bytes of pictures within 1; others within `max(2e-5 max(1, max |want|), 10 error)`.
//! The files hold pictures as `[items, channels, lines, columns]`; rows here are pixels.

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What was read or run, or why not.
pub type Result<T> = std::result::Result<T, String>;

/// Values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements.
    pub values: Vec<f64>,
    /// How far one may be off whatever the others are: of whole numbers and of bytes.
    steps: Option<f64>,
}

impl Tensor {
    /// As f32.
    pub fn narrow(&self) -> Vec<f32> {
        self.values.iter().map(|x| *x as f32).collect()
    }

    /// One of the first dimension.
    #[must_use]
    pub fn row(&self, row: usize) -> Self {
        let (shape, steps) = (self.shape.iter().skip(1).copied().collect(), self.steps);
        let length = self.values.len() / self.shape.first().copied().unwrap_or(1).max(1);
        let values = self.values.get(row * length..(row + 1) * length).unwrap_or_default().to_vec();
        Self { shape, values, steps }
    }

    /// The last of the first dimension.
    #[must_use]
    pub fn last(&self) -> Self {
        self.row(self.shape.first().copied().unwrap_or(1).saturating_sub(1))
    }

    /// Pictures `[items, channels, lines, columns]` as rows of pixels, how many there are, and their lines
    /// and columns; tensors of fewer dimensions lack the last ones, but for three: those are rows already,
    /// `[items, rows, columns]`, of one line.
    pub fn pictures(&self) -> (Vec<f32>, usize, (usize, usize)) {
        if let [items, rows, _] = self.shape[..] {
            return (self.narrow(), items, (1, rows));
        }
        let size = |dimension: usize| self.shape.get(dimension).copied().unwrap_or(1);
        let (items, height, width) = (size(0), size(2), size(3));
        (rows(&self.values, items, size(1), height * width), items, (height, width))
    }
}

/// `[items, channels, pixels]` as `[items * pixels, channels]`.
pub fn rows(values: &[f64], items: usize, channels: usize, pixels: usize) -> Vec<f32> {
    let at = |item: usize, pixel: usize, channel: usize| {
        values.get((item * channels + channel) * pixels + pixel).map_or(f32::NAN, |x| *x as f32)
    };
    let pixels = (0..items).flat_map(|item| (0..pixels).map(move |pixel| (item, pixel)));
    pixels.flat_map(|(item, pixel)| (0..channels).map(move |channel| at(item, pixel, channel))).collect()
}

/// The largest difference as a share of the tolerance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Infinite for values that are missing or not finite.
    pub worst: f64,
    /// The tensor that it is in.
    pub tensor: String,
}

impl Verdict {
    /// Whether all tensors are within their tolerance; at least one has to have been compared.
    pub fn passes(&self) -> bool {
        self.worst <= 1.0 && !self.tensor.is_empty()
    }

    fn hold(&mut self, tensor: &str, worst: f64) {
        if worst > self.worst || self.tensor.is_empty() {
            (self.worst, self.tensor) = (worst, tensor.to_string());
        }
    }
}

/// A file's JSON.
///
/// # Errors
/// Where it cannot be read, naming the file.
pub fn json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// Tensors of a case or of a run, and how far what was computed is from them.
#[derive(Debug)]
pub struct Golden {
    said: Value,
    tensors: BTreeMap<String, Tensor>,
    seen: RefCell<BTreeSet<String>>,
    relative: f64,
    /// What has been compared so far.
    pub verdict: Verdict,
}

impl Golden {
    /// The tensors of a file of which `said` lists the reference's own errors; `relative` is the tolerance
    /// next to the largest value.
    ///
    /// # Errors
    /// Where it cannot be read, naming the file.
    pub fn open(file: &Path, said: Value, relative: f64) -> Result<Self> {
        let no = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let bytes = std::fs::read(file).map_err(|e| no(&e))?;
        let read = SafeTensors::deserialize(&bytes).map_err(|e| no(&e))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in read.iter() {
            let data = view.data();
            let (values, steps): (Vec<f64>, _) = match view.dtype() {
                Dtype::F32 => {
                    (data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect(), None)
                }
                Dtype::I64 => {
                    (data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(), Some(0.0))
                }
                Dtype::BOOL => (data.iter().map(|b| f64::from(*b)).collect(), Some(0.0)),
                Dtype::U8 => (data.iter().map(|b| f64::from(*b)).collect(), Some(1.0)),
                other => return Err(no(&format!("`{name}` has elements of type {other:?}"))),
            };
            tensors.insert(name.to_string(), Tensor { shape: view.shape().to_vec(), values, steps });
        }
        Ok(Self { said, tensors, seen: RefCell::default(), relative, verdict: Verdict::default() })
    }

    /// What the case says of itself.
    pub fn said(&self) -> &Value {
        &self.said
    }

    /// A tensor, which counts as seen from now on.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let tensor = self.tensors.get(name)?;
        self.seen.borrow_mut().insert(name.to_string());
        Some(tensor)
    }

    /// The same where it has to be there.
    ///
    /// # Errors
    /// Where it is missing, naming it.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.find(name).ok_or_else(|| format!("the golden has no `{name}`"))
    }

    /// The first that is there.
    ///
    /// # Errors
    /// Where none is.
    pub fn first_of(&self, names: &[&str]) -> Result<&Tensor> {
        let found = names.iter().find_map(|name| self.find(name));
        found.ok_or_else(|| format!("the golden has none of {}", names.join(", ")))
    }

    /// Tensors whose names begin so and that nothing has asked for.
    pub fn unseen(&self, beginning: &str) -> Vec<String> {
        let seen = self.seen.borrow();
        let left = self.tensors.keys().filter(|name| name.starts_with(beginning) && !seen.contains(*name));
        left.cloned().collect()
    }

    /// The reference's own error in f32.
    fn error(&self, name: &str) -> f64 {
        let old = self.said["f32_error"][name.trim_start_matches("out.")].as_f64();
        old.or(self.said["tensors"][name][2].as_f64()).unwrap_or(0.0)
    }

    /// Compares with a tensor as it lies in the file.
    ///
    /// # Errors
    /// Where it is missing.
    pub fn compare(&mut self, name: &str, got: &[f64]) -> Result<()> {
        let want = self.get(name)?;
        let share = self.share(name, want, got, &want.values);
        self.verdict.hold(name, share);
        Ok(())
    }

    /// Compares rows of pixels with pictures.
    ///
    /// # Errors
    /// Where the tensor is missing.
    pub fn compare_rows(&mut self, name: &str, got: &[f32]) -> Result<()> {
        let want = self.get(name)?.clone();
        self.compare_with(name, want, got)
    }

    /// The same with the last step of a tensor whose first dimension are steps.
    ///
    /// # Errors
    /// Where the tensor is missing.
    pub fn compare_last_rows(&mut self, name: &str, got: &[f32]) -> Result<()> {
        let want = self.get(name)?.last();
        self.compare_with(name, want, got)
    }

    fn compare_with(&mut self, name: &str, want: Tensor, got: &[f32]) -> Result<()> {
        let [wide, wanted] =
            [got, &want.pictures().0].map(|all| all.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        let share = self.share(name, &want, &wide, &wanted);
        self.verdict.hold(name, share);
        Ok(())
    }

    /// The largest difference as a share of what is allowed.
    fn share(&self, name: &str, tensor: &Tensor, got: &[f64], want: &[f64]) -> f64 {
        if got.len() != want.len() || want.is_empty() || got.iter().any(|x| !x.is_finite()) {
            return f64::INFINITY;
        }
        let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        match tensor.steps {
            Some(steps) if worst <= steps => 0.0,
            Some(_) => f64::INFINITY,
            None => {
                let largest = want.iter().fold(1.0f64, |most, x| most.max(x.abs()));
                worst / (self.relative * largest).max(10.0 * self.error(name))
            }
        }
    }
}
