//! BLOOM: linear position bias, a norm over the embeddings, q, k and v one after the other for every head.

use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` bloom.
pub const BLOOM: Described = Described::new(
    &["bloom"],
    Names {
        prefixes: &["transformer.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::TokenEmbed, "word_embeddings"),
            (Slot::EmbedNorm, "word_embeddings_layernorm"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "self_attention.query_key_value"),
            (Slot::AttnOut, "self_attention.dense"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Up, "mlp.dense_h_to_4h"),
            (Slot::Down, "mlp.dense_4h_to_h"),
            (Slot::FinalNorm, "ln_f"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["lm_head.weight"],
        ..Names::NONE
    },
    bloom,
)
// GGUF's converter puts q, k and v one after the other.
.layout(|config| if config.is_gguf() { QkvLayout::Concat } else { QkvLayout::PerHead });

fn bloom(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    let normed = config.flag(&["apply_residual_connection_post_layernorm"], false)?;
    let placement = if normed { Placement::NormedResidual } else { Placement::Pre };
    let mut spec = decoder(config, Switches { placement, ..GPT_LIKE })?;
    spec.embed.norm = spec.final_norm;
    spec.alibi(8.0, 1.0)?;
    Ok(spec)
}
