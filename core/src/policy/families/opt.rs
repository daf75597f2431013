//! OPT: LayerNorm before or after, learned positions from row 2, a plain ReLU feed-forward part. Also
//! Galactica's models whose norms have weights.
//!
//! Variants: `model.decoder.` (causal) and `decoder.` (bare) prefixes. OPT-350m has post-norms, a narrow
//! token table and no final norm.

use crate::params::Act;
use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` opt.
pub const OPT: Described = Described::new(
    &["opt"],
    Names {
        prefixes: &["model.decoder.", "decoder."],
        block: "layers.{}.",
        slots: &[
            (Slot::TokenEmbed, "embed_tokens"),
            (Slot::PositionEmbed, "embed_positions"),
            (Slot::ProjectIn, "project_in"),
            (Slot::AttnNorm, "self_attn_layer_norm"),
            (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj"),
            (Slot::AttnOut, "self_attn.out_proj"),
            (Slot::MlpNorm, "final_layer_norm"),
            (Slot::Up, "fc1"),
            (Slot::Down, "fc2"),
            (Slot::FinalNorm, "final_layer_norm"),
            (Slot::ProjectOut, "project_out"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["lm_head.weight"],
        ..Names::NONE
    },
    spec,
);

fn spec(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    if !config.flag(&["layer_norm_elementwise_affine"], true)? {
        return Err(Error::config("layer_norm_elementwise_affine", false, "true (norms with a weight)"));
    }
    let before = config.flag(&["do_layer_norm_before"], true)?;
    let placement = if before { Placement::Pre } else { Placement::Post };
    let mut spec = decoder(config, Switches { act: Act::Relu, placement, ..GPT_LIKE })?;
    let width = config.size_opt(&["word_embed_proj_dim"])?.unwrap_or(spec.hidden);
    let bias = config.flag(&["enable_bias"], true)?;
    // The reference never reads an epsilon: torch's own default.
    let plain = |norm: &mut Option<NormSpec>| norm.iter_mut().for_each(|n| n.eps = 1e-5);
    spec.each(|_, b| {
        b.bias = [bias; 4];
        plain(&mut b.attn_norm);
        plain(&mut b.mlp_norm);
    });
    plain(&mut spec.final_norm);
    spec.embed.width = width;
    spec.embed.positions = Some(LearnedPositions { rows: spec.max_positions + 2, offset: 2 });
    spec.project_out = (width != spec.hidden).then_some(width);
    if !before || config.flag(&["_remove_final_layer_norm"], false)? {
        spec.final_norm = None;
    }
    Ok(spec)
}
