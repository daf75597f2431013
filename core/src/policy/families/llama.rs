//! LLaMA and models like it: RMSNorm, rotary embedding, grouped queries, gated SiLU. Also Vicuna, SmolLM,
//! TinyLlama, Yi, InternLM (with biases), and OLMo 2 and EXAONE 4, which norm what
//! the parts give.
//!
//! Variants: `model.` prefix or none; GGUF's names with interleaved q and k rows; biases by `attention_bias`
//! and
//! `mlp_bias`, or because the tensors are there (InternLM in LLaMA's names).

use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder};
use crate::policy::*;

/// Names that most decoders of this kind share.
pub(super) const NAMES: Names<'_> = Names {
    prefixes: &["model.", "", "model.language_model.", "language_model.model.", "model.text_model."],
    block: "layers.{}.",
    slots: &[
        (Slot::TokenEmbed, "embed_tokens"),
        (Slot::AttnNorm, "input_layernorm"),
        (Slot::Qkv, "self_attn.q_proj + self_attn.k_proj + self_attn.v_proj ; self_attn.qkv_proj"),
        (Slot::QNorm, "self_attn.q_norm"),
        (Slot::KNorm, "self_attn.k_norm"),
        (Slot::AttnOut, "self_attn.o_proj"),
        (Slot::MlpNorm, "post_attention_layernorm"),
        (Slot::Up, "mlp.gate_proj + mlp.up_proj ; mlp.gate_up_proj"),
        (Slot::Down, "mlp.down_proj"),
        (Slot::FinalNorm, "norm"),
        (Slot::Head, "/lm_head, /model.lm_head, /language_model.lm_head"),
    ],
    ignored: IGNORED,
    ..Names::NONE
};

/// Buffers of old files, heads that share the token table, divisors that have become part of the
/// configuration, and blocks that predict further tokens for speculation.
pub(super) const IGNORED: &[&str] = &[
    "*rotary_emb.inv_freq",
    "*.attn_rot_embd",
    "lm_head.weight",
    "*.lm_head.weight",
    "output.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    "mtp.*",
];

/// `model_type` llama and internlm.
pub const LLAMA: Described = Described::new(&["llama", "internlm"], NAMES, llama).layout(pairs);

/// GGUF files of LLaMA's own architecture have their rotary pairs side by side.
pub(super) fn pairs(config: &ModelConfig) -> QkvLayout {
    if config.is_gguf() { QkvLayout::Pairs } else { QkvLayout::Concat }
}

/// A block of LLaMA's kind, rotated; biases of the attention's and the feed-forward part's matmuls as the
/// configuration says, or as the file has them.
pub(super) fn llama(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    llama_as(config, catalog, LLAMA_LIKE)
}

/// LLaMA's blocks with other defaults.
pub(super) fn llama_as(config: &ModelConfig, catalog: Catalog<'_>, defaults: Switches) -> Result<ModelSpec> {
    let mut spec = decoder(config, defaults)?;
    let attention = ["attention_bias", "bias"];
    let bias =
        |fields: &[&'static str], slot| config.flag(fields, NAMES.has(config, catalog, slot, Part::Bias));
    let mlp = bias(&["mlp_bias"], Slot::Up)?;
    let biases = [bias(&attention, Slot::Qkv)?, bias(&attention, Slot::AttnOut)?, mlp, mlp];
    spec.each(|_, b| b.bias = biases);
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    Ok(spec)
}
