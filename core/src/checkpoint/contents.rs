//! What one file of weights holds, whichever of the two formats it has.

use super::{
    safetensors,
    storage::Storage,
    tensors::{Placed, Tensors},
    torch,
};
use crate::Result;

/// A model in one PyTorch file.
pub(super) fn pytorch(storage: Storage) -> Result<Tensors> {
    let placed = torch::read(&storage, 0)?.tensors;
    Tensors::new(storage.name().to_owned(), vec![storage], placed)
}

/// The tensors of one opened file of either format, as shard number `shard`.
pub(super) fn place(storage: &Storage, shard: usize) -> Result<Vec<Placed>> {
    contents(storage, shard).map(|c| c.tensors)
}

/// As [`place`], with what the file says besides tensors.
pub(super) fn contents(storage: &Storage, shard: usize) -> Result<torch::Contents> {
    if torch::is_torch(&storage.range(0, storage.len().min(64))?) {
        return torch::read(storage, shard);
    }
    let tensors = safetensors::place(storage, shard)?;
    Ok(torch::Contents { tensors, facts: serde_json::Map::new() })
}
