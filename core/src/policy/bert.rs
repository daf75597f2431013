//! BERT: a bidirectional encoder with post-norms, learned positions and token types. RoBERTa and its kin: the same with
//! positions that begin behind the padding's, and heads under other names.
//!
//! Forms: `bert.` prefix or none, LayerNorm's `weight`/`bias` or the older `gamma`/`beta`, GGUF's names. The head goes by
//! `architectures`: masked tokens, labels of texts or tokens, or none.

use super::describe::{Described, GPT_LIKE, Switches, concat, encoder};
use super::*;
use crate::ops::Act;

/// An encoder's switches.
pub(super) const BERT_LIKE: Switches =
    Switches { act: Act::Gelu, eps: 1e-12, placement: Placement::Post, positions: 512, ..GPT_LIKE };

const NAMES: Names<'_> = Names {
    prefixes: &["bert.", ""],
    block: "encoder.layer.{}.",
    slots: &[
        (Slot::TokenEmbed, "embeddings.word_embeddings"),
        (Slot::PositionEmbed, "embeddings.position_embeddings"),
        (Slot::KindEmbed, "embeddings.token_type_embeddings"),
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
            "/cls.predictions.decoder!w, /cls.predictions!b > /cls.predictions.decoder!b ; /classifier",
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
    transposed: false,
};

/// `model_type` bert.
pub const BERT: Described =
    Described { name: "bert", types: &["bert"], names: NAMES, layout: concat, spec: bert };

const ROBERTA_NAMES: Names<'_> = Names {
    prefixes: &["roberta.", ""],
    slots: &[
        (Slot::TokenEmbed, "embeddings.word_embeddings"),
        (Slot::PositionEmbed, "embeddings.position_embeddings"),
        (Slot::KindEmbed, "embeddings.token_type_embeddings"),
        (Slot::EmbedNorm, "embeddings.LayerNorm"),
        (Slot::Qkv, "attention.self.query + attention.self.key + attention.self.value"),
        (Slot::AttnOut, "attention.output.dense"),
        (Slot::AttnNorm, "attention.output.LayerNorm"),
        (Slot::Up, "intermediate.dense"),
        (Slot::Down, "output.dense"),
        (Slot::MlpNorm, "output.LayerNorm"),
        (Slot::Pooler, "/classifier.dense ; pooler.dense"),
        (Slot::HeadDense, "/lm_head.dense"),
        (Slot::HeadNorm, "/lm_head.layer_norm"),
        (
            Slot::Head,
            "/lm_head.decoder!w, /lm_head!b > /lm_head.decoder!b ; /classifier.out_proj ; /classifier",
        ),
    ],
    ignored: &["*position_ids", "lm_head.decoder.*", "roberta.pooler.*", "pooler.dense.*"],
    ..NAMES
};

/// `model_type` roberta, xlm-roberta, camembert.
pub const ROBERTA: Described = Described {
    name: "roberta",
    types: &["roberta", "xlm-roberta", "camembert"],
    names: ROBERTA_NAMES,
    layout: concat,
    spec: roberta,
};

/// What a checkpoint's `architectures` promises beside the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Nothing.
    Bare,
    /// Masked tokens.
    Masked,
    /// Real or replaced, for every token (ELECTRA).
    Detect,
    /// Labels of the text.
    Text,
    /// Labels of every token.
    Tokens,
}

/// The task of an architecture; `pretraining` is what the family's `ForPreTraining` has.
pub(super) fn task(config: &ModelConfig, pretraining: Task) -> Result<Task> {
    let name = config.architecture();
    let known = [
        ("ForMaskedLM", Task::Masked),
        ("ForPreTraining", pretraining),
        ("ForSequenceClassification", Task::Text),
        ("ForTokenClassification", Task::Tokens),
        ("Model", Task::Bare),
    ];
    if name.is_empty() {
        return Ok(Task::Bare);
    }
    known.iter().find(|(end, _)| name.ends_with(end)).map(|(_, task)| *task).ok_or_else(|| {
        let ends: Vec<String> = known.iter().map(|(end, _)| format!("...{end}")).collect();
        Error::config("architectures", format!("\"{name}\""), ends.join(", "))
    })
}

/// How many labels.
pub(super) fn labels(config: &ModelConfig) -> Result<usize> {
    match config.get("id2label").and_then(|l| l.as_object()) {
        Some(listed) if !listed.is_empty() => Ok(listed.len()),
        _ => Ok(config.size_opt(&["num_labels"])?.unwrap_or(2)),
    }
}

/// `act(dense(first token))`.
pub(super) fn first_token(width: usize, act: Act) -> PoolSpec {
    PoolSpec { from: PoolFrom::First, norm: None, dense: Some((width, true)), act: Some(act) }
}

/// Token types, if there are any.
pub(super) fn kinds(config: &ModelConfig) -> Result<Option<usize>> {
    match config.get("type_vocab_size").and_then(|n| n.as_u64()) {
        Some(0) => Ok(None),
        _ => Ok(Some(config.size_opt(&["type_vocab_size"])?.unwrap_or(2))),
    }
}

/// Gives an encoder what its task needs: `masked` is the transform of a masked head, `pool` the pooler of a text's
/// labels.
pub(super) fn set_task(
    config: &ModelConfig,
    spec: &mut ModelSpec,
    task: Task,
    masked: HeadTransform,
    pool: PoolSpec,
) -> Result<()> {
    let tied = config.flag(&["tie_word_embeddings"], true)?;
    let tokens = |count, tied, transform| HeadSpec::Tokens {
        count,
        tied,
        bias: true,
        transform,
        scale: 1.0,
        cap: None,
        unit_rows: false,
    };
    spec.head = match task {
        Task::Bare => HeadSpec::None,
        Task::Masked => tokens(spec.vocab, tied, Some(masked)),
        Task::Detect => tokens(1, false, Some(masked)),
        Task::Tokens => tokens(labels(config)?, false, None),
        Task::Text => {
            spec.pooler = Some(pool);
            HeadSpec::Labels { count: labels(config)? }
        }
    };
    Ok(())
}

/// BERT and RoBERTa: the same but for positions and names.
fn shared(config: &ModelConfig, catalog: Catalog<'_>, names: Names<'_>) -> Result<ModelSpec> {
    let mut spec = encoder(config, BERT_LIKE)?;
    spec.embed.kinds = kinds(config)?;
    let (hidden, norm) = (spec.hidden, spec.embed.norm);
    let act = spec.blocks.first().map_or(Act::Gelu, |b| b.mlp.act);
    let task = task(config, Task::Masked)?;
    let pool = first_token(hidden, Act::Tanh);
    set_task(config, &mut spec, task, HeadTransform { act, norm, width: hidden }, pool)?;
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
    let offset = config.number(&["pad_token_id"], 1.0)? as usize + 1;
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
