//! OLMo 2 and EXAONE 4: LLaMA's blocks with norms behind both parts instead of before, and over queries and
//! keys (OLMo 2: over all heads at once). EXAONE 4 rotates only the blocks that have a window.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, sliding_layers};
use crate::policy::*;

/// Names of families that norm what attention gives under the name that LLaMA gives the norm before the
/// feed-forward part.
const POST_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::AttnPostNorm, "post_attention_layernorm"),
        (Slot::MlpPostNorm, "post_feedforward_layernorm"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` olmo2.
pub const OLMO2: Described = Described::new(&["olmo2"], POST_NAMES, olmo2);

/// `model_type` exaone4.
pub const EXAONE4: Described = Described::new(&["exaone4"], POST_NAMES, exaone4);

/// Norms after both parts instead of before, and over queries and keys.
fn post_normed(config: &ModelConfig, catalog: Catalog<'_>, span: QkSpan) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
    spec.each(|_, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm { norm, span });
        (b.attn_post, b.mlp_post) = (b.attn_norm.take(), b.mlp_norm.take());
    });
    Ok(spec)
}

fn olmo2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    post_normed(config, catalog, QkSpan::Whole)
}

/// Only the blocks with a window rotate, as far as any block has one.
fn exaone4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = post_normed(config, catalog, QkSpan::Head)?;
    let layers = spec.blocks.len();
    let pattern = pattern(config)?;
    let by_pattern = |i: usize| !pattern.is_empty() && pattern[i % pattern.len()] && i + 1 < layers;
    spec.slide(config, by_pattern)?;
    if config.get("sliding_window").is_some() {
        let local = sliding_layers(config, layers)?;
        spec.each(|i, b| {
            if !local.as_ref().map_or_else(|| by_pattern(i), |l| l[i]) {
                b.rope = None;
            }
        });
    }
    Ok(spec)
}

/// Which blocks of a period have a window: `4` and `"LLLG"` both say the first three of four.
fn pattern(config: &ModelConfig) -> Result<Vec<bool>> {
    match config.get("sliding_window_pattern").and_then(|v| v.as_str()) {
        Some(letters) => Ok(letters.chars().map(|c| c == 'L').collect()),
        None => match config.size_opt(&["sliding_window_pattern"])? {
            Some(n) => Ok((1..=n.min(MAX_LAYERS)).map(|i| i < n).collect()),
            None => Ok(Vec::new()),
        },
    }
}
