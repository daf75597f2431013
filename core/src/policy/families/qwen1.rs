//! Qwen of the first generation: LLaMA's blocks with one fused, biased q|k|v and the activation on the second
//! matmul. Source: its published configuration and modelling file.

use crate::policy::describe::{Described, LLAMA_LIKE, decoder};
use crate::policy::*;

/// `model_type` qwen.
pub const QWEN: Described = Described::new(
    &["qwen"],
    Names {
        prefixes: &["transformer.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::TokenEmbed, "wte"),
            (Slot::AttnNorm, "ln_1"),
            (Slot::Qkv, "attn.c_attn"),
            (Slot::AttnOut, "attn.c_proj"),
            (Slot::MlpNorm, "ln_2"),
            // The activation is on the second one.
            (Slot::Up, "mlp.w2 + mlp.w1"),
            (Slot::Down, "mlp.c_proj"),
            (Slot::FinalNorm, "ln_f"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["*rotary_emb.inv_freq", "*.attn.masked_bias", "lm_head.weight"],
        ..Names::NONE
    },
    qwen,
);

fn qwen(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, LLAMA_LIKE)?;
    // Half of what is configured; stretched frequencies and scores begin beyond the trained length, which is
    // the limit.
    let inner = spec.blocks.first().map_or(0, |b| b.mlp.inner / 2);
    spec.max_positions =
        config.size_opt(&["seq_length"])?.unwrap_or(spec.max_positions).min(spec.max_positions);
    let other = !config.flag(&["no_bias"], true)?;
    spec.each(|_, b| {
        b.mlp.inner = inner;
        b.bias = [true, other, other, other];
    });
    spec.rotate_part(config, catalog, RopeStyle::Half, 1.0)?;
    Ok(spec)
}
