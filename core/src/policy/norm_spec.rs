//! Norms, as models have them.

use crate::params::NormKind;

/// A norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Which.
    pub kind: NormKind,
    /// Epsilon.
    pub eps: f32,
    /// Whether it has a bias.
    pub bias: bool,
    /// Whether its weight is stored minus one (Gemma).
    pub plus_one: bool,
    /// Whether it has a weight; without one it multiplies by one (OLMo).
    pub weighted: bool,
}

/// What a norm of queries or keys spans, and how many values it multiplies with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkSpan {
    /// Each head by itself, all with the same values.
    Head,
    /// Each head by itself, with values of its own (StableLM 2 12B).
    OwnHead,
    /// All heads at once (OLMo 2).
    Whole,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct QkNorm {
    /// The norm.
    pub norm: NormSpec,
    /// What it spans.
    pub span: QkSpan,
    /// Whether heads are normed after they are rotated (HunYuan), not before; with [`QkSpan::Head`] alone.
    pub after_rope: bool,
}

impl QkNorm {
    /// Norms before the rotation.
    pub fn new(norm: NormSpec, span: QkSpan) -> Self {
        Self { norm, span, after_rope: false }
    }
}
