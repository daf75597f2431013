//! PyTorch's own files: `torch.save`'s zip archives, and the format that came before them.
//!
//! `zip.rs` finds the members, `pickle.rs` reads the description of the tensors without running anything,
//! `legacy.rs` finds the storages of the older format; in `contents.rs` descriptions become places of bytes.
//! A tensor is a strided window on a storage; several may share one. Contiguous windows are handed out as
//! they lie in the file, others are gathered when asked for (`tensors.rs`).
//!
//! Invariant: a window lies inside its storage and has at most as many elements, so no tensor is larger than
//! the file.

mod contents;
mod legacy;
mod pickle;
mod value;
mod zip;

pub(super) use contents::Contents;

use super::storage::Storage;
use crate::{Error, Result};
use contents::contents;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Whether a file begins like one of PyTorch's.
pub(super) fn is_torch(front: &[u8]) -> bool {
    front.starts_with(zip::MAGIC) || legacy::is_legacy(front)
}

/// Reads what an opened file describes; its tensors belong to file number `shard`.
pub(super) fn read(storage: &Storage, shard: usize) -> Result<Contents> {
    let front = storage.range(0, storage.len().min(64))?;
    if front.starts_with(zip::MAGIC) {
        return zipped(storage, shard);
    }
    if legacy::is_legacy(&front) {
        return legacy::read(storage, shard);
    }
    let what =
        "is no PyTorch file: it begins neither like a zip archive nor like the format before version 1.6";
    Err(Error::format(storage.name(), what))
}

fn zipped(storage: &Storage, shard: usize) -> Result<Contents> {
    let bad = |what: String| Error::format(storage.name(), what);
    let archive = zip::Archive::open(storage)?;
    let mut roots = archive.names().filter_map(|n| n.strip_suffix("/data.pkl")).filter(|n| !n.contains('/'));
    let (Some(root), None) = (roots.next(), roots.next()) else {
        return Err(bad("the archive has no data.pkl (or several): it was not written by torch.save".into()));
    };
    if archive.place(&format!("{root}/constants.pkl"))?.is_some() {
        return Err(bad("is a TorchScript program; only weights can be read: save its state_dict".into()));
    }
    let member = |name: String| -> Result<Option<Cow<'_, [u8]>>> {
        archive.place(&name)?.map(|(start, end)| storage.range(start, end)).transpose()
    };
    if let Some(order) = member(format!("{root}/byteorder"))?
        && order.as_ref() != b"little"
    {
        return Err(bad("its bytes are in big-endian order; only little-endian files are supported".into()));
    }
    let (start, end) = archive.place(&format!("{root}/data.pkl"))?.unwrap_or_default();
    if end - start > pickle::MAX_PICKLE {
        return Err(bad(format!(
            "data.pkl is {} bytes long; at most {} are allowed",
            end - start,
            pickle::MAX_PICKLE
        )));
    }
    let bytes = storage.range(start, end)?;
    let pickle = pickle::read(&bytes).map_err(|what| bad(format!("data.pkl: {what}")))?;
    let mut places = BTreeMap::new();
    contents(storage.name(), &pickle, shard, &mut |key| {
        if let Some(place) = places.get(key) {
            return Ok(*place);
        }
        let place = archive.place(&format!("{root}/data/{key}"))?;
        let place = place.ok_or_else(|| bad(format!("the archive has no storage {key}")))?;
        places.insert(key.to_owned(), place);
        Ok(place)
    })
}
