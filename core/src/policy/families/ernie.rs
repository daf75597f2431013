//! ERNIE 4.5: LLaMA's blocks that rotate neighbouring columns; with `use_bias` every matmul has a bias. Those
//! with experts choose by a softmax and a bias.

use super::deepseek;
use super::llama::{NAMES, llama_as};
use crate::params::RouterScore;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed, shared_columns};
use crate::policy::*;

/// `model_type` ernie4_5.
pub const ERNIE4_5: Described = Described::new(&["ernie4_5"], NAMES, ernie4_5);

/// `model_type` ernie4_5_moe.
pub const ERNIE4_5_MOE: Described = Described::new(
    &["ernie4_5_moe"],
    // Blocks that predict further tokens stand apart.
    Names { ignored: &["lm_head.weight", "*rotary_emb.inv_freq", "model.mtp_*"], ..deepseek::NAMES },
    ernie4_5_moe,
);

fn ernie4_5(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(config, 500_000.0);
    let defaults = Switches { eps: 1e-5, tied: true, positions: 131_072, ..LLAMA_LIKE };
    let mut spec = llama_as(config, catalog, defaults)?;
    let bias = config.flag(&["use_bias"], false)?;
    spec.each(|_, b| b.bias = [bias; 4]);
    spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
    Ok(spec)
}

fn ernie4_5_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    // Experts would have biases, too: no published model does.
    refuse(config, "use_bias")?;
    // Below the sum of any weights that a softmax over experts leaves.
    let least = config.positive(&["moe_norm_min"], 1e-12)?;
    if least > 1e-6 {
        return Err(Error::config("moe_norm_min", least, "at most 1e-6"));
    }
    let mut spec = ernie4_5(config, catalog)?;
    let (score, shared) = (RouterScore::Softmax, shared_columns(config, 2)?);
    routed(config, &mut spec, Routing { score, groups: None, shared, dense: 1, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
