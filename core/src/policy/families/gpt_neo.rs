//! GPT-Neo: GPT-2's blocks with q, k and v apart, unscaled scores, and a window in every other block.

use crate::policy::describe::{Described, GPT_LIKE, Switches, decoder};
use crate::policy::*;

/// `model_type` gpt_neo.
pub const GPT_NEO: Described = Described::new(
    &["gpt_neo"],
    Names {
        prefixes: &["transformer.", ""],
        block: "h.{}.",
        slots: &[
            (Slot::Qkv, "attn.attention.q_proj + attn.attention.k_proj + attn.attention.v_proj"),
            (Slot::AttnOut, "attn.attention.out_proj"),
        ],
        base: super::gpt2::NAMES.slots,
        ignored: &["*.attn.attention.bias", "*.attn.attention.masked_bias", "lm_head.weight"],
        ..Names::NONE
    },
    neo,
);

/// `attention_layers`, or `attention_types` written out: which blocks are local.
fn local_layers(config: &ModelConfig, layers: usize) -> Result<Vec<bool>> {
    let bad = || Error::config("attention_types", "another structure", "[[[\"global\", \"local\"], n], ...]");
    let word = |v: &serde_json::Value| match v.as_str() {
        Some("local") => Ok(true),
        Some("global") => Ok(false),
        _ => Err(bad()),
    };
    let words = |v: &serde_json::Value| -> Result<Vec<bool>> {
        v.as_array().ok_or_else(bad)?.iter().map(word).collect()
    };
    if let Some(list) = config.get("attention_layers") {
        return words(list);
    }
    let mut all = Vec::new();
    let pairs = config.get("attention_types").map(|pairs| pairs.as_array().ok_or_else(bad)).transpose()?;
    for pair in pairs.into_iter().flatten() {
        let (pattern, times) = (words(pair.get(0).ok_or_else(bad)?)?, pair.get(1).and_then(|n| n.as_u64()));
        // One pattern too many is enough to be refused: a hostile count must not be written out.
        for _ in 0..times.ok_or_else(bad)?.min(layers as u64 + 1) {
            if all.len() > layers {
                break;
            }
            all.extend(&pattern);
        }
    }
    Ok(if all.is_empty() { (0..layers).map(|i| i % 2 == 1).collect() } else { all })
}

fn neo(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = decoder(config, Switches { bias: [false, true, true, true], ..GPT_LIKE })?;
    spec.learn_positions();
    let window = config.size_opt(&["window_size"])?.unwrap_or(256);
    let local = local_layers(config, spec.blocks.len())?;
    if local.len() != spec.blocks.len() {
        let allowed = format!("one word for each of {} layers", spec.blocks.len());
        return Err(Error::config("attention_types", format!("{} words", local.len()), allowed));
    }
    spec.each(|i, b| {
        b.scores.scale = 1.0;
        b.scores.window = local[i].then_some(window as u32);
    });
    Ok(spec)
}
