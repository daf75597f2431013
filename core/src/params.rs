//! The parameters of ops as plain values: what policies describe, models pass on and backends execute.
//!
//! No tensor and no backend here. Adding a value means adding it on every backend and to the conformance
//! registry (`docs/add_an_op.md`).

use crate::Result;
use crate::numerics::{LEAVES, check_rank, leaf_bounds, rank_columns};
use std::ops::Range;

/// An activation function; formulas in [`crate::math`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Act {
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x / 2 * (1 + erf(x / sqrt 2))`.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
}

impl Act {
    /// Every activation, for registries and tests.
    pub const ALL: [Act; 9] = [
        Act::Relu,
        Act::ReluSquared,
        Act::Silu,
        Act::Gelu,
        Act::GeluTanh,
        Act::QuickGelu,
        Act::Tanh,
        Act::Sigmoid,
        Act::Softplus,
    ];

    /// Its name in checkpoints; [`Act::from_name`] knows others, too.
    pub fn name(self) -> &'static str {
        match self {
            Act::Relu => "relu",
            Act::ReluSquared => "relu2",
            Act::Silu => "silu",
            Act::Gelu => "gelu",
            Act::GeluTanh => "gelu_pytorch_tanh",
            Act::QuickGelu => "quick_gelu",
            Act::Tanh => "tanh",
            Act::Sigmoid => "sigmoid",
            Act::Softplus => "softplus",
        }
    }

    /// The activation that checkpoints call `name` (`silu`, `gelu_new`, ...).
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "relu" => Act::Relu,
            "relu2" | "relu_squared" => Act::ReluSquared,
            "silu" | "swish" => Act::Silu,
            "gelu" | "gelu_python" => Act::Gelu,
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_accurate" => Act::GeluTanh,
            "quick_gelu" => Act::QuickGelu,
            "tanh" => Act::Tanh,
            "sigmoid" => Act::Sigmoid,
            "softplus" => Act::Softplus,
            _ => return None,
        })
    }
}

/// A gate and a branch that are held within limits (gpt-oss), in the place of `act(g) u`:
/// `(clamp(u, -limit, limit) + shift) g' sigmoid(slope g')` with `g' = min(g, limit)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clamp {
    /// Factor of the gate inside the sigmoid.
    pub slope: f32,
    /// Largest gate, and largest size of the branch; above 0.
    pub limit: f32,
    /// Added to the branch.
    pub shift: f32,
}

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * w`.
    Rms,
    /// `(x - mean) / sqrt(var + eps) * w + b`.
    Layer,
}

/// How pairs of a rotary embedding lie in a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// `(x[i], x[i + rot / 2])`, NeoX and LLaMA.
    Half,
    /// `(x[2 i], x[2 i + 1])`, GPT-J.
    Interleaved,
}

/// Heads of an attention: query heads share key/value heads in groups of `heads / kv_heads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
}

impl Heads {
    /// Columns of q.
    pub fn q_cols(&self) -> usize {
        self.heads * self.k_dim
    }
    /// Columns of k.
    pub fn k_cols(&self) -> usize {
        self.kv_heads * self.k_dim
    }
    /// Columns of v.
    pub fn v_cols(&self) -> usize {
        self.kv_heads * self.v_dim
    }
    /// Columns of the fused `q | k | v` matrix.
    pub fn qkv_cols(&self) -> usize {
        self.q_cols() + self.k_cols() + self.v_cols()
    }
    /// Columns of the attention output.
    pub fn out_cols(&self) -> usize {
        self.heads * self.v_dim
    }
}

/// How far from a query each distance has a bias of its own; keys further away have that of the furthest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Relative {
    /// Positions before the query.
    pub behind: u32,
    /// Positions after it.
    pub ahead: u32,
}

impl Relative {
    /// Biases of a head: `behind + 1 + ahead`.
    pub fn span(&self) -> usize {
        self.behind as usize + 1 + self.ahead as usize
    }
}

/// What a query sees and how scores are computed: `s = cap(scale * q . k) + slope * (key - query)
/// + bias[head][clamp(key - query, -behind, ahead) + behind]`, added from left to right.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Factor of the dot product.
    pub scale: f32,
    /// Whether keys after the query's position are hidden.
    pub causal: bool,
    /// Keys at `query - window` and before are hidden.
    pub window: Option<u32>,
    /// Keys before the chunk of so many positions that the query is in are hidden: those before
    /// `query / chunk * chunk`; not with a window.
    pub chunk: Option<u32>,
    /// Keys behind `query + ahead` are hidden, where the mask is not causal.
    pub ahead: Option<u32>,
    /// `cap * tanh(s / cap)` on scaled scores.
    pub soft_cap: Option<f32>,
    /// Per query head, the slope of the linear position bias.
    pub alibi: Option<std::sync::Arc<[f32]>>,
    /// Which distances have a bias of their own; the biases are an operand of the ops.
    pub relative: Option<Relative>,
}

impl Scores {
    /// Whether what a query sees, or how a key scores, depends on the query's position.
    pub fn go_by_position(&self) -> bool {
        let Self { causal, window, chunk, ahead, alibi, relative, .. } = self;
        let masks = *causal || window.is_some() || chunk.is_some() || ahead.is_some();
        masks || alibi.is_some() || relative.is_some()
    }

    /// Every key up to the query, scaled by `scale`.
    pub fn causal(scale: f64) -> Self {
        let (window, chunk, ahead, soft_cap) = (None, None, None, None);
        let (alibi, relative) = (None, None);
        Self { scale: scale as f32, causal: true, window, chunk, ahead, soft_cap, alibi, relative }
    }
}

/// What a router's logits become before experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// `softmax` over all experts.
    Softmax,
    /// `sigmoid`, each by itself.
    Sigmoid,
}

/// What groups of experts are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupRank {
    /// The best of their experts (DeepSeek-V2).
    Best,
    /// The sum of their two best; of one where a group has no other (DeepSeek-V3).
    BestTwo,
}

/// Experts in groups of consecutive numbers and one size: a token chooses among the experts of its best
/// groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// Groups; at most [`ExpertGroups::MAX`], and a divisor of the number of experts.
    pub count: usize,
    /// Groups that a token chooses; ties go to the lowest number.
    pub chosen: usize,
    /// What they are ranked by.
    pub rank: GroupRank,
}

impl ExpertGroups {
    /// Groups that kernels have room for.
    pub const MAX: usize = 32;
}

/// How tokens choose experts: `s = score(logits)`, the `top_k` largest are chosen (ties go to the lowest
/// number), and a chosen expert weighs `s * scale`, or `s * scale / sum of the chosen s` where renormalised.
/// With a bias for the choice, `s + bias` is what experts and groups are chosen by.
///
/// With `near`, experts are chosen one after the other (SparseMixer, arXiv 2409.12136), of which each weighs
/// `scale` times its part of a softmax over the logits `s` that are left and near its own `b`:
/// `b - s <= near * max(|s|, b)`. They are in the order of the logits.
///
/// A softmax over the chosen logits alone is the renormalised softmax over all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router {
    /// Experts, those without weights among them.
    pub experts: usize,
    /// Experts per token; at most [`Router::MAX_TOP_K`].
    pub top_k: usize,
    /// The score.
    pub score: RouterScore,
    /// Whether the weights of a token add up to `scale`.
    pub renormalise: bool,
    /// Factor of the weights.
    pub scale: f32,
    /// Whether the matmul that gives the logits has a bias.
    pub bias: bool,
    /// Whether a bias is added to the scores for the choice alone (DeepSeek-V3's `e_score_correction_bias`).
    pub choice_bias: bool,
    /// Groups of experts, some of which are chosen first.
    pub groups: Option<ExpertGroups>,
    /// Chosen one after the other, each weighed among those that are left and as near as this; of a softmax
    /// that is not renormalised, and without a bias for the choice and groups.
    pub near: Option<f32>,
}

impl Router {
    /// Experts per token that kernels have room for.
    pub const MAX_TOP_K: usize = 64;
    /// Experts that kernels have room for where [`Router::is_by_score`].
    pub const MAX_BY_SCORE: usize = 1024;

    /// A router without biases and groups, whose weights are scores.
    pub fn new(experts: usize, top_k: usize, score: RouterScore) -> Self {
        let (bias, choice_bias) = (false, false);
        Self {
            experts,
            top_k,
            score,
            renormalise: false,
            scale: 1.0,
            bias,
            choice_bias,
            groups: None,
            near: None,
        }
    }

    /// Whether experts are chosen by scores; by logits else, which are in the same order.
    pub fn is_by_score(&self) -> bool {
        self.choice_bias || self.groups.is_some()
    }
}

/// Which experts a rank has: those of whole leaves of the sum over experts, whose leaves go by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpertShare {
    count: usize,
    rank: usize,
    world: usize,
}

impl ExpertShare {
    /// All of `count`.
    pub fn whole(count: usize) -> Self {
        Self { count, rank: 0, world: 1 }
    }

    /// Those of rank `rank` of `world`, of `count`.
    ///
    /// # Errors
    /// `Config` for a degree that is not 1, 2, 4 or 8, and a rank beyond it.
    pub fn of_rank(count: usize, rank: usize, world: usize) -> Result<Self> {
        check_rank(rank, world).map(|()| Self { count, rank, world })
    }

    /// Experts of all ranks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// First expert of every leaf, and their number at the end.
    pub fn bounds(&self) -> [usize; LEAVES + 1] {
        leaf_bounds(self.count, 1)
    }

    /// The leaves of this rank.
    pub fn leaves(&self) -> Range<usize> {
        let own = LEAVES / self.world;
        self.rank * own..(self.rank + 1) * own
    }

    /// The experts of this rank.
    pub fn experts(&self) -> Range<usize> {
        rank_columns(&self.bounds(), self.rank, self.world)
    }

    /// Whether other ranks have some.
    pub fn is_part(&self) -> bool {
        self.world > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activation_is_found_by_its_name() {
        for act in Act::ALL {
            assert_eq!(Act::from_name(act.name()), Some(act), "{}", act.name());
        }
        assert_eq!((Act::from_name("gelu_new"), Act::from_name("gelu_old")), (Some(Act::GeluTanh), None));
    }
}
