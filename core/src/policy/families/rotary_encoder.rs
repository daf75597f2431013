//! Encoders that rotate: EuroBERT, which is LLaMA's block without the causal mask, and two post-norm encoders
//! with a gated feed-forward part: Nomic BERT, almost without biases, and GTE.

use super::bert;
use super::llama::{NAMES, llama_as};
use crate::params::Act;
use crate::policy::describe::{Described, LLAMA_LIKE, Switches, decoder, refuse_gguf};
use crate::policy::task::{BERT_LIKE, Task, task, token_types};
use crate::policy::*;

/// `model_type` eurobert.
pub const EUROBERT: Described = Described::new(&["eurobert"], NAMES, eurobert);

/// `model_type` nomic_bert.
pub const NOMIC_BERT: Described = Described::new(
    &["nomic_bert"],
    Names {
        prefixes: &["", "bert."],
        block: "encoder.layers.{}.",
        slots: &[
            (Slot::EmbedNorm, "emb_ln"),
            (Slot::Qkv, "attn.Wqkv"),
            (Slot::AttnOut, "attn.out_proj"),
            (Slot::AttnNorm, "norm1"),
            (Slot::Up, "mlp.fc12 + mlp.fc11"),
            (Slot::Down, "mlp.fc2"),
            (Slot::MlpNorm, "norm2"),
        ],
        base: bert::NAMES.slots,
        ..Names::NONE
    },
    nomic_bert,
);

/// `model_type` gte.
pub const GTE: Described = Described::new(
    &["gte"],
    Names {
        prefixes: &["", "gte."],
        slots: &[
            (Slot::EmbedNorm, "embeddings.LayerNorm"),
            (Slot::Qkv, "attention.qkv_proj"),
            (Slot::AttnOut, "attention.o_proj"),
            (Slot::AttnNorm, "attn_ln"),
            (Slot::Up, "mlp.up_gate_proj"),
            (Slot::Down, "mlp.down_proj"),
            (Slot::MlpNorm, "mlp_ln"),
        ],
        base: bert::NAMES.slots,
        block: bert::NAMES.block,
        gate_behind: true,
        ..Names::NONE
    },
    gte,
);

/// Refuses what the heads of a family are not known for.
pub(super) fn only(config: &ModelConfig, known: &[Task]) -> Result<Task> {
    let task = task(config, Task::Masked)?;
    match known.contains(&task) {
        true => Ok(task),
        false => {
            let allowed = "the bare encoder, or (EuroBERT, ModernBERT) one with a head for masked tokens";
            Err(Error::config("architectures", format!("\"{}\"", config.architecture()), allowed))
        }
    }
}

fn eurobert(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let task = only(config, &[Task::Bare, Task::Masked])?;
    let mut spec = llama_as(config, catalog, Switches { eps: 1e-5, positions: 8192, ..LLAMA_LIKE })?;
    spec.family = Family::Encoder;
    spec.each(|_, b| b.scores.causal = false);
    if task == Task::Bare {
        spec.head = HeadSpec::None;
    }
    Ok(spec)
}

fn nomic_bert(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    only(config, &[Task::Bare])?;
    for field in ["prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"] {
        refuse(config, field)?;
    }
    for (field, value) in [("rotary_emb_fraction", 1.0), ("max_trained_positions", 2048.0)] {
        let got = config.number(&[field], value)?;
        if got != value {
            return Err(Error::config(field, got, value.to_string()));
        }
    }
    let config = match config.text_opt(&["activation_function"])? {
        Some("swiglu") => config.with("activation_function", "silu"),
        _ => config.clone(),
    };
    let bias = [false; 4];
    let switches = Switches { act: Act::Silu, gated: true, bias, positions: 2048, ..BERT_LIKE };
    post_norm(&config, catalog, switches)
}

fn gte(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    refuse_gguf(config)?;
    only(config, &[Task::Bare])?;
    let bias = [true, true, false, true];
    let switches = Switches { act: Act::Gelu, gated: true, bias, positions: 8192, ..BERT_LIKE };
    post_norm(config, catalog, switches)
}

/// A post-norm encoder that rotates whole heads, without a head of its own.
fn post_norm(config: &ModelConfig, catalog: Catalog<'_>, switches: Switches) -> Result<ModelSpec> {
    let mut spec = decoder(config, switches)?;
    spec.family = Family::Encoder;
    spec.embed.token_types = token_types(config)?;
    spec.embed.norm = spec.blocks.first().and_then(|b| b.attn_norm);
    (spec.final_norm, spec.head) = (None, HeadSpec::None);
    spec.each(|_, b| b.scores.causal = false);
    spec.rotate(config, catalog, RopeStyle::Half, None)?;
    Ok(spec)
}
