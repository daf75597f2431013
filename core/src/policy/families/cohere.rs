//! Command R (`cohere`) and Command R7B, A and Aya (`cohere2`): one LayerNorm without bias before attention
//! and a gated feed-forward part side by side, neighbours rotated, logits scaled, the token table as head.
//! The younger one has a window in three of four blocks, and rotates only these. Command A+ (`cohere2_moe`)
//! has experts in the feed-forward part of all but the first blocks.

use super::llama::NAMES;
use crate::params::NormKind;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, with_window};
use crate::policy::moe::{BY_LOGIT, Routing, routed, shared_columns};
use crate::policy::*;

/// `model_type` cohere.
pub const COHERE: Described = Described::new(&["cohere"], NAMES, cohere);

/// `model_type` cohere2.
pub const COHERE2: Described = Described::new(&["cohere2"], NAMES, cohere2);

const EXPERT_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.shared_experts.gate_proj + mlp.shared_experts.up_proj"),
        (Slot::Down, "mlp.down_proj ; mlp.shared_experts.down_proj"),
        (Slot::Router, "mlp.gate"),
        (Slot::ExpertUp, "mlp.experts.{}.gate_proj + mlp.experts.{}.up_proj ; =mlp.experts.gate_up_proj"),
        (Slot::ExpertDown, "mlp.experts.{}.down_proj ; =mlp.experts.down_proj"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` cohere2_moe.
pub const COHERE2_MOE: Described = Described::new(&["cohere2_moe"], EXPERT_NAMES, cohere2_moe);

fn cohere(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config =
        &rope::with_theta(config, if config.model_type() == "cohere" { 500_000.0 } else { 10_000.0 });
    // One tensor for all heads, each of which has values of its own.
    refuse(config, "use_qk_norm")?;
    let switches = Switches {
        norm: NormKind::Layer,
        eps: 1e-5,
        placement: Placement::Parallel,
        tied: true,
        positions: 8192,
        ..LLAMA_LIKE
    };
    let mut spec = decoder(config, switches)?;
    let bias = config.flag(&["attention_bias"], false)?;
    let factor = config.positive(&["logit_scale"], 0.0625)? as f32;
    spec.each(|_, b| {
        b.attn_norm = b.attn_norm.map(|norm| NormSpec { bias: false, ..norm });
        b.mlp_norm = None;
        b.bias = [bias, bias, false, false];
    });
    spec.final_norm = spec.final_norm.map(|norm| NormSpec { bias: false, ..norm });
    if let HeadSpec::Tokens { scale, .. } = &mut spec.head {
        *scale = factor;
    }
    spec.rotate(config, catalog, RopeStyle::Interleaved, None)?;
    Ok(spec)
}

fn cohere2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_window(config, 4096)?;
    let mut spec = cohere(config, catalog)?;
    let every = config.size_opt(&["sliding_window_pattern"])?.unwrap_or(4);
    spec.slide(config, |i| (i + 1) % every != 0)?;
    spec.each(|_, b| b.rope = b.rope.filter(|_| b.scores.window.is_some()));
    Ok(spec)
}

fn cohere2_moe(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_window(config, 4096)?;
    let mut spec = cohere(config, catalog)?;
    if config.get("rms_norm_eps").is_some() {
        let rms = |norm: Option<NormSpec>| norm.map(|norm| NormSpec { kind: NormKind::Rms, ..norm });
        spec.each(|_, b| b.attn_norm = rms(b.attn_norm));
        spec.final_norm = rms(spec.final_norm);
    }
    // Logits of the chosen alone make weights: a softmax of them adds up to 1 in any case.
    let softmax = config.text_opt(&["expert_selection_fn"])?.is_none_or(|name| name == "softmax");
    let renormalise = config.flag(&["norm_topk_prob"], true)? || softmax;
    let join = match config.text_opt(&["shared_expert_combination_strategy"])? {
        None | Some("average") => Join::Mean,
        Some("sum") => Join::Add,
        Some(other) => {
            let field = "shared_expert_combination_strategy";
            return Err(Error::config(field, format!("\"{other}\""), "\"average\" or \"sum\""));
        }
    };
    let shared = shared_columns(config, 0)?;
    let join = if shared > 0 { join } else { Join::Add };
    let dense = config.size_opt(&["prefix_dense_intermediate_size"])?;
    routed(&config.with("norm_topk_prob", renormalise), &mut spec, Routing { shared, join, ..BY_LOGIT })?;
    // The first blocks without experts have a pattern of windows of their own, the others begin anew.
    let of = |field, default| Ok::<_, Error>(config.size_opt(&[field])?.unwrap_or(default));
    let every = of("sliding_window_pattern", 4)?;
    let every_dense = of("prefix_dense_sliding_window_pattern", 1)?;
    let prefix = config.index(&["first_k_dense_replace"], 0)?;
    let slides = |i: usize| match i < prefix {
        true => !(i + 1).is_multiple_of(every_dense),
        false => !(i - prefix + 1).is_multiple_of(every),
    };
    spec.slide(config, slides)?;
    spec.each(|_, b| {
        let plain = b.moe.is_none();
        b.rope = b.rope.filter(|_| b.scores.window.is_some() || plain && every_dense == 1);
        if let (true, Some(inner)) = (plain, dense) {
            b.mlp.inner = inner;
        }
    });
    Ok(spec)
}
