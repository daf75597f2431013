//! What a model is made of: the vocabulary that policies speak and `model` executes.

use super::binding::{Part, Role, Slot};
use crate::ops::{Act, Heads, NormKind, RopeStyle, Scores};

/// Which way tokens see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Causal, with a KV cache.
    Decoder,
    /// Bidirectional, without.
    Encoder,
}

/// Where the norms of a block stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// `x += f(norm(x))`.
    Pre,
    /// `x = norm(x + f(x))`.
    Post,
}

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
}

/// Learned absolute positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub rows: usize,
    /// Row of position 0.
    pub offset: usize,
}

/// From ids to what enters the first block.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedSpec {
    /// Columns of the token table; a projection follows when it is not the hidden size.
    pub width: usize,
    /// Learned positions, added after the projection.
    pub positions: Option<LearnedPositions>,
    /// Token types (segments).
    pub kinds: Option<usize>,
    /// Norm over the sum.
    pub norm: Option<NormSpec>,
}

/// How rotary frequencies are stretched.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Original context length.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// Rotations above which frequencies are kept.
        beta_fast: f64,
        /// Rotations below which they are divided.
        beta_slow: f64,
        /// Original context length.
        original: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// Each frequency divided by its own factor, from [`Slot::RopeFactors`] (GGUF's `rope_freqs`).
    Stored,
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// How pairs lie.
    pub style: RopeStyle,
    /// Rotated columns of a head.
    pub columns: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// The feed-forward part of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpSpec {
    /// Columns between the two products.
    pub inner: usize,
    /// The activation.
    pub act: Act,
    /// `act(gate) * up` instead of `act(up)`.
    pub gated: bool,
}

/// One block.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockSpec {
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: Scores,
    /// Norm over every query and key head.
    pub qk_norm: Option<NormSpec>,
    /// Index into [`ModelSpec::ropes`].
    pub rope: Option<usize>,
    /// Norm of the attention part.
    pub attn_norm: NormSpec,
    /// Norm of the feed-forward part.
    pub mlp_norm: NormSpec,
    /// Feed-forward part.
    pub mlp: MlpSpec,
    /// Biases of qkv, attention output, gate/up or up, down.
    pub bias: [bool; 4],
}

/// What reads the last hidden state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadSpec {
    /// Nothing: the hidden states are the result.
    None,
    /// Next-token or masked-token logits; before them an optional dense layer, activation and norm (masked heads).
    Tokens {
        /// Shares the token table.
        tied: bool,
        /// Has a bias.
        bias: bool,
        /// `norm(act(dense(x)))` before.
        transform: Option<(Act, NormSpec)>,
    },
    /// Labels of the pooled first token.
    Labels {
        /// How many.
        count: usize,
    },
}

/// A whole model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The policy's family name, for reports.
    pub arch: String,
    /// Which way tokens see each other.
    pub family: Family,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Rows of the token table.
    pub vocab: usize,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// Embedding.
    pub embed: EmbedSpec,
    /// Rotary embeddings that blocks refer to.
    pub ropes: Vec<RopeSpec>,
    /// Where norms stand.
    pub placement: Placement,
    /// The blocks.
    pub blocks: Vec<BlockSpec>,
    /// Norm after the last block.
    pub final_norm: Option<NormSpec>,
    /// Columns after a projection of the last hidden state (OPT-350m).
    pub project_out: Option<usize>,
    /// Pooler: `tanh(dense(first token))`.
    pub pooler: bool,
    /// Head.
    pub head: HeadSpec,
}

impl ModelSpec {
    /// Columns that the head reads.
    pub fn out_width(&self) -> usize {
        self.project_out.unwrap_or(self.hidden)
    }

    /// Columns of the logits; 0 without a head.
    pub fn logit_cols(&self) -> usize {
        match self.head {
            HeadSpec::None => 0,
            HeadSpec::Tokens { .. } => self.vocab,
            HeadSpec::Labels { count } => count,
        }
    }

    fn linear_shape(&self, role: &Role) -> Option<(usize, usize, bool)> {
        let block = || role.layer.and_then(|l| self.blocks.get(l));
        Some(match role.slot {
            Slot::ProjectIn => (self.hidden, self.embed.width, false),
            Slot::Qkv => (block()?.heads.qkv_cols(), self.hidden, block()?.bias[0]),
            Slot::AttnOut => (self.hidden, block()?.heads.out_cols(), block()?.bias[1]),
            Slot::Up => {
                let b = block()?;
                (b.mlp.inner * (1 + usize::from(b.mlp.gated)), self.hidden, b.bias[2])
            }
            Slot::Down => (self.hidden, block()?.mlp.inner, block()?.bias[3]),
            Slot::ProjectOut => (self.project_out?, self.hidden, false),
            Slot::Pooler => (self.hidden, self.hidden, true),
            Slot::HeadDense => (self.hidden, self.hidden, true),
            Slot::Head => match self.head {
                HeadSpec::Tokens { bias, .. } => (self.vocab, self.out_width(), bias),
                HeadSpec::Labels { count } => (count, self.hidden, true),
                HeadSpec::None => return None,
            },
            _ => return None,
        })
    }

    fn norm_of(&self, role: &Role) -> Option<(NormSpec, usize)> {
        let block = || role.layer.and_then(|l| self.blocks.get(l));
        Some(match role.slot {
            Slot::EmbedNorm => (self.embed.norm?, self.hidden),
            Slot::AttnNorm => (block()?.attn_norm, self.hidden),
            Slot::MlpNorm => (block()?.mlp_norm, self.hidden),
            Slot::QNorm | Slot::KNorm => (block()?.qk_norm?, block()?.heads.k_dim),
            Slot::FinalNorm => (self.final_norm?, self.hidden),
            Slot::HeadNorm => match self.head {
                HeadSpec::Tokens { transform: Some((_, norm)), .. } => (norm, self.hidden),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// `(rows, cols)` that a role's operand has, or none if the model has no such role. Vectors are `(1, cols)`.
    pub fn shape(&self, role: &Role) -> Option<(usize, usize)> {
        if let Some((norm, cols)) = self.norm_of(role) {
            return (role.part == Part::Weight || norm.bias).then_some((1, cols));
        }
        if let Some((rows, cols, bias)) = self.linear_shape(role) {
            return match role.part {
                Part::Weight => Some((rows, cols)),
                Part::Bias => bias.then_some((1, rows)),
            };
        }
        if role.part == Part::Bias {
            return None;
        }
        match role.slot {
            Slot::TokenEmbed => Some((self.vocab, self.embed.width)),
            Slot::PositionEmbed => Some((self.embed.positions?.rows, self.hidden)),
            Slot::KindEmbed => Some((self.embed.kinds?, self.hidden)),
            Slot::RopeFactors => {
                let stored = self.ropes.iter().find(|r| r.scaling == RopeScaling::Stored)?;
                Some((1, stored.columns / 2))
            }
            _ => None,
        }
    }

    /// Rows of the parts that a role's operand stands for: q, k, v; gate, up; else one. Tensor parallelism cuts every
    /// part, and a file has one tensor for each part or one for all. Lengths, for a bias; none without such a role.
    pub fn parts(&self, role: &Role) -> Option<Vec<usize>> {
        let (rows, cols) = self.shape(role)?;
        let block = || role.layer.and_then(|l| self.blocks.get(l));
        Some(match role.slot {
            Slot::Qkv => {
                let h = block()?.heads;
                vec![h.q_cols(), h.k_cols(), h.v_cols()]
            }
            Slot::Up if block()?.mlp.gated => vec![block()?.mlp.inner; 2],
            _ if role.is_vector() => vec![cols],
            _ => vec![rows],
        })
    }

    /// Every role that must be filled for this model to run, in the order in which it runs.
    pub fn roles(&self) -> Vec<Role> {
        let tied = matches!(self.head, HeadSpec::Tokens { tied: true, .. });
        let mut roles = Vec::new();
        for slot in Slot::ALL {
            let layers: Vec<Option<usize>> =
                if slot.in_block() { (0..self.blocks.len()).map(Some).collect() } else { vec![None] };
            for layer in layers {
                for part in [Part::Weight, Part::Bias] {
                    let role = Role { layer, slot, part };
                    let skipped = match slot {
                        Slot::ProjectIn => self.embed.width == self.hidden,
                        Slot::Pooler => !self.pooler,
                        Slot::Head => tied && part == Part::Weight,
                        Slot::HeadDense => !matches!(self.head, HeadSpec::Tokens { transform: Some(_), .. }),
                        _ => false,
                    };
                    if !skipped && self.shape(&role).is_some() {
                        roles.push(role);
                    }
                }
            }
        }
        roles
    }
}
