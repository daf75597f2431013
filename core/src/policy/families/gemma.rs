//! Gemma 1, 2 and 3 (text): norm weights stored minus one, embeddings scaled by the root of the hidden size,
//! gated GELU, a shared head. From 2 on norms before and after both parts, every other block (3: all but
//! every sixth) with a window; 2 caps scores and logits, 3 norms queries and keys and rotates local blocks by
//! another base.

use super::llama::NAMES;
use crate::params::Act;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder};
use crate::policy::*;

/// Names of 2 and 3: four norms.
pub(super) const SANDWICH: Names<'_> = Names {
    slots: &[
        (Slot::AttnPostNorm, "post_attention_layernorm"),
        (Slot::MlpNorm, "pre_feedforward_layernorm"),
        (Slot::MlpPostNorm, "post_feedforward_layernorm"),
    ],
    base: NAMES.slots,
    ..NAMES
};

/// `model_type` gemma.
pub const GEMMA: Described = Described::new(&["gemma"], NAMES, gemma);

/// `model_type` gemma2.
pub const GEMMA2: Described = Described::new(&["gemma2"], SANDWICH, gemma2);

/// `model_type` gemma3_text.
pub const GEMMA3: Described =
    Described { name: "gemma3", ..Described::new(&["gemma3_text"], SANDWICH, gemma3) };

/// What the library has where a published configuration leaves it out; files of GGUF leave nothing out.
fn with_defaults(config: &ModelConfig) -> ModelConfig {
    const DEFAULTS: [(&str, u64); 9] = [
        ("vocab_size", 262_208),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 26),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("max_position_embeddings", 131_072),
        ("sliding_window", 4096),
    ];
    let own = config.clone();
    if config.is_gguf() { own } else { text_part::with_defaults(own, DEFAULTS) }
}

/// What all have, unrotated.
fn base(config: &ModelConfig) -> Result<ModelSpec> {
    let switches = Switches { act: Act::GeluTanh, tied: true, positions: 8192, ..LLAMA_LIKE };
    let mut spec = decoder(config, switches)?;
    // GGUF's converter has added the one.
    let plus_one = !config.is_gguf();
    let bias = config.flag(&["attention_bias"], false)?;
    let change = |norm: &mut Option<NormSpec>| norm.iter_mut().for_each(|n| n.plus_one = plus_one);
    spec.each(|_, b| {
        change(&mut b.attn_norm);
        change(&mut b.mlp_norm);
        b.bias = [bias, bias, false, false];
    });
    change(&mut spec.final_norm);
    spec.embed.scale = Some((spec.hidden as f64).sqrt() as f32);
    Ok(spec)
}

fn gemma(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse(config, "use_bidirectional_attention")?;
    let mut spec = base(config)?;
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    Ok(spec)
}

/// Four norms, own scale of scores, caps.
fn sandwich(config: &ModelConfig) -> Result<ModelSpec> {
    let mut spec = base(config)?;
    let scale = 1.0 / config.positive(&["query_pre_attn_scalar"], 256.0)?.sqrt();
    let cap = |field| Ok::<_, Error>(config.number_opt(&[field])?.filter(|c| *c > 0.0).map(|c| c as f32));
    let (scores, logits) = (cap("attn_logit_softcapping")?, cap("final_logit_softcapping")?);
    spec.each(|_, b| {
        (b.attn_post, b.mlp_post) = (b.attn_norm, b.mlp_norm);
        (b.scores.scale, b.scores.soft_cap) = (scale as f32, scores);
    });
    if let HeadSpec::Tokens { cap, .. } = &mut spec.head {
        *cap = logits;
    }
    Ok(spec)
}

fn gemma2(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse(config, "use_bidirectional_attention")?;
    let mut spec = sandwich(config)?;
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    spec.slide(config, |i| i % 2 == 0)?;
    Ok(spec)
}

fn gemma3(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let config = &with_defaults(config);
    let mut spec = sandwich(config)?;
    let every = config.size_opt(&["sliding_window_pattern", "_sliding_window_pattern"])?.unwrap_or(6);
    spec.slide(config, |i| (i + 1) % every != 0)?;
    let width = spec.blocks.first().map_or(0, |b| b.heads.k_dim);
    spec.ropes = rope::local_and_global(config, catalog, [width; 2], spec.max_positions)?;
    spec.each(|_, b| {
        b.qk_norm = b.attn_norm.map(|norm| QkNorm::new(norm, QkSpan::Head));
        b.rope = Some(usize::from(b.scores.window.is_none()));
    });
    if config.flag(&["use_bidirectional_attention"], false)? {
        two_sided(config, &mut spec)?;
    }
    Ok(spec)
}

/// EmbeddingGemma: an encoder, whose windows are half as long to either side.
fn two_sided(config: &ModelConfig, spec: &mut ModelSpec) -> Result<()> {
    if !config.architecture().ends_with("TextModel") {
        let allowed = "the bare text model, where it sees both sides";
        return Err(Error::config("architectures", format!("\"{}\"", config.architecture()), allowed));
    }
    (spec.family, spec.head) = (Family::Encoder, HeadSpec::None);
    spec.each(|_, b| {
        b.scores.causal = false;
        b.scores.ahead = b.scores.window.map(|window| window / 2);
        b.scores.window = b.scores.window.map(|window| window / 2 + 1);
    });
    Ok(())
}
