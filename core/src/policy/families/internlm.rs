//! InternLM 2 and 2.5: LLaMA's blocks under names like Meta's, with q, k and v in one tensor: for every
//! key/value head its queries, its key, its value. InternLM 3: LLaMA's names, and a switch of its own for
//! the biases of q, k and v. Source: their published configurations and modelling files.

use super::llama::NAMES;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, refuse_gguf};
use crate::policy::*;

/// `model_type` internlm2.
pub const INTERNLM2: Described =
    Described::new(&["internlm2"], INTERNLM2_NAMES, internlm2).layout(|_| QkvLayout::PerKvHead);

/// `model_type` internlm3.
pub const INTERNLM3: Described = Described::new(&["internlm3"], NAMES, internlm3);

const INTERNLM2_NAMES: Names<'_> = Names {
    slots: &[
        (Slot::TokenEmbed, "tok_embeddings"),
        (Slot::AttnNorm, "attention_norm"),
        (Slot::Qkv, "attention.wqkv"),
        (Slot::AttnOut, "attention.wo"),
        (Slot::MlpNorm, "ffn_norm"),
        (Slot::Up, "feed_forward.w1 + feed_forward.w3"),
        (Slot::Down, "feed_forward.w2"),
        (Slot::FinalNorm, "norm"),
        (Slot::Head, "/output"),
    ],
    ..NAMES
};

fn internlm2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let bias = config.flag(&["bias"], INTERNLM2_NAMES.has(config, catalog, Slot::Qkv, Part::Bias))?;
    base(config, catalog, Switches { bias: [bias, bias, false, false], ..LLAMA_LIKE })
}

fn internlm3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let (qkv, other) = (config.flag(&["qkv_bias"], false)?, config.flag(&["bias"], false)?);
    base(config, catalog, Switches { bias: [qkv, other, other, other], positions: 32_768, ..LLAMA_LIKE })
}

fn base(config: &ModelConfig, catalog: Catalog<'_>, switches: Switches) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    let (plain, factor) = rope::up_to_trained(config)?;
    let mut spec = decoder(&plain, switches)?;
    spec.rotate(&plain, catalog, RopeStyle::Half, None)?;
    if let Some(factor) = factor {
        let end = spec.max_positions;
        spec.assumed.push(format!(
            "sequences end at {end} positions, where the rotation would be stretched (dynamic, {factor})"
        ));
    }
    Ok(spec)
}
