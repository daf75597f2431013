//! DeepSeek 3.2 and GLM 5: DeepSeek 3's blocks, whose queries read the keys that an index chooses.

use super::deepseek::{LATENT_NAMES, latent_by_bias};
use crate::params::{NormKind, RopeStyle};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;
use serde_json::Value;

/// `model_type` deepseek_v32.
pub const DEEPSEEK_V32: Described = Described::new(&["deepseek_v32"], LATENT_NAMES, deepseek_v32);

/// `model_type` glm_moe_dsa.
pub const GLM_MOE_DSA: Described = Described::new(&["glm_moe_dsa"], LATENT_NAMES, glm_moe_dsa);

/// What the two have in the place of fields.
struct Defaults {
    index_heads: usize,
    index_style: RopeStyle,
    switches: Switches,
    in_groups: [usize; 2],
}

fn deepseek_v32(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let switches = Switches { positions: 163_840, ..LLAMA_LIKE };
    let (index_style, in_groups) = (RopeStyle::Half, [8, 4]);
    indexed(config, catalog, Defaults { index_heads: 64, index_style, switches, in_groups })
}

fn glm_moe_dsa(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let switches = Switches { eps: 1e-5, positions: 202_752, ..LLAMA_LIKE };
    let (index_style, in_groups) = (RopeStyle::Interleaved, [1, 1]);
    let own = Defaults { index_heads: 32, index_style, switches, in_groups };
    let mut spec = indexed(config, catalog, own)?;
    let shared = shared_blocks(config, spec.blocks.len())?;
    spec.each(|i, b| b.index = b.index.map(|index| IndexSpec { shared: shared[i], ..index }));
    Ok(spec)
}

fn indexed(config: &ModelConfig, catalog: Catalog<'_>, own: Defaults) -> Result<ModelSpec> {
    let mut spec = latent_by_bias(config, catalog, own.switches)?;
    let shared = shared_columns(config, 1)?;
    let routing = Routing { shared, in_groups: own.in_groups, scale: 2.5, dense: 3, ..BY_BIASED_SIGMOID };
    routed(config, &mut spec, routing)?;
    every_block_chooses(config, spec.blocks.len())?;
    if config.size_opt(&["q_lora_rank"])?.is_none() {
        return Err(Error::config("q_lora_rank", "null", "columns that the index's queries are made of"));
    }
    let size = |field, default| Ok::<_, Error>(config.size_opt(&[field])?.unwrap_or(default));
    let (heads, width) = (size("index_n_heads", own.index_heads)?, size("index_head_dim", 128)?);
    let (count, rotated) = (size("index_topk", 2048)?, config.size(&["qk_rope_head_dim"])?);
    if !width.is_multiple_of(2) || width < rotated {
        let allowed = format!("an even number of at least {rotated}, the columns that rotate");
        return Err(Error::config("index_head_dim", width, allowed));
    }
    let style = match config.get("indexer_rope_interleave") {
        None => own.index_style,
        Some(_) if config.flag(&["indexer_rope_interleave"], false)? => RopeStyle::Interleaved,
        Some(_) => RopeStyle::Half,
    };
    let main = spec.blocks.first().and_then(|b| b.rope).unwrap_or(0);
    let rope = match spec.ropes.get(main) {
        Some(rope) if rope.style != style => {
            let other = RopeSpec { style, ..rope.clone() };
            spec.ropes.push(other);
            spec.ropes.len() - 1
        }
        _ => main,
    };
    // Its epsilon is in no configuration.
    let kind = NormKind::Layer;
    let norm = NormSpec { kind, eps: 1e-6, bias: true, plus_one: false, weighted: true };
    spec.each(|_, b| {
        b.index = Some(IndexSpec::new([heads, width, count], rope, norm));
        b.scores.causal = false;
    });
    Ok(spec)
}

/// Whether `layer_types` says of every block that an index chooses its keys; both words stand in files.
fn every_block_chooses(config: &ModelConfig, layers: usize) -> Result<()> {
    let Some(list) = config.get("layer_types") else { return Ok(()) };
    let chooses = |v: &Value| matches!(v.as_str(), Some("indexed_attention" | "deepseek_sparse_attention"));
    match list.as_array().is_some_and(|list| list.len() == layers && list.iter().all(chooses)) {
        true => Ok(()),
        false => {
            let allowed = format!("{layers} times \"indexed_attention\" or \"deepseek_sparse_attention\"");
            Err(Error::config("layer_types", list, allowed))
        }
    }
}

/// Which blocks read the keys that the block before them has chosen: as `indexer_types` lists them; else by
/// `index_topk_pattern`, a letter for each block; else all but every `index_topk_freq`-th, counted from
/// `index_skip_topk_offset` on.
fn shared_blocks(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let of = |field: &str, words: Option<Vec<bool>>, found: &dyn std::fmt::Display| match words {
        Some(words) if words.len() == layers && words.first() != Some(&true) => Ok(words),
        _ => {
            let allowed =
                format!("{layers} times \"full\" or \"shared\" (\"F\" or \"S\"), the first of them full");
            Err(Error::config(field, found, allowed))
        }
    };
    let word = |v: &str| match v {
        "full" | "F" => Some(false),
        "shared" | "S" => Some(true),
        _ => None,
    };
    for field in ["indexer_types", "index_topk_pattern"] {
        let words = match config.get(field) {
            None => continue,
            Some(Value::String(letters)) => {
                letters.chars().map(|letter| word(letter.encode_utf8(&mut [0; 4]))).collect()
            }
            Some(list) => {
                let list = list.as_array().map_or(&[][..], Vec::as_slice);
                list.iter().map(|v| v.as_str().and_then(word)).collect()
            }
        };
        let found = config.get(field).map_or_else(String::new, Value::to_string);
        return of(field, words, &found);
    }
    let every = config.index(&["index_topk_freq"], 1)?.max(1);
    let offset = config.index(&["index_skip_topk_offset"], 2)?;
    Ok((0..layers).map(|i| !(i + 1).saturating_sub(offset).is_multiple_of(every)).collect())
}
