//! GPT-2: LayerNorm, learned positions, one fused `c_attn`, a plain feed-forward part. Also DistilGPT-2,
//! DialoGPT, ... GPT-BigCode (SantaCoder, StarCoder): the same with one key/value head and weights the usual
//! way round.
//!
//! Variants: `transformer.` prefix or none, with Conv1D weights stored `[inputs, outputs]`; GGUF's names with
//! plain
//! `[outputs, inputs]` weights. The causal-mask buffers of old files are ignored.

use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

pub(super) const NAMES: Names<'_> = Names {
    prefixes: &["transformer.", ""],
    block: "h.{}.",
    slots: &[
        (Slot::TokenEmbed, "wte"),
        (Slot::PositionEmbed, "wpe"),
        (Slot::AttnNorm, "ln_1"),
        (Slot::Qkv, "attn.c_attn"),
        (Slot::AttnOut, "attn.c_proj"),
        (Slot::MlpNorm, "ln_2"),
        (Slot::Up, "mlp.c_fc"),
        (Slot::Down, "mlp.c_proj"),
        (Slot::FinalNorm, "ln_f"),
        (Slot::Head, "/lm_head"),
    ],
    ignored: &["*h.*.attn.bias", "*h.*.attn.masked_bias", "lm_head.weight"],
    transposed: true,
    ..Names::NONE
};

/// `model_type` gpt2.
pub const GPT2: Described = Described::new(&["gpt2"], NAMES, gpt2);

/// `model_type` gpt_bigcode.
pub const GPT_BIGCODE: Described =
    Described::new(&["gpt_bigcode"], Names { transposed: false, ..NAMES }, bigcode).layout(|config| {
        match config.flag(&["multi_query"], true) {
            Ok(false) => QkvLayout::PerHead,
            _ => QkvLayout::Concat,
        }
    });

fn gpt2(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    refuse(config, "add_cross_attention")?;
    let mut spec = decoder(config, Switches { positions: 1024, ..GPT_LIKE })?;
    spec.learn_positions();
    let scaled = config.flag(&["scale_attn_weights"], true)?;
    let by_layer = config.flag(&["scale_attn_by_inverse_layer_idx"], false)?;
    spec.each(|layer, b| {
        let root = if scaled { (b.heads.k_dim as f64).sqrt() } else { 1.0 };
        b.scores.scale = (1.0 / root / if by_layer { (layer + 1) as f64 } else { 1.0 }) as f32;
    });
    Ok(spec)
}

fn bigcode(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = gpt2(config, catalog)?;
    if config.flag(&["multi_query"], true)? {
        spec.each(|_, b| b.heads.kv_heads = 1);
    }
    Ok(spec)
}
