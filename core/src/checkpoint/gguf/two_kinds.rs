//! Families whose blocks are of two kinds, those with a window and the others, with a rotation for either:
//! Laguna, whose blocks have query heads by the block, and MiMo 2, whose local blocks have more keys.
//!
//! Source: `conversion/laguna.py` and `mimo.py` of llama.cpp, `src/models/laguna.cpp` and `mimo2.cpp`.

use super::Value;
use super::families::{MOST_BLOCKS, routed};
use super::translation::{Seen, Translation};
use super::words::{COUNTS, EXPERTS, HEAD, HEADS, KV_HEADS, NUMBERS, ROTATED, model_type};
use crate::{Error, Result};
use serde_json::{Value as Json, json};

/// Fills in what such files say; how the others' frequencies are stretched is there already.
pub(super) fn configuration(to: &mut Translation, seen: &Seen) -> Result<()> {
    to.put("model_type", json!(model_type(to.arch)));
    for words in COUNTS.iter().filter(|(key, _)| *key != HEADS.0) {
        to.counts(&[*words])?;
    }
    to.counts(EXPERTS)?;
    to.counts(&HEAD)?;
    to.numbers(NUMBERS)?;
    let all = to.count("block_count")?.unwrap_or(0).min(MOST_BLOCKS) as usize;
    routed(to, seen)?;
    let drafting = to.count("nextn_predict_layers")?.unwrap_or(0).min(all as u64) as usize;
    let slides = slides(to, all)?;
    to.layer_types(&slides[..all - drafting]);
    heads(to, seen, &slides[..all - drafting])?;
    rotations(to)
}

/// Of so many blocks of Laguna the first has no window, where a file does not list them.
const EVERY: u64 = 4;

/// Which blocks have a window.
fn slides(to: &Translation, all: usize) -> Result<Vec<bool>> {
    let key = format!("{}.attention.sliding_window_pattern", to.arch);
    let single = to.metadata.get(&key).and_then(Value::as_u64);
    if to.arch == "laguna" && (single.is_some() || to.metadata.get(&key).is_none()) {
        let has_window = to.count("attention.sliding_window")?.is_some_and(|window| window > 0);
        let every = single.unwrap_or(EVERY).max(1);
        return Ok((0..all as u64).map(|block| has_window && !block.is_multiple_of(every)).collect());
    }
    // Flags, or numbers that are 0 or 1.
    let listed = match to.metadata.bools(&key) {
        Some(list) if list.len() == all => Some(list),
        Some(_) => None,
        None => to.metadata.u64_of_layers(&key, all)?.map(|list| list.iter().map(|n| *n != 0).collect()),
    };
    match (listed, to.metadata.get(&key)) {
        (Some(list), _) => Ok(list),
        (None, None) => Ok(vec![false; all]),
        (None, Some(found)) => {
            Err(Error::format("", format!("metadata `{key}` is {found}; one flag of each block is expected")))
        }
    }
}

/// A list of counts by the block.
fn of_blocks(to: &Translation, key: &str, blocks: usize) -> Result<Vec<u64>> {
    let key = format!("{}.{key}", to.arch);
    let all = to.count("block_count")?.unwrap_or(0).min(MOST_BLOCKS) as usize;
    let missing = || Error::format("", format!("metadata `{key}` is missing"));
    let mut list = to.metadata.u64_of_layers(&key, all)?.ok_or_else(missing)?;
    list.truncate(blocks);
    Ok(list)
}

/// Heads of queries, and of keys and values.
fn heads(to: &mut Translation, seen: &Seen, slides: &[bool]) -> Result<()> {
    let queries = of_blocks(to, HEADS.0, slides.len())?;
    let keys = of_blocks(to, KV_HEADS.0, slides.len())?;
    let Some(first) = queries.first().copied() else { return Ok(()) };
    to.put(HEADS.1, json!(first));
    let local = slides.iter().position(|slides| *slides).map(|at| keys[at]);
    let other = slides.iter().position(|slides| !slides).map(|at| keys[at]);
    // Twice as many in local blocks, which the configuration of MiMo does not say.
    let times = if to.arch == "mimo2" { 2 } else { 1 };
    let base = other.or(local.map(|local| local / times)).unwrap_or(first);
    let fits =
        |(slides, keys): (&bool, &u64)| *keys == if *slides { base.saturating_mul(times) } else { base };
    if !slides.iter().zip(&keys).all(fits) {
        let allowed = match times {
            1 => format!("{base} in all blocks"),
            _ => format!("{base}, and {} in blocks with a window", base.saturating_mul(times)),
        };
        return Err(Error::config(format!("{}.{}", to.arch, KV_HEADS.0), json!(keys), allowed));
    }
    to.put(KV_HEADS.1, json!(base));
    match to.arch {
        "laguna" => {
            let whole = seen.gate_rows == usize::try_from(first).ok();
            to.put("gating", json!(if whole { "per-head" } else { "per-element" }));
            to.put("num_attention_heads_per_layer", json!(queries));
        }
        _ => {
            if let Some(other) = queries.iter().find(|heads| **heads != first) {
                let allowed = format!("{first} in all blocks");
                return Err(Error::config(format!("{}.{}", to.arch, HEADS.0), other, allowed));
            }
            // Without a word there is none, as llama.cpp has it.
            let factor = to.number("attention.value_scale")?;
            to.put("attention_value_scale", json!(factor.filter(|factor| *factor != 1.0)));
        }
    }
    Ok(())
}

/// The rotation of either kind. Only that of blocks without a window is stretched.
fn rotations(to: &mut Translation) -> Result<()> {
    let width = to.count(HEAD[0].0)?.unwrap_or(0);
    let part = |columns: Option<u64>| match columns {
        Some(columns) if columns < width => {
            // The whole number that is rounded down to, however the quotient is rounded.
            Some(json!((columns as f64 + 0.5) / width as f64))
        }
        Some(columns) if columns > width => Some(json!(columns as f64 / width as f64)),
        _ => Some(json!(1.0)),
    };
    let columns = to.count(ROTATED)?;
    let local_columns = to.count("rope.dimension_count_swa")?.or(columns);
    let base = to.number("rope.freq_base")?;
    let local_base = to.number("rope.freq_base_swa")?.or(base);
    let mut full = to.out.remove("rope_scaling").unwrap_or_else(|| json!({ "rope_type": "default" }));
    let mut local = json!({ "rope_type": "default" });
    for (section, columns, base) in [(&mut full, columns, base), (&mut local, local_columns, local_base)] {
        for (field, value) in [("partial_rotary_factor", part(columns)), ("rope_theta", base.map(Json::from))]
        {
            if let Some(value) = value {
                section[field] = value;
            }
        }
    }
    to.put("rope_parameters", json!({ "full_attention": full, "sliding_attention": local }));
    Ok(())
}
