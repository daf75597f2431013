//! DistilBERT: BERT with fewer blocks, no token types and no pooler.

use crate::params::Act;
use crate::policy::describe::{Described, encoder};
use crate::policy::task::{BERT_LIKE, Task, first_token, set_task, task};
use crate::policy::*;

/// `model_type` distilbert.
pub const DISTILBERT: Described = Described::new(
    &["distilbert"],
    Names {
        prefixes: &["distilbert.", ""],
        block: "transformer.layer.{}.",
        slots: &[
            (Slot::TokenEmbed, "embeddings.word_embeddings"),
            (Slot::PositionEmbed, "embeddings.position_embeddings"),
            (Slot::EmbedNorm, "embeddings.LayerNorm"),
            (Slot::Qkv, "attention.q_lin + attention.k_lin + attention.v_lin"),
            (Slot::AttnOut, "attention.out_lin"),
            (Slot::AttnNorm, "sa_layer_norm"),
            (Slot::Up, "ffn.lin1"),
            (Slot::Down, "ffn.lin2"),
            (Slot::MlpNorm, "output_layer_norm"),
            (Slot::Pooler, "/pre_classifier"),
            (Slot::HeadDense, "/vocab_transform"),
            (Slot::HeadNorm, "/vocab_layer_norm"),
            (Slot::Head, "/vocab_projector ; /classifier ; /qa_outputs"),
        ],
        ignored: &["*position_ids", "vocab_projector.weight", "vocab_*"],
        ..Names::NONE
    },
    distilbert,
);

fn distilbert(config: &ModelConfig, _: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = encoder(config, BERT_LIKE)?;
    let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
    let masked = HeadTransform { act, norm: spec.embed.norm, width: spec.hidden, bias: true };
    let pool = first_token(spec.hidden, Act::Relu);
    set_task(config, &mut spec, task(config, Task::Masked)?, masked, pool)?;
    Ok(spec)
}
