//! SmolLM 3: LLaMA's blocks, every fourth without a rotation.

use super::llama::{NAMES, llama_as, pairs};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::*;

/// `model_type` smollm3.
pub const SMOLLM3: Described = Described::new(&["smollm3"], NAMES, smollm3).layout(pairs);

fn smollm3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(config, 2_000_000.0);
    let mut spec = llama_as(config, catalog, Switches { tied: true, positions: 32_768, ..LLAMA_LIKE })?;
    let rotated = rotated(config, spec.blocks.len())?;
    spec.each(|i, b| b.rope = b.rope.filter(|_| rotated[i]));
    if config.flag(&["use_sliding_window"], false)? {
        spec.slide(config, |i| !rotated[i])?;
    }
    Ok(spec)
}

/// Which blocks rotate: those whose entry of `no_rope_layers` is not 0; without the list, all but every
/// `no_rope_layer_interval`th.
fn rotated(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let Some(list) = config.get("no_rope_layers") else {
        let every = config.size_opt(&["no_rope_layer_interval"])?.unwrap_or(4);
        return Ok((1..=layers).map(|i| !i.is_multiple_of(every)).collect());
    };
    let entries = list.as_array().map(|all| all.iter().map(|v| v.as_u64().filter(|n| *n < 2)));
    let entries: Option<Vec<u64>> = entries.and_then(Iterator::collect);
    match entries {
        Some(entries) if entries.len() >= layers => Ok(entries.iter().map(|n| *n == 1).collect()),
        _ => Err(Error::config("no_rope_layers", list, format!("at least {layers} times 0 or 1"))),
    }
}
