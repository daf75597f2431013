//! Gemma 3n's text part: several residual streams of which a block computes one, a low-rank path next to
//! attention, inputs of every block's own, gates that are cut off in the first blocks, values that are
//! normed, and last blocks that read the keys and values of earlier ones.

use super::gemma4::{GEMMA4_NAMES, shared_keys};
use crate::params::Act;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, refuse_gguf};
use crate::policy::*;
use serde_json::{Value, json};

const GEMMA3N_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::AltupProject, "altup_projections.{}"),
        (Slot::AltupNorm, "altup.router_norm"),
        (Slot::AltupRouter, "altup.modality_router"),
        (Slot::AltupPredict, "altup.prediction_coefs"),
        (Slot::LaurelLeft, "laurel.linear_left"),
        (Slot::LaurelRight, "laurel.linear_right"),
        (Slot::LaurelNorm, "laurel.post_laurel_norm"),
        (Slot::AltupCorrect, "altup.correction_coefs"),
        (Slot::AltupScale, "=altup.correct_output_scale"),
        (Slot::AltupUnembed, "altup_unembed_projections.{}"),
        (Slot::LayerEmbed, "embed_tokens_per_layer"),
        (Slot::LayerProject, "per_layer_model_projection"),
        (Slot::LayerProjectNorm, "per_layer_projection_norm"),
        (Slot::AttnPostNorm, "post_attention_layernorm"),
        (Slot::MlpNorm, "pre_feedforward_layernorm"),
        (Slot::MlpPostNorm, "post_feedforward_layernorm"),
        (Slot::LayerGate, "per_layer_input_gate"),
        (Slot::LayerOut, "per_layer_projection"),
        (Slot::LayerOutNorm, "post_per_layer_input_norm"),
    ],
    ..GEMMA4_NAMES
};

/// `model_type` gemma3n_text.
pub const GEMMA3N: Described =
    Described { name: "gemma3n", ..Described::new(&["gemma3n_text"], GEMMA3N_NAMES, gemma3n) };

/// The configuration with the library's defaults in the place of what is not there.
fn with_defaults(config: &ModelConfig) -> ModelConfig {
    let defaults = [
        ("vocab_size", json!(262_400)),
        ("hidden_size", json!(2048)),
        ("intermediate_size", json!(16_384)),
        ("num_hidden_layers", json!(35)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(32_768)),
        ("sliding_window", json!(512)),
        ("vocab_size_per_layer_input", json!(262_144)),
        ("hidden_size_per_layer_input", json!(256)),
        ("num_kv_shared_layers", json!(15)),
        ("altup_num_inputs", json!(4)),
        ("altup_coef_clip", json!(120.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("laurel_rank", json!(64)),
    ];
    text_part::with_defaults(config.clone(), defaults)
}

fn gemma3n(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let config = &with_defaults(config);
    let layers = config.size(&["num_hidden_layers"])?;
    let inner = columns(config, layers)?;
    let uniform = &config.with("intermediate_size", inner.first().copied().unwrap_or(1));
    let switches = Switches { act: Act::GeluTanh, tied: true, positions: 32_768, ..LLAMA_LIKE };
    let mut spec = decoder(uniform, switches)?;
    spec.embed.scale = Some((spec.hidden as f64).sqrt() as f32);
    spec.slide(config, |i| (i + 1) % 5 != 0)?;
    let width = spec.blocks.first().map_or(0, |b| b.heads.k_dim);
    spec.ropes = rope::local_and_global(config, catalog, [width; 2], spec.max_positions)?;
    let cutoffs = cutoffs(config, layers)?;
    let bias = config.flag(&["attention_bias"], false)?;
    spec.each(|i, b| {
        (b.attn_post, b.mlp_post) = (b.attn_norm, b.mlp_norm);
        b.scores.scale = 1.0;
        b.rope = Some(usize::from(b.scores.window.is_none()));
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.value_norm = b.attn_norm.map(|norm| NormSpec { weighted: false, ..norm });
        b.bias = [bias, bias, false, false];
        (b.mlp.inner, b.mlp.cutoff) = (inner[i], cutoffs[i]);
    });
    shared_keys(config, &mut spec)?;
    streams(config, &mut spec)?;
    inputs(config, &mut spec)?;
    let cap = config.number_opt(&["final_logit_softcapping"])?.filter(|cap| *cap > 0.0);
    if let HeadSpec::Tokens { cap: of_head, .. } = &mut spec.head {
        *of_head = cap.map(|cap| cap as f32);
    }
    Ok(spec)
}

/// Columns of every block's feed-forward part: one number, or a list.
fn columns(config: &ModelConfig, layers: usize) -> Result<Vec<usize>> {
    let all = match config.get("intermediate_size") {
        Some(Value::Array(_)) => config.sizes("intermediate_size")?,
        _ => vec![config.size(&["intermediate_size"])?; layers],
    };
    match all.len() == layers && all.iter().all(|n| *n > 0) {
        true => Ok(all),
        false => {
            let found = config.get("intermediate_size").map_or_else(String::new, Value::to_string);
            let allowed = format!("a number above 0, or {layers} of them");
            Err(Error::config("intermediate_size", found, allowed))
        }
    }
}

/// Deviations above the mean at which the gates of every block are cut off; by default 95 of 100 in the first
/// ten blocks of a model that has more.
fn cutoffs(config: &ModelConfig, layers: usize) -> Result<Vec<Option<f32>>> {
    let Some(list) = config.get("activation_sparsity_pattern") else {
        let sparse = if layers > 10 { 10 } else { 0 };
        return Ok((0..layers).map(|i| (i < sparse).then(|| quantile(0.95))).collect());
    };
    let share = |v: &Value| v.as_f64().filter(|share| (0.0..1.0).contains(share));
    let shares: Option<Vec<f64>> = list.as_array().and_then(|list| list.iter().map(share).collect());
    match shares {
        Some(shares) if shares.len() == layers => {
            Ok(shares.into_iter().map(|share| (share > 0.0).then(|| quantile(share))).collect())
        }
        _ => {
            let allowed = format!("{layers} numbers from 0 to below 1");
            Err(Error::config("activation_sparsity_pattern", list, allowed))
        }
    }
}

/// Deviations from the mean of a Gaussian below which this share of it lies, by halving.
fn quantile(share: f64) -> f32 {
    // The library has the share in f32.
    let share = f64::from(share as f32);
    let (mut below, mut above) = (-40.0f64, 40.0f64);
    for _ in 0..80 {
        let middle = 0.5 * (below + above);
        match 0.5 * libm::erfc(-middle * std::f64::consts::FRAC_1_SQRT_2) < share {
            true => below = middle,
            false => above = middle,
        }
    }
    above as f32
}

/// Residual streams, and the path next to attention.
fn streams(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let inputs = config.size(&["altup_num_inputs"])?;
    let active = config.index(&["altup_active_idx"], 0)?;
    if !(2..=64).contains(&inputs) {
        return Err(Error::config("altup_num_inputs", inputs, "2 to 64"));
    }
    if active >= inputs {
        return Err(Error::config("altup_active_idx", active, format!("less than {inputs}, the streams")));
    }
    let clip = match config.get("altup_coef_clip") {
        Some(_) => Some(config.positive(&["altup_coef_clip"], 120.0)? as f32),
        None => None,
    };
    let scaled = config.flag(&["altup_correct_scale"], true)?;
    let rank = config.size(&["laurel_rank"])?;
    let Some(norm) = spec.final_norm else { return Err(Error::internal("a decoder without a norm")) };
    spec.each(|_, b| {
        b.altup = Some(AltupSpec { active, clip, scaled, ..AltupSpec::new(inputs, norm) });
        b.laurel = Some(LaurelSpec::new(rank, norm));
    });
    Ok(())
}

/// Inputs of every block's own, whose table may end before the vocabulary's tokens of images and sound.
fn inputs(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    let width = config.size(&["hidden_size_per_layer_input"])?;
    let rows = config.size(&["vocab_size_per_layer_input"])?;
    let Some(norm) = spec.final_norm else { return Err(Error::internal("a decoder without a norm")) };
    if rows < spec.vocab {
        let range = format!("{rows} to {}", spec.vocab - 1);
        spec.assumed
            .push(format!("tokens {range} are of images and sound, and have no rows of blocks' own inputs"));
    }
    spec.embed.layers = Some(LayerInputs::new(rows, width, norm));
    spec.each(|_, b| b.input = Some(LayerInput::new(width, b.mlp.act, norm)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_of_a_gaussian() {
        assert!(quantile(0.5).abs() < 1e-15, "{}", quantile(0.5));
        assert!((quantile(0.95) - 1.644_853_6).abs() < 3e-7);
        assert!((quantile(0.25) + quantile(0.75)).abs() < 1e-7 && quantile(0.25) < -0.67);
    }
}
