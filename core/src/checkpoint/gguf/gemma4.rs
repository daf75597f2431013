//! Gemma 4's files: heads, windows and rotations of two kinds of blocks, later blocks that read the keys and
//! values of earlier ones, inputs of every block's own, experts next to a dense part.
//!
//! Source: `conversion/gemma.py` and `src/models/gemma4.cpp` of llama.cpp.

use super::Metadata;
use super::translation::{Seen, Translation};
use super::words::{KV_HEADS, ROTATED, model_type};
use crate::checkpoint::Source;
use crate::mem::Stored;
use crate::{Error, Result};
use serde_json::{Value, json};

pub(super) const ARCH: &str = "gemma4";

/// The tensor that says which pairs of columns turn: what their frequencies are divided by.
const DIVISORS: &str = "rope_freqs.weight";
/// Pairs whose frequencies are divided by more than this do not turn.
const STANDS: f32 = 1e29;
/// Most blocks, and most pairs of columns.
const MOST: usize = 1 << 16;

/// Fills in everything but the rotations.
pub(super) fn configuration(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.put("model_type", json!(model_type(ARCH)));
    to.counts(&[
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("attention.head_count", "num_attention_heads"),
        ("context_length", "max_position_embeddings"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.shared_kv_layers", "num_kv_shared_layers"),
        ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
        ("attention.key_length", "global_head_dim"),
        ("attention.key_length_swa", "head_dim"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "top_k_experts"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ])?;
    to.numbers(&[
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ])?;
    to.put("enable_moe_block", json!(to.count("expert_count")?.is_some_and(|count| count > 0)));
    if let Some(rows) = seen.layer_rows {
        to.put("vocab_size_per_layer_input", json!(rows));
    }
    let layers = layers(to)?;
    columns(to, layers)?;
    heads(to, seen, layers)
}

/// The number of blocks.
fn layers(to: &Translation) -> Result<usize> {
    let count = to.count("block_count")?.unwrap_or(0);
    let fits = usize::try_from(count).ok().filter(|count| (1..=MOST).contains(count));
    fits.ok_or_else(|| Error::config(format!("{ARCH}.block_count"), count, format!("1 to {MOST}")))
}

/// A list with a number of each block.
fn of_layers(to: &Translation, key: &str, layers: usize) -> Result<Vec<u64>> {
    let key = format!("{ARCH}.{key}");
    let missing = || Error::format("", format!("metadata `{key}` is missing"));
    to.metadata.u64_of_layers(&key, layers)?.ok_or_else(missing)
}

/// Columns of feed-forward parts: the same in all blocks, or twice as many in those that have no keys and
/// values of their own.
fn columns(to: &mut Translation, layers: usize) -> Result<()> {
    let list = of_layers(to, "feed_forward_length", layers)?;
    let shared = to.count("attention.shared_kv_layers")?.unwrap_or(0);
    let own = layers.saturating_sub(usize::try_from(shared).unwrap_or(usize::MAX));
    let (first, last) = (list[0], list[layers - 1]);
    let double = last != first;
    let fits = |(i, n): (usize, &u64)| *n == if double && i >= own { first.saturating_mul(2) } else { first };
    if !list.iter().enumerate().all(fits) {
        let allowed = format!("one number, or twice as much in the last {shared} blocks");
        return Err(Error::config(format!("{ARCH}.feed_forward_length"), json!(list), allowed));
    }
    to.put("intermediate_size", json!(first));
    to.put("use_double_wide_mlp", json!(double));
    Ok(())
}

/// Heads of keys and values of either kind of block, and whether values are the keys.
fn heads(to: &mut Translation, seen: &Seen, layers: usize) -> Result<()> {
    let key = format!("{ARCH}.attention.sliding_window_pattern");
    let pattern = to.metadata.bools(&key).filter(|pattern| pattern.len() == layers);
    let missing = || Error::format("", format!("metadata `{key}` is not there with a value for each block"));
    let pattern = pattern.ok_or_else(missing)?;
    to.layer_types(&pattern);
    let list = of_layers(to, KV_HEADS.0, layers)?;
    for (slides, field) in [(true, KV_HEADS.1), (false, "num_global_key_value_heads")] {
        let mut of_kind = (0..layers).filter(|i| pattern[*i] == slides).map(|i| list[i]);
        let Some(first) = of_kind.next() else { continue };
        if let Some(other) = of_kind.find(|count| *count != first) {
            let allowed = format!("{first} in all blocks of a kind");
            return Err(Error::config(format!("{ARCH}.{}", KV_HEADS.0), other, allowed));
        }
        to.put(field, json!(first));
    }
    let alone = |i: &u64| seen.keys.contains(i) && !seen.values.contains(i);
    let same = (0..layers as u64).any(|i| !pattern[i as usize] && alone(&i));
    to.put("attention_k_eq_v", json!(same));
    Ok(())
}

/// Puts the rotations of both kinds of blocks where configurations have them: the part of a head that turns
/// in the global ones is said by a tensor.
///
/// # Errors
/// `Config` for a rotation of a part of a head in the others; `Tensor` for divisors that are no 1 followed by
/// ones that stop a pair; what reading raises.
pub(super) fn rotations(config: &mut Value, metadata: &Metadata, source: &dyn Source) -> Result<()> {
    if metadata.str("general.architecture")? != Some(ARCH) {
        return Ok(());
    }
    for (rotated, width) in
        [(ROTATED, "attention.key_length"), ("rope.dimension_count_swa", "attention.key_length_swa")]
    {
        let of = |key: &str| metadata.u64(&format!("{ARCH}.{key}"));
        if let (Some(rotated_columns), Some(width)) = (of(rotated)?, of(width)?)
            && rotated_columns != width
        {
            let allowed = format!("{width}, the width of a head");
            return Err(Error::config(format!("{ARCH}.{rotated}"), rotated_columns, allowed));
        }
    }
    let mut global = json!({ "rope_type": "proportional", "partial_rotary_factor": turning(source)? });
    let mut local = json!({ "rope_type": "default" });
    for (key, section) in [("rope.freq_base", &mut global), ("rope.freq_base_swa", &mut local)] {
        if let Some(base) = metadata.f64(&format!("{ARCH}.{key}"))? {
            section["rope_theta"] = json!(base);
        }
    }
    config["rope_parameters"] = json!({ "full_attention": global, "sliding_attention": local });
    Ok(())
}

/// The part of a head that turns: all of it where nothing is said.
fn turning(source: &dyn Source) -> Result<f64> {
    let Some(info) = source.find(DIVISORS) else { return Ok(1.0) };
    let wrong = || {
        let what = format!("1 to {MOST} numbers in f32 are expected: 1 for each pair that turns, then 1e30");
        Error::tensor(DIVISORS, what)
    };
    if info.stored != Stored::F32 || !(1..=MOST).contains(&info.elements()) {
        return Err(wrong());
    }
    let bytes = source.bytes(DIVISORS)?;
    let divisors: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let turn = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    match turn > 0 && divisors[turn..].iter().all(|divisor| *divisor > STANDS) {
        true => Ok(turn as f64 / divisors.len() as f64),
        false => Err(wrong()),
    }
}

#[cfg(test)]
#[path = "gemma4_tests.rs"]
mod tests;
