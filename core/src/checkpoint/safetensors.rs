//! Safetensors: an 8-byte length, a JSON header, then the tensors back to back.
//!
//! The header is read here rather than by the `safetensors` crate, of which only the type names are used: the
//! crate wants the whole file as one slice, keeps the last of two equal names, and reports most faults
//! without the tensor's name. The rules are the same: no holes, no overlaps, nothing behind the last tensor.
//! Format: <https://github.com/huggingface/safetensors#format>.

use super::{
    TensorInfo,
    storage::Storage,
    tensors::{Placed, Tensors},
};
use crate::{Error, Result, mem::Stored};
use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;

/// Largest header; the reference implementation has the same limit.
pub const MAX_HEADER: u64 = 100_000_000;
/// Most tensors in one file.
pub const MAX_TENSORS: usize = 1 << 20;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// A tensor's place: bytes `start..end` of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name, shape, type.
    pub info: TensorInfo,
    /// First byte in the file.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Reads the header of a file in memory; tensors come in the order of their bytes.
///
/// # Errors
/// `Error::Format` or `Error::Tensor`, naming what breaks the format.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Tensor>> {
    let len = bytes.len() as u64;
    let prefix = bytes.get(..8).and_then(|p| p.try_into().ok());
    let end = header_end(file, prefix, len)?;
    header(file, &bytes[8..end as usize], len)
}

/// The text under a key of the `__metadata__` of a file in memory; none where the file has no such key.
///
/// # Errors
/// `Error::Format` for a header or metadata that break the format, and for a value that is no text.
pub fn metadata(file: &str, bytes: &[u8], key: &str) -> Result<Option<String>> {
    let prefix = bytes.get(..8).and_then(|p| p.try_into().ok());
    let end = header_end(file, prefix, bytes.len() as u64)?;
    let Extra { metadata } = serde_json::from_slice(&bytes[8..end as usize])
        .map_err(|e| Error::format(file, format!("header is not valid: {e}")))?;
    match metadata.and_then(|mut all| all.remove(key)) {
        None => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Error::format(file, format!("`{key}` of __metadata__ is no text"))),
    }
}

/// A model in one file.
pub(super) fn single(storage: Storage) -> Result<Tensors> {
    let placed = place(&storage, 0)?;
    Tensors::new(storage.name().to_owned(), vec![storage], placed)
}

/// The tensors of one opened file, as shard number `shard`.
pub(super) fn place(storage: &Storage, shard: usize) -> Result<Vec<Placed>> {
    let (file, len) = (storage.name(), storage.len());
    let prefix = storage.range(0, len.min(8))?;
    let end = header_end(file, prefix.as_ref().try_into().ok(), len)?;
    let tensors = header(file, &storage.range(8, end)?, len)?;
    Ok(tensors
        .into_iter()
        .map(|t| Placed { info: t.info, shard, start: t.start, end: t.end, view: None })
        .collect())
}

/// Where the header ends, from the first 8 bytes.
fn header_end(file: &str, prefix: Option<[u8; 8]>, len: u64) -> Result<u64> {
    let Some(prefix) = prefix else {
        return Err(Error::format(file, format!("is {len} bytes long; a safetensors file has at least 8")));
    };
    let n = u64::from_le_bytes(prefix);
    if n > MAX_HEADER {
        let what =
            format!("header length is {n}; at most {MAX_HEADER} is allowed (is this a safetensors file?)");
        return Err(Error::format(file, what));
    }
    if 8 + n > len {
        let what = format!("header length is {n}, but only {} bytes follow: the file is truncated", len - 8);
        return Err(Error::format(file, what));
    }
    Ok(8 + n)
}

/// Parses and checks the header's JSON. `len` is the file's length.
fn header(file: &str, json: &[u8], len: u64) -> Result<Vec<Tensor>> {
    let text = std::str::from_utf8(json)
        .map_err(|e| Error::format(file, format!("header is not UTF-8 at byte {}", 8 + e.valid_up_to())))?;
    let Header(entries) =
        serde_json::from_str(text).map_err(|e| Error::format(file, format!("header is not valid: {e}")))?;
    let base = 8 + json.len() as u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        tensors.push(check(file, name, entry, base, len)?);
    }
    tensors.sort_by(|a, b| (a.start, a.end, &a.info.name).cmp(&(b.start, b.end, &b.info.name)));
    let mut at = base;
    let mut before: Option<&str> = None;
    for t in &tensors {
        if t.start < at {
            let what = format!(
                "bytes {}..{} overlap tensor `{}` (in {file})",
                t.start,
                t.end,
                before.unwrap_or_default()
            );
            return Err(Error::tensor(&t.info.name, what));
        }
        if t.start > at {
            let what = format!(
                "starts at byte {}, but bytes {at}..{} belong to no tensor (in {file})",
                t.start, t.start
            );
            return Err(Error::tensor(&t.info.name, what));
        }
        at = t.end;
        before = Some(&t.info.name);
    }
    if at != len {
        return Err(Error::format(file, format!("tensors end at byte {at}, but the file has {len}")));
    }
    Ok(tensors)
}

/// Type, shape and offsets of one entry against each other and the file.
fn check(file: &str, name: String, entry: Entry, base: u64, len: u64) -> Result<Tensor> {
    let bad = |what: String| Error::tensor(&name, format!("{what} (in {file})"));
    let Some(stored) = stored(entry.dtype) else {
        let read: Vec<String> = READ.iter().map(|(dtype, _)| dtype.to_string()).collect();
        return Err(bad(format!("dtype {} is not supported; supported: {}", entry.dtype, read.join(", "))));
    };
    let (begin, stop) = entry.data_offsets;
    let (start, end) = match (base.checked_add(begin), base.checked_add(stop)) {
        (Some(start), Some(end)) if start <= end && end <= len => (start, end),
        _ => {
            let what =
                format!("data_offsets are [{begin}, {stop}]; the file has {} bytes of tensors", len - base);
            return Err(bad(what));
        }
    };
    let shape = entry.shape.0;
    let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let Some(bytes) = values.and_then(|n| stored.bytes(n)) else {
        return Err(bad(format!("shape {shape:?} of {stored} overflows")));
    };
    if bytes as u64 != end - start {
        let what = format!(
            "shape {shape:?} of {stored} needs {bytes} bytes, but data_offsets [{begin}, {stop}] hold {}",
            end - start
        );
        return Err(bad(what));
    }
    Ok(Tensor { info: TensorInfo { name, shape, stored }, start, end })
}

/// The element types that are read.
const READ: [(Dtype, Stored); 12] = [
    (Dtype::F64, Stored::F64),
    (Dtype::F32, Stored::F32),
    (Dtype::F16, Stored::F16),
    (Dtype::BF16, Stored::Bf16),
    (Dtype::F8_E4M3, Stored::F8E4m3),
    (Dtype::F8_E5M2, Stored::F8E5m2),
    (Dtype::I64, Stored::I64),
    (Dtype::I32, Stored::I32),
    (Dtype::I16, Stored::I16),
    (Dtype::I8, Stored::I8),
    (Dtype::U8, Stored::U8),
    (Dtype::BOOL, Stored::Bool),
];

fn stored(dtype: Dtype) -> Option<Stored> {
    READ.iter().find(|(read, _)| *read == dtype).map(|(_, stored)| *stored)
}

/// The header's entries in file order, names unique. A map type would hide a name that comes twice.
struct Header(Vec<(String, Entry)>);

#[derive(serde::Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// What a header has next to tensors.
#[derive(serde::Deserialize)]
struct Extra {
    #[serde(rename = "__metadata__")]
    metadata: Option<BTreeMap<String, serde_json::Value>>,
}

/// Dimensions, at most `MAX_RANK`: stops before a long list has been stored.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object from tensor name to dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries: Vec<(String, Entry)> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            entries.push((name, entry));
        }
        let mut names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom(format!("tensor `{}` appears twice", pair[0])));
        }
        Ok(Header(entries))
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a shape of at most {MAX_RANK} non-negative integers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut dims = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if dims.len() == MAX_RANK {
                return Err(A::Error::custom(format!("shape has more than {MAX_RANK} dimensions")));
            }
            dims.push(dim);
        }
        Ok(Shape(dims))
    }
}
