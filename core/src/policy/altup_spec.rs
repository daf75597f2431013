//! Several residual streams, and a low-rank path next to attention, as a model's description has them.

use super::norm_spec::NormSpec;

/// Residual streams of which a block computes one and predicts all (alternating updates, arXiv 2301.13310;
/// Gemma 3n). With `m(y) = tanh(R n(y) / hidden)` and `x[a]` the active stream, a block begins with
/// `p[i] = x[i] + sum over j of (P m(x[a]))[i * inputs + j] x[j]`, makes `y` of `p[a]` as its only residual
/// stream, and ends with `x[i] = p[i] + (1 + (C m(y))[i]) (y - p[a])`. Where it has an input of its own, that
/// reads `x[a]`, and what it gives joins all streams but the first.
///
/// Before the first block stream 0 is the embedding `e`, stream `i` is `W[i] e`; behind the last one the
/// residual stream is the mean of stream 0 and of `V[i] x[i]`; what these matmuls give is scaled to the root
/// of the mean square of `e`, or of stream 0.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AltupSpec {
    /// Streams; 2 at least.
    pub inputs: usize,
    /// The one that blocks compute.
    pub active: usize,
    /// The norm `n`.
    pub norm: NormSpec,
    /// Largest size of the values of `C`, which are held within it while loading.
    pub clip: Option<f32>,
    /// Whether what the block's own input reads is multiplied by stored factors, one for each column.
    pub scaled: bool,
}

impl AltupSpec {
    /// Mean squares of streams below this count as this where they are divided by.
    pub const FLOOR: f32 = 1e-5;

    /// So many streams, of which blocks compute the first.
    pub fn new(inputs: usize, norm: NormSpec) -> Self {
        Self { inputs, active: 0, norm, clip: None, scaled: false }
    }
}

/// A low-rank path next to attention (learned augmented residual layers, arXiv 2411.07501): of `u`, what
/// attention reads, `x = (x + attention(u) + u + n(B A u)) / sqrt(2)`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LaurelSpec {
    /// Columns that `A` gives.
    pub rank: usize,
    /// The norm `n`.
    pub norm: NormSpec,
}

impl LaurelSpec {
    /// Of this rank.
    pub fn new(rank: usize, norm: NormSpec) -> Self {
        Self { rank, norm }
    }
}
