//! GGUF, llama.cpp's file format: metadata pairs, tensor descriptions, then aligned tensor data.
//!
//! Here: versions 2 and 3, little-endian, one file per model, plain elements, the five block formats of 32
//! values and the five K formats. `format.rs` has the format's numbers and our bounds, `reader.rs` walks the
//! bytes, `metadata.rs` holds the pairs, `tokenizer.rs` the vocabulary among them, `config.rs` translates the
//! rest to the words of `config.json`, `families.rs`, `encoders.rs`, `two_kinds.rs` and `gemma4.rs` what
//! single ones have, `describe.rs` back, by the tables in `words.rs`; `stated.rs` makes tensors of numbers
//! that metadata has; `write.rs` makes files. Not here: what tensor names mean (`policy`).
//!
//! Memory stays below twice the file plus a constant: lists keep the file's own packed layout, and a count is
//! compared with the bytes that are left before anything is allocated by it.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod config;
mod describe;
mod encoders;
mod families;
mod format;
mod gemma4;
mod metadata;
mod reader;
mod stated;
mod tokenizer;
mod translation;
mod two_kinds;
mod words;
pub mod write;

pub use config::config;
pub use describe::describe;
pub(crate) use describe::written;
pub use format::{MAGIC, MAX_ALIGNMENT, MAX_ARRAY, MAX_KEY, MAX_PAIRS, MAX_RANK, MAX_STRING, MAX_TENSORS};
pub(crate) use format::{file_type, holds};
pub use metadata::{Array, Kind, Metadata, Numbers, Strings, Value};
pub(crate) use stated::is_stated;
pub use tokenizer::Tokenizer;

use super::{
    Layout, ModelFiles, TensorInfo, TokenizerFiles, json,
    packed::mxfp4,
    storage::Storage,
    tensors::{Placed, Tensors, View},
};
use crate::mem::{Block, Stored};
use crate::{Error, Result};
use format::{MXFP4, stored};
use reader::{Reader, Stop};
use std::path::PathBuf;

/// What a file says about itself, tensors unread.
#[derive(Debug, Clone)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// All pairs.
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<Tensor>,
}

/// A tensor and the bytes `start..end` of the file that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name, shape (outermost first), type.
    pub info: TensorInfo,
    /// First byte in the file.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Whether the file has blocks of MXFP4 there; they are read as the blocks of Q5_0 with the same values.
    pub mxfp4: bool,
}

/// Reads the header of a file in memory.
///
/// # Errors
/// `Error::Format` or `Error::Tensor`, naming what breaks the format or is not supported.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Header> {
    match parse_prefix(file, bytes, bytes.len() as u64)? {
        Some(header) => Ok(header),
        None => Err(Error::internal("a GGUF reader asked for bytes behind the end of its file")),
    }
}

/// Opens a model.
pub(super) fn model(path: PathBuf, storage: Storage) -> Result<ModelFiles> {
    let Header { mut metadata, tensors, .. } = read_header(&storage)?;
    let file = storage.name().to_owned();
    let mut config = config(&metadata, tensors.iter().map(|t| &t.info)).map_err(|e| in_file(&file, e))?;
    let tokenizer = Tokenizer::take(&mut metadata).map_err(|e| in_file(&file, e))?;
    let generation = tokenizer.generation();
    let placed = |t: Tensor| {
        let view = t.mxfp4.then_some(View::Mxfp4);
        Placed { info: t.info, shard: 0, start: t.start, end: t.end, view }
    };
    let (mut shards, mut all) = (vec![storage], tensors.into_iter().map(placed).collect::<Vec<_>>());
    if let Some((numbers, placed)) =
        stated::tensors(&metadata, all.len(), shards.len()).map_err(|e| in_file(&file, e))?
    {
        shards.push(numbers);
        all.extend(placed);
    }
    let source = Box::new(Tensors::new(file.clone(), shards, all)?);
    families::long_rope(&mut config, &metadata, source.as_ref()).map_err(|e| in_file(&file, e))?;
    gemma4::rotations(&mut config, &metadata, source.as_ref()).map_err(|e| in_file(&file, e))?;
    let tokenizer = TokenizerFiles::Gguf(Box::new(tokenizer));
    let generation = if generation.is_null() { json::empty() } else { generation };
    Ok(ModelFiles { path, layout: Layout::Gguf, config, generation, tokenizer, source })
}

/// A file with the metadata of this one and no tensors.
pub(super) fn without_tensors(storage: &Storage) -> Result<Vec<u8>> {
    let metadata = own_metadata(storage)?;
    Ok(metadata.iter().fold(write::Writer::new(), |w, (key, value)| w.pair(key, value)).finish())
}

/// All pairs of a file but those that say that it is one part of several.
pub(super) fn own_metadata(storage: &Storage) -> Result<Metadata> {
    let mut metadata = read_header(storage)?.metadata;
    metadata.retain(|key| !key.starts_with("split."));
    Ok(metadata)
}

/// Puts the file in front of a metadata error.
fn in_file(file: &str, error: Error) -> Error {
    match error {
        Error::Format { what, .. } => Error::format(file, what),
        other => other,
    }
}

/// Reads as much of the front as the header needs: the whole of a mapped file is at hand, of others a prefix
/// that doubles until it suffices.
fn read_header(storage: &Storage) -> Result<Header> {
    let mut want = 1u64 << 20;
    loop {
        let prefix = storage.range(0, storage.len().min(want))?;
        if let Some(header) = parse_prefix(storage.name(), &prefix, storage.len())? {
            return Ok(header);
        }
        want = want.saturating_mul(2);
    }
}

/// `None` if the header goes on behind `bytes`, the front of a file of `len` bytes.
fn parse_prefix(file: &str, bytes: &[u8], len: u64) -> Result<Option<Header>> {
    match header(&mut Reader::new(bytes, len)) {
        Ok(header) => Ok(Some(header)),
        Err(Stop::Short) => Ok(None),
        Err(Stop::Bad(what)) => Err(Error::format(file, what)),
        Err(Stop::Tensor(name, what)) => Err(Error::tensor(name, format!("{what} (in {file})"))),
    }
}

fn header(r: &mut Reader) -> Result<Header, Stop> {
    let version = version(r)?;
    let tensor_count = r.count("tensor count", MAX_TENSORS, 24)?;
    let pair_count = r.count("metadata count", MAX_PAIRS, 13)?;
    let mut metadata = Metadata::default();
    for i in 0..pair_count {
        let key = r.string(MAX_KEY, || format!("key of metadata pair {i}"))?;
        let value = r.value(&key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Stop::Bad(format!("metadata key `{key}` appears twice")));
        }
    }
    split(&metadata)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::with_capacity(tensor_count);
    for i in 0..tensor_count {
        tensors.push(tensor(r, i)?);
    }
    let data = r.at().div_ceil(alignment) * alignment;
    for t in &mut tensors {
        place(t, data, alignment, r.file_len())?;
    }
    distinct(&tensors)?;
    Ok(Header { version, metadata, tensors })
}

fn version(r: &mut Reader) -> Result<u32, Stop> {
    let magic = r.take(4, || "the magic \"GGUF\"".into())?;
    if magic != MAGIC {
        return Err(Stop::Bad(format!("begins with {magic:?}, not with \"GGUF\"")));
    }
    match r.u32(|| "version".into())? {
        version @ (2 | 3) => Ok(version),
        1 => Err(Stop::Bad("is GGUF version 1, which is not supported; supported: 2 and 3".into())),
        v if v & 0xffff == 0 && v != 0 => {
            Err(Stop::Bad("is a big-endian GGUF file; only little-endian files are supported".into()))
        }
        v => Err(Stop::Bad(format!("is GGUF version {v}; supported: 2 and 3"))),
    }
}

/// Refuses one part of a model that was split into several files.
fn split(metadata: &Metadata) -> Result<(), Stop> {
    match metadata.u64("split.count") {
        Ok(Some(n)) if n > 1 => Err(Stop::Bad(format!(
            "is one of {n} parts of a split model, which is not supported; merge them (llama-gguf-split --merge)"
        ))),
        _ => Ok(()),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Stop> {
    let key = "general.alignment";
    let found = match metadata.get(key) {
        None => return Ok(32),
        Some(value) => value,
    };
    match found.as_u64() {
        Some(n) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n),
        _ => Err(Stop::Bad(format!("`{key}` is {found}; a power of two up to {MAX_ALIGNMENT} is allowed"))),
    }
}

/// One description; `start` and `end` are relative to the data until `place`.
fn tensor(r: &mut Reader, i: usize) -> Result<Tensor, Stop> {
    let name = r.string(MAX_KEY, || format!("name of tensor {i}"))?;
    let rank = r.u32(|| format!("rank of tensor `{name}`"))?;
    if rank > MAX_RANK {
        return Err(Stop::Tensor(name, format!("has {rank} dimensions; at most {MAX_RANK} are allowed")));
    }
    let mut dims = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        dims.push(r.u64(|| format!("shape of tensor `{name}`"))?);
    }
    let kind = r.u32(|| format!("type of tensor `{name}`"))?;
    let offset = r.u64(|| format!("offset of tensor `{name}`"))?;
    let stored = match stored(kind) {
        Ok(stored) => stored,
        Err(what) => return Err(Stop::Tensor(name, what)),
    };
    let overflow =
        |name: &str| Stop::Tensor(name.into(), format!("dimensions {dims:?} of {stored} overflow"));
    if let (Stored::Block(block), inner) = (stored, dims.first().copied().unwrap_or(1))
        && !inner.is_multiple_of(block.values() as u64)
    {
        let what =
            format!("rows of {inner} values cannot be {stored}, which has blocks of {}", block.values());
        return Err(Stop::Tensor(name, what));
    }
    let mut shape = Vec::with_capacity(dims.len());
    for &d in dims.iter().rev() {
        shape.push(usize::try_from(d).map_err(|_| overflow(&name))?);
    }
    let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let mxfp4 = kind == MXFP4;
    let bytes = |n: usize| match mxfp4 {
        true => (n / Block::VALUES).checked_mul(mxfp4::GGUF_BLOCK),
        false => stored.bytes(n),
    };
    let bytes = values.and_then(bytes).ok_or_else(|| overflow(&name))?;
    let end = offset.checked_add(bytes as u64).ok_or_else(|| overflow(&name))?;
    Ok(Tensor { info: TensorInfo { name, shape, stored }, start: offset, end, mxfp4 })
}

/// Moves a tensor's range behind the header and checks that it lies in the file.
fn place(t: &mut Tensor, data: u64, alignment: u64, len: u64) -> Result<(), Stop> {
    if !t.start.is_multiple_of(alignment) {
        let what = format!("offset {} is not a multiple of the alignment {alignment}", t.start);
        return Err(Stop::Tensor(t.info.name.clone(), what));
    }
    match (t.start.checked_add(data), t.end.checked_add(data)) {
        (Some(start), Some(end)) if end <= len => {
            (t.start, t.end) = (start, end);
            Ok(())
        }
        _ => {
            let what = format!(
                "needs bytes {}..{} behind the header, but the file has {} there",
                t.start,
                t.end,
                len.saturating_sub(data)
            );
            Err(Stop::Tensor(t.info.name.clone(), what))
        }
    }
}

/// No overlapping ranges; names are checked when the source is built, but `parse` alone promises them too.
fn distinct(tensors: &[Tensor]) -> Result<(), Stop> {
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by_key(|t| (t.start, t.end));
    let mut before: Option<&Tensor> = None;
    for t in order.iter().filter(|t| t.start < t.end) {
        if let Some(b) = before.filter(|b| t.start < b.end) {
            let what = format!("bytes {}..{} overlap tensor `{}`", t.start, t.end, b.info.name);
            return Err(Stop::Tensor(t.info.name.clone(), what));
        }
        before = Some(t);
    }
    order.sort_by(|a, b| a.info.name.cmp(&b.info.name));
    match order.windows(2).find(|pair| pair[0].info.name == pair[1].info.name) {
        Some(pair) => Err(Stop::Tensor(pair[0].info.name.clone(), "appears twice".into())),
        None => Ok(()),
    }
}
