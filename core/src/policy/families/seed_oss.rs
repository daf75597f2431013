//! Seed-OSS: LLaMA's blocks with biases on q, k and v, and switches of their own for the other matmuls.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::*;

/// `model_type` seed_oss.
pub const SEED_OSS: Described = Described::new(&["seed_oss"], NAMES, seed_oss);

fn seed_oss(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { positions: 524_288, ..LLAMA_LIKE })?;
    let (qkv, out) = (config.flag(&["attention_bias"], true)?, config.flag(&["attention_out_bias"], false)?);
    let mlp = config.flag(&["mlp_bias"], false)?;
    spec.each(|_, b| b.bias = [qkv, out, mlp, mlp]);
    Ok(spec)
}
