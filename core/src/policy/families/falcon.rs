//! Falcon: 7B (one norm, one key/value head), 40B, 180B and Falcon2-11B (groups of query heads with their key
//! and value), RW-1B (linear position bias, blocks in turn, biases).

use crate::params::Act;
use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder, kv_heads};
use crate::policy::*;

/// `model_type` falcon and the names of its first releases.
pub const FALCON: Described = Described::new(
    &["falcon", "RefinedWeb", "RefinedWebModel"],
    Names {
        prefixes: &["transformer.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::TokenEmbed, "word_embeddings"),
            (Slot::AttnNorm, "ln_attn, input_layernorm"),
            (Slot::Qkv, "self_attention.query_key_value"),
            (Slot::AttnOut, "self_attention.dense"),
            (Slot::MlpNorm, "ln_mlp, post_attention_layernorm"),
            (Slot::Up, "mlp.dense_h_to_4h"),
            (Slot::Down, "mlp.dense_4h_to_h"),
            (Slot::FinalNorm, "ln_f"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["lm_head.weight", "*rotary_emb.inv_freq"],
        ..Names::NONE
    },
    spec,
)
// GGUF's converter puts q, k and v one after the other.
.layout(|config| match kind(config) {
    _ if config.is_gguf() => QkvLayout::Concat,
    Ok((true, _)) => QkvLayout::PerKvHead,
    Ok((false, false)) => QkvLayout::PerHead,
    _ => QkvLayout::Concat,
});

/// Whether it is the newer architecture, and whether the older one has a single key/value head.
fn kind(config: &ModelConfig) -> Result<(bool, bool)> {
    let new = config.flag(&["new_decoder_architecture"], config.model_type() == "RefinedWeb")?;
    Ok((new, config.flag(&["multi_query"], true)?))
}

fn spec(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let (new, single) = kind(config)?;
    let parallel = new || config.flag(&["parallel_attn"], true)?;
    let placement = if parallel { Placement::Parallel } else { Placement::Pre };
    let mut spec = decoder(config, Switches { act: Act::Gelu, placement, ..GPT_LIKE })?;
    let bias = config.flag(&["bias"], false)?;
    let two_norms = match new {
        true => config.size_opt(&["num_ln_in_parallel_attn"])?.unwrap_or(2) == 2,
        false => !parallel,
    };
    let heads = spec.blocks.first().map_or(1, |b| b.heads.heads);
    let kv = match (new, single) {
        (true, _) => config.size_opt(&["num_kv_heads", "n_head_kv"])?.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    let kv = kv_heads(heads, kv)?;
    spec.each(|_, b| {
        b.bias = [bias; 4];
        b.heads.kv_heads = kv;
        b.mlp_norm = b.mlp_norm.filter(|_| two_norms);
    });
    if config.flag(&["alibi"], false)? {
        // The bias is added before scores are scaled. Since version 5 the reference's plain path finds it in
        // the mask as well and adds it twice; models that it wrote are read as it computes them, published
        // ones as they were trained.
        let scale = spec.blocks.first().map_or(1.0, |b| (b.heads.k_dim as f64).sqrt().recip());
        let written = config
            .text_opt(&["transformers_version"])?
            .and_then(|v| v.split('.').next()?.parse::<u32>().ok());
        let times = if written.is_some_and(|major| major >= 5) { 2.0 } else { 1.0 };
        spec.alibi(8.0, times * scale)?;
    } else {
        spec.rotate(config, catalog, RopeStyle::Half, None)?;
    }
    Ok(spec)
}
