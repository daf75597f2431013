//! The index of a sharded checkpoint, `model.safetensors.index.json` or `pytorch_model.bin.index.json`: which
//! file holds which tensor.
//!
//! Shards lie next to the index; a name that leads anywhere else is refused, so an index cannot make the
//! program read other files.

use super::{
    Access, contents,
    storage::Storage,
    tensors::{Placed, Tensors},
};
use crate::{Error, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::path::Path;

/// Largest index file.
pub const MAX_INDEX: usize = 64 << 20;
/// Most files of one checkpoint.
pub const MAX_SHARDS: usize = 4096;

/// Which shard holds which tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// File names, sorted, each once.
    pub shards: Vec<String>,
    /// Tensor name and position in `shards`, sorted by name.
    pub tensors: Vec<(String, usize)>,
}

/// Parses an index.
///
/// # Errors
/// `Error::Format`: not JSON, no `weight_map`, a tensor listed twice, a shard outside the folder, too many
/// shards.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Index> {
    if bytes.len() > MAX_INDEX {
        let what = format!("is {} bytes long; at most {MAX_INDEX} are allowed", bytes.len());
        return Err(Error::format(file, what));
    }
    let Document { weight_map: WeightMap(mut pairs) } = serde_json::from_slice(bytes)
        .map_err(|e| Error::format(file, format!("is not a valid index: {e}")))?;
    if pairs.is_empty() {
        return Err(Error::format(file, "weight_map lists no tensor"));
    }
    pairs.sort_unstable();
    if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::format(file, format!("weight_map lists tensor `{}` twice", pair[0].0)));
    }
    let mut shards: Vec<String> = pairs.iter().map(|(_, shard)| shard.clone()).collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.len() > MAX_SHARDS {
        let what = format!("weight_map names {} files; at most {MAX_SHARDS} are allowed", shards.len());
        return Err(Error::format(file, what));
    }
    if let Some(shard) = shards.iter().find(|s| !is_plain_name(s)) {
        let what = format!(
            "weight_map names the shard \"{shard}\"; only plain file names next to the index are allowed"
        );
        return Err(Error::format(file, what));
    }
    let tensors = pairs
        .into_iter()
        .map(|(name, shard)| (name, shards.binary_search(&shard).unwrap_or_default()))
        .collect();
    Ok(Index { shards, tensors })
}

/// Opens all shards of an index that lies in `folder`.
pub(super) fn open(folder: &Path, file: &str, bytes: &[u8], access: Access) -> Result<Tensors> {
    let index = parse(file, bytes)?;
    let mut storages = Vec::with_capacity(index.shards.len());
    let mut placed: Vec<Placed> = Vec::with_capacity(index.tensors.len());
    for (number, shard) in index.shards.iter().enumerate() {
        let path = folder.join(shard);
        if !path.is_file() {
            let count = index.tensors.iter().filter(|(_, s)| *s == number).count();
            let what = format!("shard {shard} is missing; the index places {count} tensors in it");
            return Err(Error::format(file, what));
        }
        let storage = Storage::open(&path, access)?;
        let mut found = contents::place(&storage, number)?;
        found.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        for (name, _) in index.tensors.iter().filter(|(_, s)| *s == number) {
            if found.binary_search_by(|p| p.info.name.cmp(name)).is_err() {
                let what = format!("is not in {shard}, where {file} places it");
                return Err(Error::tensor(name, what));
            }
        }
        placed.append(&mut found);
        storages.push(storage);
    }
    // Tensors that the index does not list are kept: the policy decides whether they matter.
    Tensors::new(file.to_owned(), storages, placed)
}

/// No separators, drives or parents, on any system.
fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

#[derive(serde::Deserialize)]
struct Document {
    weight_map: WeightMap,
}

/// Pairs in file order; a map type would hide a name that comes twice.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("weight_map, an object from tensor name to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let shard = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            pairs.push((name, shard));
        }
        Ok(WeightMap(pairs))
    }
}
