//! MPT: linear position bias, norms and linear layers without biases, q, k and v in one tensor.

use crate::params::Act;
use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` mpt.
pub const MPT: Described = Described::new(
    &["mpt"],
    Names {
        prefixes: &["transformer.", ""],
        block: "blocks.{}.",
        slots: &[
            (Slot::TokenEmbed, "wte"),
            (Slot::AttnNorm, "norm_1"),
            (Slot::Qkv, "attn.Wqkv"),
            (Slot::AttnOut, "attn.out_proj"),
            (Slot::MlpNorm, "norm_2"),
            (Slot::Up, "ffn.up_proj"),
            (Slot::Down, "ffn.down_proj"),
            (Slot::FinalNorm, "norm_f"),
            (Slot::Head, "/lm_head"),
        ],
        ignored: &["lm_head.weight"],
        ..Names::NONE
    },
    mpt,
);

fn mpt(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    for field in ["attn_config.prefix_lm", "attn_config.qk_ln", "logit_scale"] {
        if let Some(value) = config.get(field).filter(|v| v.as_bool() != Some(false)) {
            return Err(Error::config(field, value, "null or false"));
        }
    }
    if !config.flag(&["attn_config.alibi"], true)? {
        return Err(Error::config("attn_config.alibi", false, "true"));
    }
    let words: [(&str, &[&str]); 2] = [
        ("attn_config.attn_type", &["multihead_attention"]),
        ("norm_type", &["low_precision_layernorm", "layernorm"]),
    ];
    for (field, allowed) in words {
        if let Some(word) = config.text_opt(&[field])?.filter(|word| !allowed.contains(word)) {
            return Err(Error::config(field, format!("\"{word}\""), allowed.join(", ")));
        }
    }
    let mut spec = decoder(config, Switches { bias: [false; 4], act: Act::Gelu, ..GPT_LIKE })?;
    // The first code read `expansion_ratio`, its port always takes 4: the file knows which of them wrote it.
    let ratio = config.size_opt(&["expansion_ratio"])?.unwrap_or(4);
    let names = ["transformer.blocks.0.ffn.up_proj.weight", "blocks.0.ffn.up_proj.weight"];
    let rows = names.iter().find_map(|n| catalog.find(n)).and_then(|t| t.shape.first().copied());
    let inner = spec.hidden.checked_mul(ratio).filter(|n| rows == Some(*n)).unwrap_or(4 * spec.hidden);
    let scale = config.number_opt(&["attn_config.softmax_scale"])?;
    let plain = |norm: &mut Option<NormSpec>| norm.iter_mut().for_each(|n| n.bias = false);
    spec.each(|_, b| {
        b.mlp.inner = inner;
        plain(&mut b.attn_norm);
        plain(&mut b.mlp_norm);
        b.scores.scale = scale.map_or(b.scores.scale, |s| s as f32);
    });
    plain(&mut spec.final_norm);
    spec.limit_heads(config, "attn_config.clip_qkv")?;
    spec.alibi(config.positive(&["attn_config.alibi_bias_max"], 8.0)?, 1.0)?;
    Ok(spec)
}
