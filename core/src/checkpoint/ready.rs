//! The own pre-sharded format: operands as the loader would have made them, one file per rank.
//!
//! ```text
//! engraft.json                 what this is: ranks, the original tensors' headers, each operand's format
//! rank-00-of-02.safetensors    operands by role ("layer 3 qkv.weight"): plain ones typed, packed as bytes;
//!                              by rows ("layer 3 qkv.weight 0..768") where these are of unlike formats
//! config.json, tokenizer files as in the original
//! ```
//!
//! The original headers let every policy describe the model as if it saw the original; the loader then takes
//! operands from here ([`super::Source::ready`]) and transforms nothing. A model sharded for another degree
//! is merged and sharded anew by the loader. `weights::convert` writes this format.
//!
//! Every file has a digest of its operands, which the manifest lists: a file of another rank, or of another
//! conversion, is known by it without being read.
//!
//! Invariant: an operand's rows, columns and format give exactly the bytes that its file holds.

use super::{Access, Source, TensorInfo, json, safetensors, storage::Storage, tensors::Tensors};
use crate::mem::{Block, Float, Stored, WeightFormat};
use crate::{Error, Result};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

pub use super::source::ReadyOperand;

/// The file that makes a folder one of this format.
pub const MANIFEST: &str = "engraft.json";
/// Largest manifest.
pub const MAX_MANIFEST: usize = 64 << 20;
/// Version that is written: operands are sharded by the leaves of the sums that ranks share.
const VERSION: u64 = 2;
/// Version that sharded outputs near-evenly, which is merged and sharded anew.
const NEAR_EVEN: u64 = 1;
/// Longest dimension.
const MAX_DIM: u64 = 1 << 40;

/// Shape and format of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Format.
    pub format: WeightFormat,
}

/// What `engraft.json` says.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Ranks that the model is sharded for.
    pub world: usize,
    /// Headers of the original tensors, sorted by name.
    pub tensors: Vec<TensorInfo>,
    /// Per rank, operands by role.
    pub operands: Vec<BTreeMap<String, Shape>>,
    /// Whether names and row orders are llama.cpp's.
    pub gguf: bool,
    /// Whether operands are sharded by leaves; else outputs near-evenly, as the first version did.
    pub by_leaves: bool,
    /// What each rank's file is known by; none of files that have none.
    pub digests: Vec<Digest>,
}

/// The name of a file's own digest among its operands.
pub const DIGEST: &str = "digest";

/// A digest of a rank's operands: files that were swapped, or are of another conversion, are known by it. It
/// is written when they are, and compared without reading them again: what changes later is not seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Adds an operand's bytes, and where they end.
    pub fn add(&mut self, bytes: &[u8]) {
        // FNV's prime, by words.
        let mix =
            |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        let words = bytes.chunks(8).map(|word| {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            u64::from_le_bytes(whole)
        });
        self.0 = mix(words.fold(self.0, mix), bytes.len() as u64);
    }

    /// As it is stored.
    pub fn bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// File of a rank.
pub fn rank_file(rank: usize, world: usize) -> String {
    format!("rank-{rank:02}-of-{world:02}.safetensors")
}

impl Manifest {
    /// The JSON text.
    pub fn to_json(&self) -> Value {
        // Of groups only the values matter here: operands have formats of their own.
        let stored = |stored: Stored| match stored {
            Stored::Group(..) => Stored::F32.name(),
            other => other.name(),
        };
        let tensors: Vec<Value> =
            self.tensors.iter().map(|t| json!([t.name, t.shape, stored(t.stored)])).collect();
        let one = |shapes: &BTreeMap<String, Shape>| -> Value {
            let pairs =
                shapes.iter().map(|(role, s)| (role.clone(), json!([s.rows, s.cols, s.format.to_string()])));
            Value::Object(pairs.collect())
        };
        let ranks: Vec<Value> = self.operands.iter().map(one).collect();
        let version = if self.by_leaves { VERSION } else { NEAR_EVEN };
        let digests: Vec<String> = self.digests.iter().map(Digest::to_string).collect();
        json!({
            "engraft": version, "world": self.world, "gguf": self.gguf, "tensors": tensors, "ranks": ranks,
            "digests": digests,
        })
    }

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// `Error::Format` naming the file and what is wrong in it.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self> {
        let bad = |what: String| Error::format(file, what);
        let value = json::object(file, bytes, MAX_MANIFEST)?;
        let by_leaves = match value.get("engraft").and_then(Value::as_u64) {
            Some(VERSION) => true,
            Some(NEAR_EVEN) => false,
            _ => {
                let what =
                    format!("`engraft` is {}; this build reads {NEAR_EVEN} and {VERSION}", value["engraft"]);
                return Err(bad(what));
            }
        };
        let world = value["world"].as_u64().filter(|n| [1, 2, 4, 8].contains(n));
        let world =
            world.ok_or_else(|| bad(format!("`world` is {}; allowed: 1, 2, 4, 8", value["world"])))? as usize;
        let gguf = value["gguf"].as_bool().unwrap_or(false);
        let list = |key: &str| value[key].as_array().ok_or_else(|| bad(format!("`{key}` must be a list")));
        let mut tensors = Vec::new();
        for entry in list("tensors")? {
            tensors.push(tensor(entry).ok_or_else(|| bad(format!("`tensors` has {}", short(entry))))?);
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = tensors.windows(2).find(|p| p[0].name == p[1].name) {
            return Err(bad(format!("`tensors` lists `{}` twice", pair[0].name)));
        }
        let ranks = list("ranks")?;
        if ranks.len() != world {
            return Err(bad(format!("`ranks` has {} entries for a world of {world}", ranks.len())));
        }
        let mut operands = Vec::with_capacity(world);
        for rank in ranks {
            let map = rank.as_object().ok_or_else(|| bad("`ranks` must list objects".into()))?;
            let one = |(role, v): (&String, &Value)| match shape(v) {
                Some(shape) => Ok((role.clone(), shape)),
                None => Err(bad(format!("operand `{role}` is {}", short(v)))),
            };
            operands.push(map.iter().map(one).collect::<Result<BTreeMap<_, _>>>()?);
        }
        if let Some(other) = operands.iter().find(|o| !o.keys().eq(operands[0].keys())) {
            return Err(bad(format!(
                "ranks have different operands ({} and {})",
                operands[0].len(),
                other.len()
            )));
        }
        // Files of the first version have none.
        let digests = match value.get("digests").and_then(Value::as_array) {
            Some(all) => all.iter().map(|v| v.as_str().and_then(Digest::parse)).collect(),
            None => Some(Vec::new()),
        };
        let digests = digests.filter(|all: &Vec<Digest>| all.is_empty() || all.len() == world);
        let digests = digests.ok_or_else(|| bad(format!("`digests` is {}", short(&value["digests"]))))?;
        Ok(Self { world, tensors, operands, digests, gguf, by_leaves })
    }
}

/// The front of a value, for messages.
fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// `[name, shape, type]`.
fn tensor(entry: &Value) -> Option<TensorInfo> {
    let [name, shape, stored] = entry.as_array()?.as_slice() else { return None };
    let dims = shape.as_array()?.iter().map(|d| d.as_u64().filter(|d| *d <= MAX_DIM).map(|d| d as usize));
    let shape = dims.collect::<Option<Vec<usize>>>().filter(|s| s.len() <= safetensors::MAX_RANK)?;
    let stored = stored_named(stored.as_str()?)?;
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    stored.bytes(elements)?;
    Some(TensorInfo { name: name.as_str()?.to_owned(), shape, stored })
}

fn stored_named(name: &str) -> Option<Stored> {
    use Stored::{Bf16, Bool, F8E4m3, F8E5m2, F16, F32, F64, I8, I16, I32, I64, U8};
    let plain = [F64, F32, F16, Bf16, I64, I32, I16, I8, U8, Bool, F8E4m3, F8E5m2];
    let blocks = Block::ALL.into_iter().map(Stored::Block);
    plain.into_iter().chain(blocks).find(|s| s.name() == name)
}

/// `[rows, cols, format]`.
fn shape(entry: &Value) -> Option<Shape> {
    let [rows, cols, format] = entry.as_array()?.as_slice() else { return None };
    let size = |v: &Value| v.as_u64().filter(|n| *n <= MAX_DIM).map(|n| n as usize);
    let (rows, cols) = (size(rows)?, size(cols)?);
    // Eight bytes per value are more than any format has.
    rows.checked_mul(cols)?.checked_mul(8)?;
    let format = format.as_str()?;
    let large = Block::ALL.into_iter().find(|b| b.name() == format).map(WeightFormat::Block);
    let format = large.or_else(|| format.parse().ok())?;
    if let Some(b) = format.block()
        && !cols.is_multiple_of(b.values())
    {
        return None;
    }
    Some(Shape { rows, cols, format })
}

/// How an operand lies in its safetensors file: plain formats keep their type, packed ones are bytes.
pub fn stored_as(s: Shape) -> (Stored, [usize; 2]) {
    match s.format {
        WeightFormat::Plain(Float::F32) => (Stored::F32, [s.rows, s.cols]),
        WeightFormat::Plain(Float::F16) => (Stored::F16, [s.rows, s.cols]),
        WeightFormat::Plain(Float::Bf16) => (Stored::Bf16, [s.rows, s.cols]),
        packed => (Stored::U8, [s.rows, packed.bytes(1, s.cols)]),
    }
}

/// A pre-sharded model.
pub(super) struct Ready {
    file: String,
    manifest: Manifest,
    ranks: Vec<Tensors>,
}

impl Ready {
    /// Opens a folder that has a manifest.
    pub(super) fn open(folder: &Path, access: Access) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let file = path.display().to_string();
        let storage = Storage::open(&path, Access::Read)?;
        let bytes = storage.range(0, storage.len().min(MAX_MANIFEST as u64 + 1))?;
        let manifest = Manifest::parse(&file, &bytes)?;
        let mut ranks = Vec::with_capacity(manifest.world);
        for (rank, operands) in manifest.operands.iter().enumerate() {
            let path = folder.join(rank_file(rank, manifest.world));
            let tensors = safetensors::single(Storage::open(&path, access)?)?;
            for (role, shape) in operands {
                let (stored, dims) = stored_as(*shape);
                match tensors.find(role) {
                    Some(t) if t.stored == stored && t.shape == dims => {}
                    Some(t) => {
                        let what = format!(
                            "is {:?} of {} in {}, but {file} says {dims:?} of {stored}",
                            t.shape,
                            t.stored,
                            tensors.file()
                        );
                        return Err(Error::tensor(role, what));
                    }
                    None => return Err(Error::tensor(role, format!("is not in {}", tensors.file()))),
                }
            }
            if let Some(digest) = manifest.digests.get(rank)
                && tensors
                    .find(DIGEST)
                    .is_none_or(|_| tensors.bytes(DIGEST).is_ok_and(|b| *b != digest.bytes()))
            {
                let what = format!("is not the file that {file} was written with; convert the model again");
                return Err(Error::format(tensors.file(), what));
            }
            ranks.push(tensors);
        }
        Ok(Self { file, manifest, ranks })
    }

    /// Whose conventions the original names follow.
    pub(super) fn is_gguf(&self) -> bool {
        self.manifest.gguf
    }
}

impl Source for Ready {
    fn file(&self) -> &str {
        &self.file
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.manifest.tensors
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let what = format!("is not kept in {}: a converted model holds operands only", self.file);
        Err(Error::tensor(name, what))
    }

    fn release(&self, _: &str) {}

    fn release_bytes(&self, bytes: &[u8]) {
        self.ranks.iter().for_each(|rank| rank.release_bytes(bytes));
    }

    fn total_bytes(&self) -> u64 {
        self.ranks.iter().map(Source::total_bytes).fold(0, u64::saturating_add)
    }

    fn ready(&self, role: &str) -> Result<Option<Vec<ReadyOperand<'_>>>> {
        let mut all = Vec::with_capacity(self.ranks.len());
        for (tensors, operands) in self.ranks.iter().zip(&self.manifest.operands) {
            let shape = operands.get(role);
            let Shape { rows, cols, format } = *shape.ok_or_else(|| {
                Error::tensor(role, format!("is not in {}; convert the model again", self.file))
            })?;
            all.push(ReadyOperand { rows, cols, format, bytes: tensors.bytes(role)? });
        }
        Ok(Some(all))
    }

    fn is_sharded_by_leaves(&self) -> bool {
        self.manifest.by_leaves
    }

    fn ready_format(&self, role: &str) -> Option<WeightFormat> {
        self.manifest.operands.first()?.get(role).map(|shape| shape.format)
    }

    fn release_ready(&self, role: &str) {
        for (tensors, operands) in self.ranks.iter().zip(&self.manifest.operands) {
            // With those that have some of its rows.
            let names = operands.range(role.to_string()..).map(|(name, _)| name);
            names.take_while(|name| name.starts_with(role)).for_each(|name| tensors.release(name));
        }
    }
}
