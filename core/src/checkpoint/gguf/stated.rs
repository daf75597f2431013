//! Numbers of single blocks that files have among their metadata, and other checkpoints as tensors: Apertus'
//! constants of xIELU.
//!
//! Source: `conversion/llama.py` of llama.cpp.

use super::{Array, Metadata, Value};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::storage::Storage;
use crate::checkpoint::tensors::Placed;
use crate::mem::Stored;
use crate::{Error, Result};
use std::borrow::Cow;

/// Keys of lists with a number of each block.
const KEYS: [&str; 4] = ["xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"];

/// Whether a tensor of this name was made of metadata: no file has it.
pub(crate) fn is_stated(name: &str) -> bool {
    let in_block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    in_block.is_some_and(|(_, key)| KEYS.contains(&key))
}

/// Tensors of one number, in memory; they lie in storage number `shard`. A file has `most` tensors, and so no
/// more blocks.
///
/// # Errors
/// `Format` for a list with something else, longer than that, or of another length than the first.
pub(super) fn tensors(
    metadata: &Metadata,
    most: usize,
    shard: usize,
) -> Result<Option<(Storage, Vec<Placed>)>> {
    if metadata.get(KEYS[0]).is_none() {
        return Ok(None);
    }
    let (mut bytes, mut placed) = (Vec::new(), Vec::new());
    let mut blocks = None;
    for key in KEYS {
        let count = match metadata.get(key) {
            Some(Value::Array(Array::Numbers(list))) => list.len(),
            _ => 0,
        };
        let wanted = *blocks.get_or_insert(count);
        if count != wanted || wanted > most {
            let allowed = if wanted > most { format!("at most {most}") } else { wanted.to_string() };
            let what = format!("metadata `{key}` has {count} numbers; {allowed} are allowed");
            return Err(Error::format("", what));
        }
        let list = metadata.numbers(key, |v| v.as_f64())?;
        for (block, value) in list.into_iter().enumerate() {
            let start = bytes.len() as u64;
            bytes.extend((value as f32).to_le_bytes());
            let info = TensorInfo { name: format!("blk.{block}.{key}"), shape: vec![1], stored: Stored::F32 };
            placed.push(Placed { info, shard, start, end: bytes.len() as u64, view: None });
        }
    }
    Ok(Some((Storage::memory("metadata", Cow::Owned(bytes)), placed)))
}
