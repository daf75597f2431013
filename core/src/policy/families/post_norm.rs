//! OLMo 2 and 3 and EXAONE 4: LLaMA's blocks with norms behind both parts instead of before, and over queries
//! and keys (OLMo: over all heads at once). OLMo 3 stretches the rotation of the blocks without a window
//! alone, EXAONE 4 rotates only those with one.

use super::llama::{NAMES, llama_as};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, sliding_layers, with_window};
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

/// `model_type` olmo3.
pub const OLMO3: Described = Described::new(&["olmo3"], POST_NAMES, olmo3);

/// `model_type` exaone4.
pub const EXAONE4: Described = Described::new(&["exaone4"], POST_NAMES, exaone4);

/// Norms after both parts instead of before, and over queries and keys.
fn post_normed(config: &ModelConfig, catalog: Catalog<'_>, span: QkSpan) -> Result<ModelSpec> {
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, ..LLAMA_LIKE })?;
    spec.each(|_, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, span));
        (b.attn_post, b.mlp_post) = (b.attn_norm.take(), b.mlp_norm.take());
    });
    Ok(spec)
}

fn olmo2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    post_normed(config, catalog, QkSpan::Whole)
}

/// Three of four blocks have a window, and a rotation that is not stretched.
fn olmo3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_window(config, 4096)?;
    // The newer layout has a section for either kind of block.
    let sections = ["rope_parameters.full_attention", "rope_parameters.sliding_attention"];
    let of = |section: &str| -> Result<Option<ModelConfig>> {
        let Some(own) = config.get(section) else { return Ok(None) };
        Ok(Some(rope::with_theta(
            &ModelConfig::new(serde_json::json!({ "rope_parameters": own }))?,
            500_000.0,
        )))
    };
    let flat = config.with(
        "rope_parameters",
        match of(sections[0])? {
            Some(own) => own.get("rope_parameters").cloned().unwrap_or_default(),
            None => config.get("rope_parameters").cloned().unwrap_or_default(),
        },
    );
    let mut spec = olmo2(&rope::with_theta(&flat, 500_000.0), catalog)?;
    spec.slide(config, |i| (i + 1) % 4 != 0)?;
    let global = spec.ropes.first().cloned().ok_or_else(|| Error::internal("a rotation"))?;
    let local = match of(sections[1])? {
        Some(own) => rope::read(&own, catalog, RopeStyle::Half, global.columns, spec.max_positions)?,
        None => RopeSpec { scaling: RopeScaling::None, ..global.clone() },
    };
    spec.ropes = vec![global, local];
    spec.each(|_, b| b.rope = Some(b.scores.window.is_some().into()));
    Ok(spec)
}

/// Only the blocks with a window rotate, as far as any block has one.
fn exaone4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = post_normed(config, catalog, QkSpan::Head)?;
    local_rotations(config, &mut spec)?;
    Ok(spec)
}

/// EXAONE's windows, and rotations in blocks with one.
pub(super) fn local_rotations(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
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
    Ok(())
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
