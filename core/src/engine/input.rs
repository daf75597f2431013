//! What whole texts are asked for, and what an encoder says of one.

use crate::{Error, Result};
use std::sync::Arc;

/// One text of an encoder batch.
///
/// ```
/// use engraft_core::engine::EncoderInput;
///
/// let plain = EncoderInput::from(vec![101, 2054, 102]);
/// assert!(plain.token_type_ids.is_empty(), "all of type 0");
/// let (ids, token_type_ids) = (vec![101, 2054, 102, 1996, 102], vec![0, 0, 0, 1, 1]);
/// let typed = EncoderInput { ids, token_type_ids, ..EncoderInput::default() };
/// assert_eq!(typed.ids.len(), typed.token_type_ids.len());
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EncoderInput {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types; empty counts as all 0.
    pub token_type_ids: Vec<u32>,
    /// Of a model with an encoder: what its decoder reads, behind its own first token.
    pub decoder: Vec<u32>,
    /// Of a model whose encoder reads sound, in the place of token ids: `[frames, columns]`.
    pub features: Arc<[f32]>,
}

impl From<Vec<u32>> for EncoderInput {
    /// A text without token types.
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, ..Self::default() }
    }
}

/// What an encoder says of one text; absent parts are empty.
///
/// The library's `EngineHandle::encode` gives it.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Encoded {
    /// Hidden states `[tokens, hidden]` of every layer, if asked for; else of the last only.
    pub hidden: Vec<Vec<f32>>,
    /// Token logits `[tokens, vocab]`, or label logits `[labels]`.
    pub logits: Vec<f32>,
    /// Pooled row, after its projection where there is one.
    pub pooled: Vec<f32>,
}

/// Which of several things are wanted.
///
/// ```
/// use engraft_core::engine::Pick;
///
/// let some = [Pick::Last, Pick::Some(vec![0, 3]), Pick::All];
/// assert!(some.iter().all(|pick| *pick != Pick::default()), "none is the default");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pick {
    /// None.
    #[default]
    None,
    /// The last one.
    Last,
    /// These; numbers beyond the end are an error.
    Some(Vec<usize>),
    /// All.
    All,
}

/// What [`Engine::forward`](super::Engine::forward) returns of every sequence.
///
/// ```
/// use engraft_core::engine::{ForwardWant, Pick};
///
/// // The last layer's hidden states, and the logits of the last token.
/// let want = ForwardWant { hidden: Pick::Last, logits: Pick::Last };
/// assert_ne!(want, ForwardWant::default());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardWant {
    /// Layers whose hidden states are kept; 0 is what enters the first block. Several residual streams lie
    /// side by side, but for the last state, which is behind the norm of what they become.
    pub hidden: Pick,
    /// Tokens whose logits are kept.
    pub logits: Pick,
}

impl Pick {
    /// The first of `count` that is picked; `count` for none.
    pub(super) fn first(&self, count: usize) -> usize {
        match self {
            Pick::None => count,
            Pick::Last => count.saturating_sub(1),
            Pick::All => 0,
            Pick::Some(list) => list.iter().copied().min().unwrap_or(count),
        }
    }

    /// Numbers below `count` that are picked.
    pub(super) fn among(&self, count: usize, id: usize, what: &str) -> Result<Vec<usize>> {
        Ok(match self {
            Pick::None => Vec::new(),
            Pick::Last => vec![count.saturating_sub(1)],
            Pick::All => (0..count).collect(),
            Pick::Some(list) => {
                if let Some(bad) = list.iter().find(|n| **n >= count) {
                    let what = format!("{what} {bad} asked for; there are {count}");
                    return Err(Error::Request { id: id as u64, what });
                }
                list.clone()
            }
        })
    }
}
