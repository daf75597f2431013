//! MiniMax 2: Mixtral's names, norms over all query and all key heads, a rotation of a part of every head,
//! and experts chosen by sigmoids with a bias.

use super::llama::{NAMES, llama_as};
use super::mixtral::EXPERTS;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches};
use crate::policy::moe::{BY_BIASED_SIGMOID, Routing, routed};
use crate::policy::*;

/// `model_type` minimax_m2.
pub const MINIMAX_M2: Described = Described::new(
    &["minimax_m2"],
    Names {
        slots: &[
            EXPERTS[0],
            EXPERTS[1],
            EXPERTS[2],
            (Slot::ChoiceBias, "=block_sparse_moe.e_score_correction_bias"),
        ],
        base: NAMES.slots,
        ..NAMES
    },
    minimax_m2,
);

fn minimax_m2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &rope::with_theta(config, 5_000_000.0);
    let mut spec = llama_as(config, catalog, Switches { positions: 196_608, ..LLAMA_LIKE })?;
    if config.flag(&["use_qk_norm"], true)? {
        spec.each(|_, b| b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Whole)));
    }
    match config.size_opt(&["rotary_dim"])? {
        Some(columns) => spec.rotate(config, catalog, RopeStyle::Half, Some(columns))?,
        None => spec.rotate_part(config, catalog, RopeStyle::Half, 1.0)?,
    }
    let choice_bias = config.flag(&["use_routing_bias"], true)?;
    routed(config, &mut spec, Routing { choice_bias, groups: None, ..BY_BIASED_SIGMOID })?;
    Ok(spec)
}
