//! A golden directory: prompts in, tensors expected.

use engraft_core::{Error, Result};
use image_goldens::Kind;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An expected tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements; integers fit f32's 24 bits in every golden, and reading refuses those that do not.
    pub values: Vec<f32>,
}

impl Tensor {
    /// Elements per index of the first dimension.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Rows `range` of the first dimension.
    pub fn rows(&self, range: std::ops::Range<usize>) -> &[f32] {
        &self.values[range.start * self.cols()..range.end * self.cols()]
    }
}

/// One prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types; empty where the model has none.
    pub token_type_ids: Vec<u32>,
}

/// A golden directory, weights unread.
#[derive(Debug, Clone)]
pub struct Case {
    /// The directory's name.
    pub name: String,
    /// The directory.
    pub dir: PathBuf,
    /// `causal`, `encoder`, ...
    pub kind: String,
    /// Class of the reference implementation.
    pub architecture: String,
    /// The prompts, in the order of the expected rows.
    pub prompts: Vec<Prompt>,
    /// The same prompts as they come out of the padded tensors; empty where there are none.
    pub unpadded: Vec<Prompt>,
    /// Expected tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Samples with images, which are not run.
    pub with_images: usize,
}

impl Case {
    /// Reads `golden.json`, `config.json` and `golden.safetensors`.
    ///
    /// # Errors
    /// `Io` and `Format` naming the file.
    pub fn read(dir: &Path) -> Result<Self> {
        let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let config = json(&dir.join("config.json"))?;
        let golden = json(&dir.join("golden.json"))?;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_string();
        let architecture = match config.pointer("/architectures/0") {
            Some(first) => text(Some(first)),
            None => text(config.get("_class_name").or(golden.get("reference_class"))),
        };
        let mut tensors = tensors(&dir.join("golden.safetensors"))?;
        let kind = match text(golden.get("kind")).as_str() {
            // Of pipelines of pictures.
            "component" if architecture.starts_with("CLIPTextModel") => "clip_text".to_string(),
            "component" if architecture.starts_with("T5Encoder") => "t5_text".to_string(),
            other => other.to_string(),
        };
        let mut with_images = 0;
        if kind == "vlm" {
            (tensors, with_images) = super::vlm::of_texts(&tensors)?;
        }
        let (prompts, unpadded) = match kind.as_str() {
            "vlm" if tensors.is_empty() => Default::default(),
            "causal" | "quantised" | "encoder" | "vlm" => (prompts(dir, &tensors)?, unpadded(&tensors)),
            _ => Default::default(),
        };
        Ok(Self { name, dir: dir.to_path_buf(), kind, architecture, prompts, unpadded, tensors, with_images })
    }

    /// Whether the weights are a PyTorch pickle.
    pub fn is_pickled(&self) -> bool {
        let there = |file: &str| self.dir.join(file).exists();
        there("pytorch_model.bin") || there("pytorch_model.bin.index.json")
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0)
    }

    /// Rows of each prompt in tensors `[sum, ..]`.
    pub fn rows(&self) -> Vec<std::ops::Range<usize>> {
        let mut from = 0;
        let rows = self.prompts.iter().map(|p| {
            from += p.ids.len();
            from - p.ids.len()..from
        });
        rows.collect()
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::io(path, e))
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_slice(&read(path)?).map_err(|e| Error::format(path.display().to_string(), e.to_string()))
}

fn tensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let (bytes, file) = (read(path)?, path.display().to_string());
    let all = SafeTensors::deserialize(&bytes).map_err(|e| Error::format(&file, e.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in all.iter() {
        let data = view.data();
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => {
                data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Dtype::I64 => data
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32)
                .collect(),
            Dtype::I32 => {
                data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32).collect()
            }
            other => {
                let what = format!("element type {other:?}; allowed: F32, I32, I64");
                return Err(Error::tensor(name, what));
            }
        };
        tensors.insert(name.to_string(), Tensor { shape: view.shape().to_vec(), values });
    }
    if let Some((name, _)) =
        tensors.iter().find(|(n, t)| n.ends_with("input_ids") && t.values.iter().any(|v| *v >= 16_777_216.0))
    {
        return Err(Error::tensor(name, "an id beyond 2^24"));
    }
    Ok(tensors)
}

fn words(tensors: &BTreeMap<String, Tensor>, name: &str) -> Option<Vec<u32>> {
    tensors.get(name).map(|t| t.values.iter().map(|v| *v as u32).collect())
}

fn prompts(dir: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<Vec<Prompt>> {
    let missing = |name: &str| {
        Error::format(dir.join("golden.safetensors").display().to_string(), format!("no `{name}`"))
    };
    let lengths = words(tensors, "lengths").ok_or_else(|| missing("lengths"))?;
    let ids = words(tensors, "input_ids").ok_or_else(|| missing("input_ids"))?;
    let token_type_ids = words(tensors, "token_type_ids").unwrap_or_default();
    if lengths.iter().sum::<u32>() as usize != ids.len() {
        return Err(Error::tensor("lengths", format!("do not add up to {} ids", ids.len())));
    }
    let mut from = 0;
    let prompts = lengths.iter().map(|len| {
        let range = from..from + *len as usize;
        from = range.end;
        let token_type_ids = token_type_ids.get(range.clone()).map(<[u32]>::to_vec).unwrap_or_default();
        Prompt { ids: ids[range].to_vec(), token_type_ids }
    });
    Ok(prompts.collect())
}

/// The padded prompts with their padding stripped by the attention mask.
fn unpadded(tensors: &BTreeMap<String, Tensor>) -> Vec<Prompt> {
    let (Some(ids), Some(mask)) = (tensors.get("padded.input_ids"), tensors.get("padded.attention_mask"))
    else {
        return Vec::new();
    };
    let token_type_ids = tensors.get("padded.token_type_ids");
    let strip = |t: &Tensor, row: usize| -> Vec<u32> {
        let pairs = t.rows(row..row + 1).iter().zip(mask.rows(row..row + 1));
        pairs.filter(|(_, keep)| **keep != 0.0).map(|(v, _)| *v as u32).collect()
    };
    let rows = 0..ids.shape.first().copied().unwrap_or(0);
    rows.map(|r| Prompt {
        ids: strip(ids, r),
        token_type_ids: token_type_ids.map(|k| strip(k, r)).unwrap_or_default(),
    })
    .collect()
}

/// Every golden directory at or below `root`, sorted by path.
///
/// # Errors
/// `Io` when a directory cannot be read.
pub fn find(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        // A pipeline has a file for each of its runs.
        if dir.join("golden.safetensors").exists() || image_goldens::kind(&dir) == Some(Kind::Pipeline) {
            found.push(dir.clone());
        }
        for entry in std::fs::read_dir(&dir).map_err(|e| Error::io(&dir, e))? {
            let entry = entry.map_err(|e| Error::io(&dir, e))?;
            // Links are not followed: a loop would never end.
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
