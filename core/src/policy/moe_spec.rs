//! Experts, as a model's description has them.

use super::norm_spec::NormSpec;
use crate::params::Router;

/// How the dense part `d` and the experts' sum `e` become the feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Join {
    /// `e + d`; without a dense part `e`.
    Add,
    /// `(e + d) / 2` (Command A+).
    Mean,
    /// `e + sigmoid(w x) d` (Qwen2-MoE's shared expert).
    Gated,
    /// `c0 e + c1 d`, `c = softmax(w x + b)` (DeepSpeed's residual MoE).
    Mixed,
    /// `d`; `e` is added to the residual stream at the end of the next block (LongCat-Flash's shortcut). Of
    /// blocks with norms before their parts, none of which follows another such one.
    NextBlock,
}

/// Experts next to or instead of the dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MoeSpec {
    /// How tokens choose.
    pub router: Router,
    /// Columns between an expert's two linear layers.
    pub inner: usize,
    /// Whether the experts' linear layers have biases.
    pub bias: bool,
    /// How the dense part joins.
    pub join: Join,
    /// Whether a weight multiplies what its expert reads, and not what it gives (Llama 4).
    pub input_weighted: bool,
    /// Norms of their own, before and after the experts.
    pub apart: Option<ApartSpec>,
    /// Whether the weights of an expert are multiplied by a factor of its own.
    pub factors: bool,
    /// The last of the router's experts, so many: they have no matmuls and give what they read
    /// (LongCat-Flash).
    pub identities: usize,
}

/// Router and experts that read the residual stream `x` next to the dense part `d`, each through a norm of
/// its own: the logits are `scale * W r(x)`, the feed-forward part is `p(d) + q(e(n(x)))` (Gemma 4).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ApartSpec {
    /// All four norms: of the router, of the experts, and of what the dense part and the experts give.
    pub norm: NormSpec,
    /// Factor of the logits.
    pub scale: f32,
}

impl ApartSpec {
    /// Four norms of this kind, and a factor of the logits.
    pub fn new(norm: NormSpec, scale: f32) -> Self {
        Self { norm, scale }
    }
}

impl MoeSpec {
    /// Experts without biases; a dense part, where there is one, is added.
    pub fn new(router: Router, inner: usize) -> Self {
        Self {
            router,
            inner,
            bias: false,
            join: Join::Add,
            input_weighted: false,
            apart: None,
            factors: false,
            identities: 0,
        }
    }

    /// Experts that have matmuls.
    pub fn with_weights(&self) -> usize {
        self.router.experts.saturating_sub(self.identities)
    }
}
