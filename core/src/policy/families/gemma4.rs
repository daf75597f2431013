//! Gemma 4's text part: Gemma 3's blocks, whose global ones have wider heads that turn in part, values that
//! are normed or that are the keys, later blocks that read the keys and values of an earlier one, inputs of
//! every block's own, and experts next to the dense part.

use super::gemma::SANDWICH;
use crate::params::{Act, NormKind, Router, RouterScore};
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, kv_heads};
use crate::policy::*;
use serde_json::json;

pub(super) const GEMMA4_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::LayerEmbed, "embed_tokens_per_layer"),
        (Slot::LayerProject, "per_layer_model_projection"),
        (Slot::LayerProjectNorm, "per_layer_projection_norm"),
        (Slot::AttnPostNorm, "post_attention_layernorm"),
        (Slot::MlpNorm, "pre_feedforward_layernorm"),
        (Slot::Router, "router.proj"),
        (Slot::RouterNorm, "=router.scale"),
        (Slot::ExpertFactors, "=router.per_expert_scale"),
        (Slot::ExpertNorm, "pre_feedforward_layernorm_2"),
        (Slot::ExpertUp, "=experts.gate_up_proj"),
        (Slot::ExpertDown, "=experts.down_proj"),
        (Slot::DensePostNorm, "post_feedforward_layernorm_1"),
        (Slot::ExpertPostNorm, "post_feedforward_layernorm_2"),
        (Slot::MlpPostNorm, "post_feedforward_layernorm"),
        (Slot::LayerGate, "per_layer_input_gate"),
        (Slot::LayerOut, "per_layer_projection"),
        (Slot::LayerOutNorm, "post_per_layer_input_norm"),
        (Slot::EndFactor, "=layer_scalar"),
    ],
    ignored: &[
        "*rotary_emb.inv_freq",
        "lm_head.weight",
        "*.lm_head.weight",
        // Of blocks that read another's keys and values.
        "*.self_attn.k_proj.weight",
        "*.self_attn.v_proj.weight",
        "*.self_attn.k_norm.weight",
        "*.attn_k.weight",
        "*.attn_v.weight",
        "*.attn_k_norm.weight",
        // The part of a head that turns, which the configuration says.
        "rope_freqs.weight",
    ],
    ..SANDWICH
};

/// `model_type` gemma4_text.
pub const GEMMA4: Described =
    Described { name: "gemma4", ..Described::new(&["gemma4_text"], GEMMA4_NAMES, gemma4) };

/// The configuration with the library's defaults in the place of what is not there.
fn with_defaults(config: &ModelConfig) -> ModelConfig {
    let numbers = [
        ("vocab_size", 262_144),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 30),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("global_head_dim", 512),
        ("max_position_embeddings", 131_072),
        ("sliding_window", 512),
        ("vocab_size_per_layer_input", 262_144),
        ("hidden_size_per_layer_input", 256),
    ];
    let ropes = json!({
        "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
        "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6 },
    });
    let defaults = numbers.into_iter().map(|(field, value)| (field, json!(value)));
    let defaults = defaults.chain([("rope_parameters", ropes)]);
    text_part::with_defaults(config.clone(), defaults)
}

fn gemma4(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_defaults(config);
    if let Some(way @ ("all" | "true")) = config.text_opt(&["use_bidirectional_attention"])? {
        let allowed = "\"vision\", which is of images alone";
        return Err(Error::config("use_bidirectional_attention", format!("\"{way}\""), allowed));
    }
    let switches = Switches { act: Act::GeluTanh, tied: true, positions: 131_072, ..LLAMA_LIKE };
    let mut spec = decoder(config, switches)?;
    spec.embed.scale = Some((spec.hidden as f64).sqrt() as f32);
    spec.slide(config, |i| (i + 1) % 6 != 0)?;
    // The last block sees everything, whatever the list says.
    spec.blocks.last_mut().into_iter().for_each(|block| block.scores.window = None);
    attention(config, catalog, &mut spec)?;
    shared_keys(config, &mut spec)?;
    inputs(config, &mut spec)?;
    if config.flag(&["enable_moe_block"], false)? {
        experts(config, &mut spec)?;
    }
    let cap = config.number_opt(&["final_logit_softcapping"])?.filter(|cap| *cap > 0.0);
    if let HeadSpec::Tokens { cap: of_head, .. } = &mut spec.head {
        *of_head = cap.map(|cap| cap as f32);
    }
    let factor = GEMMA4_NAMES.has(config, catalog, Slot::EndFactor, Part::Weight);
    let bias = config.flag(&["attention_bias"], false)?;
    spec.each(|_, b| {
        (b.attn_post, b.mlp_post) = (b.attn_norm, b.mlp_norm);
        b.end_factor = factor;
        b.bias = [bias, bias, false, false];
    });
    Ok(spec)
}

/// Heads of either kind of block, their norms and rotations; scores have no factor.
fn attention(config: &ModelConfig, catalog: Catalog<'_>, spec: &mut ModelSpec) -> Result<()> {
    let (local, global) = (config.size(&["head_dim"])?, config.size(&["global_head_dim"])?);
    let same = config.flag(&["attention_k_eq_v"], false)?;
    let heads = spec.blocks.first().map_or(0, |b| b.heads.heads);
    let of_global = match config.size_opt(&["num_global_key_value_heads"])?.filter(|_| same) {
        Some(count) => Some(kv_heads(heads, count)?),
        None => None,
    };
    spec.ropes = rope::local_and_global(config, catalog, [local, global], spec.max_positions)?;
    spec.each(|_, b| {
        let wide = b.scores.window.is_none();
        b.scores.scale = 1.0;
        b.rope = Some(usize::from(wide));
        if wide {
            (b.heads.k_dim, b.heads.v_dim) = (global, global);
            b.heads.kv_heads = of_global.unwrap_or(b.heads.kv_heads);
        }
        b.keys_are_values = wide && same;
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.value_norm = b.attn_norm.map(|norm| NormSpec { weighted: false, ..norm });
    });
    Ok(())
}

/// The last blocks read the keys and values of the last one before them that is of their kind.
pub(super) fn shared_keys(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let layers = spec.blocks.len();
    let count = config.index(&["num_kv_shared_layers"], 0)?;
    let double = config.flag(&["use_double_wide_mlp"], false)?;
    let Some(first) = layers.checked_sub(count).filter(|first| *first > 0) else {
        return Err(Error::config("num_kv_shared_layers", count, format!("less than {layers}, the layers")));
    };
    let windows: Vec<_> = spec.blocks.iter().map(|b| b.scores.window).collect();
    for (layer, block) in spec.blocks.iter_mut().enumerate().skip(first) {
        let from = (0..first).rev().find(|earlier| windows[*earlier] == windows[layer]);
        let Some(from) = from else {
            let allowed = format!("a number that leaves a block of the kind of block {layer}");
            return Err(Error::config("num_kv_shared_layers", count, allowed));
        };
        (block.kv_from, block.keys_are_values, block.value_norm) = (Some(from), false, None);
        if double {
            block.mlp.inner = block.mlp.inner.saturating_mul(2);
        }
    }
    Ok(())
}

/// Inputs of every block's own, where the configuration has a width for them.
fn inputs(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let width = config.index(&["hidden_size_per_layer_input"], 0)?;
    let Some(norm) = spec.blocks.first().and_then(|b| b.attn_norm).filter(|_| width > 0) else {
        return Ok(());
    };
    let rows = config.size(&["vocab_size_per_layer_input"])?;
    if rows < spec.vocab {
        let allowed = format!("at least {}, the vocabulary", spec.vocab);
        return Err(Error::config("vocab_size_per_layer_input", rows, allowed));
    }
    spec.embed.layers = Some(LayerInputs::new(rows, width, norm));
    spec.each(|_, b| b.input = Some(LayerInput::new(width, b.mlp.act, norm)));
    Ok(())
}

/// Experts next to the dense part of every block.
fn experts(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let (count, top_k) = (config.size(&["num_experts"])?, config.size(&["top_k_experts"])?);
    check_experts(count, spec.blocks.len())?;
    let most = count.min(Router::MAX_TOP_K);
    if top_k > most {
        return Err(Error::config("top_k_experts", top_k, format!("at most {most}")));
    }
    let router = Router { renormalise: true, ..Router::new(count, top_k, RouterScore::Softmax) };
    let inner = config.size(&["moe_intermediate_size"])?;
    let scale = (spec.hidden as f64).powf(-0.5) as f32;
    let eps = spec.blocks.first().and_then(|b| b.attn_norm).map_or(1e-6, |norm| norm.eps);
    let norm = NormSpec { kind: NormKind::Rms, eps, bias: false, plus_one: false, weighted: true };
    let apart = Some(ApartSpec::new(norm, scale));
    spec.each(|_, b| b.moe = Some(MoeSpec { apart, factors: true, ..MoeSpec::new(router, inner) }));
    Ok(())
}
