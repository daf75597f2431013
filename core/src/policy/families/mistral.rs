//! Mistral: LLaMA's blocks with a window; Ministral 3, whose queries grow with their position, and Mistral 4,
//! the same in DeepSeek 3's blocks.

use super::deepseek;
use super::llama::{NAMES, llama, llama_as, pairs};
use crate::params::GroupRank;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_LOGIT, Routing, routed, shared_columns};
use crate::policy::*;

/// `model_type` mistral.
pub const MISTRAL: Described = Described::new(&["mistral"], NAMES, mistral);

/// `model_type` ministral3.
pub const MINISTRAL3: Described = Described::new(&["ministral3"], NAMES, ministral3).layout(pairs);

/// `model_type` mistral4.
pub const MISTRAL4: Described = Described::new(&["mistral4"], deepseek::LATENT_NAMES, mistral4);

fn mistral(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama(config, catalog)?;
    spec.slide(config, |_| true)?;
    Ok(spec)
}

/// Queries grow where the rotation's settings say so.
fn grow(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let beta = ["rope_parameters.llama_4_scaling_beta", "rope_scaling.llama_4_scaling_beta"];
    let Some(beta) = config.number_opt(&beta)? else { return Ok(()) };
    let every = config.size(&[
        "rope_parameters.original_max_position_embeddings",
        "rope_scaling.original_max_position_embeddings",
    ])?;
    spec.each(|_, b| b.query_growth = Some(QueryGrowth { beta, every, from: 0 }));
    Ok(())
}

fn ministral3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 262_144, ..LLAMA_LIKE })?;
    spec.slide(config, |_| true)?;
    grow(config, &mut spec)?;
    Ok(spec)
}

fn mistral4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = deepseek::latent(config, catalog, Switches { positions: 1_048_576, ..LLAMA_LIKE })?;
    let (groups, shared) = (Some(GroupRank::BestTwo), shared_columns(config, 1)?);
    routed(config, &mut spec, Routing { renormalise: true, groups, shared, ..BY_LOGIT })?;
    grow(config, &mut spec)?;
    Ok(spec)
}
