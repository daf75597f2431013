//! BERT: a bidirectional encoder with post-norms, learned positions and token types. RoBERTa and models like
//! it: the same with positions that begin behind the padding's, and heads under other names.
//!
//! Variants: `bert.` prefix or none, LayerNorm's `weight`/`bias` or the older `gamma`/`beta`, GGUF's names.
//! The head goes by
//! `architectures`: masked tokens, labels of texts or tokens, or none.

use crate::params::Act;
use crate::policy::describe::{Described, encoder};
use crate::policy::task::{BERT_LIKE, Task, first_token, set_task, task, token_types};
use crate::policy::*;

pub(super) const NAMES: Names<'_> = Names {
    prefixes: &["bert.", ""],
    block: "encoder.layer.{}.",
    slots: &[
        (Slot::TokenEmbed, "embeddings.word_embeddings"),
        (Slot::PositionEmbed, "embeddings.position_embeddings"),
        (Slot::TokenTypeEmbed, "embeddings.token_type_embeddings"),
        (Slot::EmbedNorm, "embeddings.LayerNorm"),
        (Slot::Qkv, "attention.self.query + attention.self.key + attention.self.value"),
        (Slot::AttnOut, "attention.output.dense"),
        (Slot::AttnNorm, "attention.output.LayerNorm"),
        (Slot::Up, "intermediate.dense"),
        (Slot::Down, "output.dense"),
        (Slot::MlpNorm, "output.LayerNorm"),
        (Slot::Pooler, "pooler.dense"),
        (Slot::HeadDense, "/cls.predictions.transform.dense"),
        (Slot::HeadNorm, "/cls.predictions.transform.LayerNorm"),
        (
            Slot::Head,
            "/cls.predictions.decoder!w, /cls.predictions!b > /cls.predictions.decoder!b ; /classifier ; \
             /qa_outputs",
        ),
    ],
    // The decoder's bias is the same parameter under a second name, which old files lack or repeat.
    ignored: &[
        "*position_ids",
        "cls.seq_relationship.*",
        "cls.predictions.decoder.*",
        "bert.pooler.*",
        "pooler.dense.*",
    ],
    ..Names::NONE
};

/// `model_type` bert.
pub const BERT: Described = Described::new(&["bert"], NAMES, bert);

const ROBERTA_NAMES: Names<'_> = Names {
    prefixes: &["roberta.", ""],
    slots: &[
        (Slot::Pooler, "/classifier.dense ; pooler.dense"),
        (Slot::HeadDense, "/lm_head.dense"),
        (Slot::HeadNorm, "/lm_head.layer_norm"),
        (
            Slot::Head,
            "/lm_head.decoder!w, /lm_head!b > /lm_head.decoder!b ; /classifier.out_proj ; /classifier ; /qa_outputs",
        ),
    ],
    base: NAMES.slots,
    ignored: &["*position_ids", "lm_head.decoder.*", "roberta.pooler.*", "pooler.dense.*"],
    ..NAMES
};

/// `model_type` roberta, xlm-roberta, camembert.
pub const ROBERTA: Described =
    Described::new(&["roberta", "xlm-roberta", "camembert"], ROBERTA_NAMES, roberta);

/// BERT and RoBERTa: the same but for positions and names.
fn shared(config: &ModelConfig, catalog: Catalog<'_>, names: Names<'_>) -> Result<ModelSpec> {
    let mut spec = encoder(config, BERT_LIKE)?;
    spec.embed.token_types = token_types(config)?;
    let (hidden, norm) = (spec.hidden, spec.embed.norm);
    let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
    let task = task(config, Task::Masked)?;
    let pool = first_token(hidden, Act::Tanh);
    set_task(config, &mut spec, task, HeadTransform { act, norm, width: hidden, bias: true }, pool)?;
    if task == Task::Bare && names.has(config, catalog, Slot::Pooler, Part::Weight) {
        spec.pooler = Some(pool);
    }
    Ok(spec)
}

fn bert(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    shared(config, catalog, NAMES)
}

fn roberta(config: &ModelConfig, catalog: Catalog<'_>) -> Result<ModelSpec> {
    let mut spec = shared(config, catalog, ROBERTA_NAMES)?;
    // Positions are counted from the padding token's number on.
    let offset = config.index(&["pad_token_id"], 1)? + 1;
    let rows = spec.max_positions;
    if offset >= rows {
        return Err(Error::config("pad_token_id", offset - 1, format!("below {}", rows.saturating_sub(1))));
    }
    spec.embed.positions = Some(LearnedPositions { rows, offset });
    spec.max_positions = rows - offset;
    if let HeadSpec::Tokens { transform: Some(transform), .. } = &mut spec.head {
        transform.act = Act::Gelu;
    }
    Ok(spec)
}
