//! K-EXAONE: EXAONE 4's windows and rotations in blocks that norm before both parts, with DeepSeek 3's
//! experts.

use super::deepseek;
use super::llama::llama_as;
use super::post_norm::local_rotations;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;

/// `model_type` exaone_moe.
pub const EXAONE_MOE: Described = Described::new(&["exaone_moe"], deepseek::NAMES, exaone_moe);

fn exaone_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    // Null says that there is none; what is not said has a default.
    let defaults = [("sliding_window", 4096), ("sliding_window_pattern", 4)];
    let unsaid = |(field, _): &(&str, u64)| !config.fields().any(|(name, _)| name == field);
    let config = defaults.into_iter().filter(unsaid).fold(config.clone(), |c, (field, n)| c.with(field, n));
    let config = &config;
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
    spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head)));
    local_rotations(config, &mut spec)?;
    let shared = shared_columns(config, 1)?;
    routed(config, &mut spec, Routing { shared, dense: 1, scale: 2.5, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
