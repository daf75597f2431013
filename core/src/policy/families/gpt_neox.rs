//! GPT-NeoX, Pythia, RedPajama, Dolly: LayerNorms before attention and feed-forward part side by side (or in
//! turn), partial rotation, q, k and v one after the other for every head, an own head.

use crate::params::Act;
use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` gpt_neox.
pub const GPT_NEOX: Described = Described::new(
    &["gpt_neox"],
    Names {
        prefixes: &["gpt_neox.", ""],
        block: "layers.{}.",
        slots: &[
            (Slot::TokenEmbed, "embed_in"),
            (Slot::AttnNorm, "input_layernorm"),
            (Slot::Qkv, "attention.query_key_value"),
            (Slot::AttnOut, "attention.dense"),
            (Slot::MlpNorm, "post_attention_layernorm"),
            (Slot::Up, "mlp.dense_h_to_4h"),
            (Slot::Down, "mlp.dense_4h_to_h"),
            (Slot::FinalNorm, "final_layer_norm"),
            (Slot::Head, "/embed_out"),
        ],
        ignored: &[
            "*.attention.bias",
            "*.attention.masked_bias",
            "*.attention.rotary_emb.inv_freq",
            "embed_out.weight",
        ],
        ..Names::NONE
    },
    spec,
)
// GGUF's converter puts q, k and v one after the other.
.layout(|config| if config.is_gguf() { QkvLayout::Concat } else { QkvLayout::PerHead });

fn spec(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let parallel = config.flag(&["use_parallel_residual"], true)?;
    let placement = if parallel { Placement::Parallel } else { Placement::Pre };
    let mut spec = decoder(config, Switches { tied: false, act: Act::Gelu, placement, ..GPT_LIKE })?;
    let bias = config.flag(&["attention_bias"], true)?;
    spec.each(|_, b| b.bias = [bias, bias, true, true]);
    spec.rotate_part(config, catalog, RopeStyle::Half, 0.25)?;
    Ok(spec)
}
