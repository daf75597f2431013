//! What encoders are published for: masked tokens, labels of texts or tokens, answers to questions, or
//! nothing but the hidden states; and what the families that descend from BERT share. A family's file says
//! which tensors a task has there.

use super::describe::{GPT_LIKE, Switches, encoder};
use super::labels::labels;
use super::*;
use crate::params::Act;

/// An encoder's switches.
pub(super) const BERT_LIKE: Switches =
    Switches { act: Act::Gelu, eps: 1e-12, placement: Placement::Post, positions: 512, ..GPT_LIKE };

/// What a checkpoint's `architectures` promises besides the encoder.
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
    /// Start and end of the answer to a question.
    Answer,
}

/// The task of an architecture; `pretraining` is what the family's `ForPreTraining` has.
pub(super) fn task(config: &ModelConfig, pretraining: Task) -> Result<Task> {
    let name = config.architecture();
    let known = [
        ("ForMaskedLM", Task::Masked),
        ("ForPreTraining", pretraining),
        ("ForSequenceClassification", Task::Text),
        ("ForTokenClassification", Task::Tokens),
        ("ForQuestionAnswering", Task::Answer),
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

/// `act(dense(first token))`.
pub(super) fn first_token(width: usize, act: Act) -> PoolSpec {
    PoolSpec { from: PoolSource::First, norm: None, dense: Some((width, true)), act: Some(act) }
}

/// Token types, if there are any.
pub(super) fn token_types(config: &ModelConfig) -> Result<Option<usize>> {
    match config.get("type_vocab_size").and_then(|n| n.as_u64()) {
        Some(0) => Ok(None),
        _ => Ok(Some(config.size_opt(&["type_vocab_size"])?.unwrap_or(2))),
    }
}

/// Gives an encoder what its task needs: `masked` is the transform of a masked head, `pool` the pooler of a
/// text's labels.
pub(super) fn set_task(
    config: &ModelConfig,
    spec: &mut ModelSpec,
    task: Task,
    masked: HeadTransform,
    pool: PoolSpec,
) -> Result<()> {
    let tied = config.flag(&["tie_word_embeddings"], true)?;
    let tokens = |of, count, tied, transform| HeadSpec::Tokens {
        of,
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
        Task::Masked => tokens(TokenHead::Vocabulary, spec.vocab, tied, Some(masked)),
        Task::Detect => tokens(TokenHead::Labels, 1, false, Some(masked)),
        Task::Tokens => tokens(TokenHead::Labels, labels(config)?, false, None),
        Task::Answer => match labels(config)? {
            2 => tokens(TokenHead::Span, 2, false, None),
            other => {
                return Err(Error::config("id2label / num_labels", other, "2: start and end of an answer"));
            }
        },
        Task::Text => {
            spec.pooler = Some(pool);
            HeadSpec::Labels { count: labels(config)?, bias: true }
        }
    };
    Ok(())
}

/// An encoder whose embedding may be narrower than its blocks.
pub(super) fn narrow(config: &ModelConfig) -> Result<ModelSpec> {
    let mut spec = encoder(config, BERT_LIKE)?;
    spec.embed.width = config.size_opt(&["embedding_size"])?.unwrap_or(spec.hidden);
    spec.embed.project = Project::Sum;
    Ok(spec)
}
