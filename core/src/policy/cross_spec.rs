//! Attention over what an encoder gives, as a model's description has it.

use super::norm_spec::NormSpec;
use crate::params::Scores;

/// Attention of a decoder's block over what an encoder gives, between its own attention and the feed-forward
/// part: heads are as wide and as many as those of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossSpec {
    /// Norm of this part: see [`Placement`](super::Placement).
    pub norm: Option<NormSpec>,
    /// Scores; every key is seen.
    pub scores: Scores,
    /// Biases of queries, of keys and values, and of the output.
    pub bias: [bool; 3],
}

impl CrossSpec {
    /// With scores as a block's own, but for masks and positions.
    pub fn new(norm: Option<NormSpec>, scale: f32, bias: bool) -> Self {
        let scores = Scores { causal: false, ..Scores::causal(f64::from(scale)) };
        Self { norm, scores, bias: [bias; 3] }
    }
}
