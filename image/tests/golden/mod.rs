//! Cases of the reference's results: tensors of a run, and comparison within the folder's tolerance.
//!
//! `golden.json` lists every tensor with the reference's own error in float32. Whole numbers have to be
//! equal; for others `max |got - want| <= max(2e-5 max(1, max |want|), 10 error)`.

use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Values of a tensor.
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    whole: bool,
}

impl Tensor {
    /// As f32.
    pub fn narrow(&self) -> Vec<f32> {
        self.values.iter().map(|x| *x as f32).collect()
    }

    /// One of the first axis, as f32.
    pub fn row(&self, row: usize) -> Vec<f32> {
        let length = self.values.len() / self.shape[0];
        self.values[row * length..][..length].iter().map(|x| *x as f32).collect()
    }
}

/// As f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// A folder with `golden.json` and `golden.safetensors`.
pub struct Case {
    pub name: String,
    folder: PathBuf,
    golden: Value,
    bytes: Vec<u8>,
    seen: BTreeSet<String>,
    /// The largest difference, as a share of the tolerance, and where.
    pub worst: (f64, String),
}

/// All cases of a kind, by name.
pub fn cases(kind: &str) -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden-image").join(kind);
    let mut folders: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    folders.into_iter().map(Case::open).collect()
}

impl Case {
    fn open(folder: PathBuf) -> Self {
        let read = |file: &str| fs::read(folder.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        Self {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            golden: serde_json::from_slice(&read("golden.json")).unwrap(),
            bytes: read("golden.safetensors"),
            seen: BTreeSet::new(),
            worst: (0.0, String::new()),
            folder,
        }
    }

    /// A file of the folder.
    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap()
    }

    /// Runs by name.
    pub fn runs(&self) -> &Map<String, Value> {
        self.golden["runs"].as_object().unwrap()
    }

    /// Whether the run has this tensor.
    pub fn has(&self, run: &str, tensor: &str) -> bool {
        self.golden["tensors"].get(format!("{run}.{tensor}")).is_some()
    }

    /// A tensor of a run, which counts as seen from now on.
    pub fn tensor(&mut self, run: &str, tensor: &str) -> Tensor {
        let name = format!("{run}.{tensor}");
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = tensors.tensor(&name).unwrap_or_else(|e| panic!("{} {name}: {e}", self.name));
        let data = view.data();
        let values: Vec<f64> = match view.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Dtype::I64 => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
            Dtype::BOOL => data.iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{} {name}: {other:?}", self.name),
        };
        let (shape, whole) = (view.shape().to_vec(), view.dtype() == Dtype::I64);
        self.seen.insert(name);
        Tensor { shape, values, whole }
    }

    /// Tensors of `golden.json` that nothing has asked for.
    pub fn unseen(&self) -> Vec<String> {
        let all = self.golden["tensors"].as_object().unwrap().keys();
        all.filter(|name| !self.seen.contains(*name)).cloned().collect()
    }

    /// Compares with a tensor of a run.
    pub fn compare(&mut self, run: &str, tensor: &str, got: &[f64]) {
        let want = self.tensor(run, tensor);
        let name = format!("{} {run}.{tensor}", self.name);
        assert_eq!(got.len(), want.values.len(), "{name}: number of values");
        if want.whole {
            assert_eq!(got, want.values, "{name}");
            return;
        }
        let error = self.golden["tensors"][format!("{run}.{tensor}")][2].as_f64().unwrap();
        let largest = want.values.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let tolerance = (2e-5 * largest).max(10.0 * error);
        for (i, (got, want)) in got.iter().zip(&want.values).enumerate() {
            let difference = (got - want).abs();
            assert!(difference <= tolerance, "{name}[{i}]: {got}, not {want}; tolerance {tolerance:e}");
            if difference / tolerance > self.worst.0 {
                self.worst = (difference / tolerance, name.clone());
            }
        }
    }
}
