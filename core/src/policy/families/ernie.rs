//! ERNIE 4.5, dense: LLaMA's blocks that rotate neighbouring columns; with `use_bias` every matmul has a
//! bias.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, refuse_gguf, with_theta};
use crate::policy::*;

/// `model_type` ernie4_5.
pub const ERNIE4_5: Described = Described::new(&["ernie4_5"], NAMES, ernie4_5);

fn ernie4_5(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let config = &with_theta(config, 500_000.0);
    let defaults = Switches { eps: 1e-5, tied: true, positions: 131_072, ..LLAMA_LIKE };
    let mut spec = llama_as(config, catalog, defaults)?;
    let bias = config.flag(&["use_bias"], false)?;
    spec.each(|_, b| b.bias = [bias; 4]);
    spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
    Ok(spec)
}
