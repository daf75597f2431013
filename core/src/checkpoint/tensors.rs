//! The one implementation of [`Source`]: a sorted list of tensors over one or more files.

use super::{Source, TensorInfo, storage::Storage};
use crate::{Error, Result};
use std::borrow::Cow;

/// A tensor and the byte range that holds it.
pub(super) struct Placed {
    /// Name, shape, type.
    pub(super) info: TensorInfo,
    /// Which of the files.
    pub(super) shard: usize,
    /// First byte in that file.
    pub(super) start: u64,
    /// One past the last byte.
    pub(super) end: u64,
}

/// Tensors in files.
pub(super) struct Tensors {
    file: String,
    shards: Vec<Storage>,
    infos: Vec<TensorInfo>,
    /// Parallel to `infos`: shard, start, end.
    places: Vec<(usize, u64, u64)>,
}

impl Tensors {
    /// Sorts by name; a name in two places is an error that names both files.
    pub(super) fn new(file: String, shards: Vec<Storage>, mut placed: Vec<Placed>) -> Result<Self> {
        placed.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        for pair in placed.windows(2) {
            let [a, b] = pair else { continue };
            if a.info.name == b.info.name {
                let what = if a.shard == b.shard {
                    format!("appears twice in {}", shards[a.shard].name())
                } else {
                    format!("is in two files, {} and {}", shards[a.shard].name(), shards[b.shard].name())
                };
                return Err(Error::tensor(&a.info.name, what));
            }
        }
        let places = placed.iter().map(|p| (p.shard, p.start, p.end)).collect();
        let infos = placed.into_iter().map(|p| p.info).collect();
        Ok(Self { file, shards, infos, places })
    }

    fn place(&self, name: &str) -> Option<(usize, u64, u64)> {
        self.infos.binary_search_by(|t| t.name.as_str().cmp(name)).ok().map(|i| self.places[i])
    }
}

impl Source for Tensors {
    fn file(&self) -> &str {
        &self.file
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let Some((shard, start, end)) = self.place(name) else {
            return Err(Error::tensor(name, format!("is not in {}", self.file)));
        };
        self.shards[shard].range(start, end)
    }

    fn release(&self, name: &str) {
        if let Some((shard, start, end)) = self.place(name) {
            self.shards[shard].release(start, end);
        }
    }

    fn total_bytes(&self) -> u64 {
        self.places.iter().map(|(_, start, end)| end - start).sum()
    }
}
