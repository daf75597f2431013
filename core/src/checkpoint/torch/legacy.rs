//! The format of `torch.save` before version 1.6: five pickles one after the other (a magic number, a
//! version, facts of the machine, the object, the keys of the storages), then each storage: a count of
//! elements and the elements. The older tar format is not read.

use super::contents::{Contents, contents};
use super::pickle::{self, Pickle};
use super::value::{Node, Value};
use crate::checkpoint::storage::Storage;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Protocol 2, then the magic number 0x1950a86a20f9469cfc6c as ten bytes.
const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

pub(super) fn is_legacy(front: &[u8]) -> bool {
    front.starts_with(MAGIC)
}

/// Reads the description and finds the storages behind it.
pub(super) fn read(storage: &Storage, shard: usize) -> Result<Contents> {
    let file = storage.name();
    let bad = |what: String| Error::format(file, what);
    // A mapped file is at hand as a whole; of others the pickles' part is read, as far as they may reach.
    let front = storage.range(0, storage.len().min(pickle::MAX_PICKLE))?;
    let mut at = 0;
    let mut next = |what: &str| -> Result<Pickle<'_>> {
        let pickle = pickle::read(&front[at..]).map_err(|e| bad(format!("{what}: {e}")))?;
        at += pickle.used;
        Ok(pickle)
    };
    next("magic number")?;
    let version = next("version")?;
    if version.root != Value::Int(1001) {
        return Err(bad("is in a format of torch.save that is not known; 1001 is".into()));
    }
    let machine = next("facts of the machine")?;
    if machine.get(machine.root, "little_endian") == Some(Value::Bool(false)) {
        return Err(bad("its bytes are in big-endian order; only little-endian files are supported".into()));
    }
    let object = next("object")?;
    let keys = next("keys of the storages")?;
    let Some(list) = keys.list(keys.root) else {
        return Err(bad("the keys of the storages are no list".into()));
    };
    let sizes = sizes(&object);
    let mut places = BTreeMap::new();
    let mut at = at as u64;
    for key in list {
        let Some(key) = keys.text(*key) else { return Err(bad("the key of a storage is no text".into())) };
        let truncated = || bad(format!("is truncated at storage {key}"));
        let body = at.checked_add(8).filter(|b| *b <= storage.len()).ok_or_else(truncated)?;
        let count = storage.range(at, body)?.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        // A storage that no tensor uses has no known element size; nothing behind it could be found.
        let size = sizes.get(key).ok_or_else(|| bad(format!("storage {key} is used by no tensor")))?;
        let end = count.checked_mul(*size).and_then(|n| body.checked_add(n));
        let end = end.filter(|end| *end <= storage.len()).ok_or_else(truncated)?;
        places.insert(key.to_owned(), (body, end));
        at = end;
    }
    contents(file, &object, shard, &mut |key| {
        places.get(key).copied().ok_or_else(|| bad(format!("has no storage {key}")))
    })
}

/// Bytes of an element per storage.
fn sizes(object: &Pickle<'_>) -> BTreeMap<String, u64> {
    let storages = object.nodes().iter().filter_map(|node| match node {
        Node::Storage(s) => Some((s.key.clone(), s.stored.and_then(|s| s.bytes(1)).unwrap_or(1) as u64)),
        _ => None,
    });
    storages.collect()
}
