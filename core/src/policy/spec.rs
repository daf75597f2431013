//! What a model is made of: the vocabulary that policies speak and `model` executes.
//!
//! Plain values. What a value means for operands (which roles exist, their shapes) is in `roles`; what it
//! means for a step is in `model`. A family that needs a word that is not here adds it here first.

use super::altup_spec::{AltupSpec, LaurelSpec};
use super::cross_spec::CrossSpec;
use super::disentangled::{Disentangled, LayerConv, RelativeTable};
use super::group::Group;
use super::index_spec::IndexSpec;
use super::layer_inputs::{LayerInput, LayerInputs};
use super::moe_spec::MoeSpec;
use super::norm_spec::{NormSpec, QkNorm};
use super::positions::{BucketSpec, LearnedPositions, QueryGrowth, Sinusoids};
use super::rope_spec::RopeSpec;
use super::stem::StemSpec;
use crate::params::{Act, Clamp, Heads, Scores};

/// Which way tokens see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Causal, with a KV cache.
    Decoder,
    /// Whole texts or images at once, without a cache; what sees what is in each block's [`Scores`].
    Encoder,
}

/// How a block's two parts `f` (attention) and `g` (feed-forward) join the residual stream `x`; `n` and `m`
/// are the norms before them, `p` and `q` those after them, each where the block has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// `x += p(f(n(x)))`, then `x += q(g(m(x)))`.
    Pre,
    /// `x = n(x + f(x))`, then `x = m(x + g(x))`.
    Post,
    /// `x += f(n(x)) + g(m(x))`; without `m` both read `n(x)`.
    Parallel,
    /// `x = n(x)`, `x += f(x)`, `x = m(x)`, `x += g(x)`: the residual stream goes through the norms (BLOOM's
    /// `apply_residual_connection_post_layernorm`).
    NormedResidual,
}

/// An image split into patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchSpec {
    /// Channels of a pixel.
    pub channels: usize,
    /// Pixels of the image's side.
    pub image: usize,
    /// Pixels of a patch's side.
    pub patch: usize,
}

impl PatchSpec {
    /// Patches of an image.
    pub fn count(&self) -> usize {
        (self.image / self.patch).pow(2)
    }

    /// Values of a patch: `[channel, row, column]`.
    pub fn values(&self) -> usize {
        self.channels * self.patch * self.patch
    }
}

/// A projection inside the embedding, from the token table's width to the hidden size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Project {
    /// Tokens are projected, then positions of the hidden size are added (OPT-350m).
    Tokens,
    /// All is added and normed at the token table's width, then projected, with a bias (ELECTRA, ALBERT; of
    /// sound whatever the width is).
    Sum,
}

/// From ids (pixels, features of sound) to what enters the first block.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EmbedSpec {
    /// Columns of the token table; a projection follows when it is not the hidden size (see [`Project`]).
    pub width: usize,
    /// Where the projection stands, if there is one.
    pub project: Project,
    /// Learned positions.
    pub positions: Option<LearnedPositions>,
    /// Computed positions, in the place of learned ones.
    pub sinusoids: Option<Sinusoids>,
    /// Token types (segments).
    pub token_types: Option<usize>,
    /// Norm over the sum.
    pub norm: Option<NormSpec>,
    /// Factor of the token rows (Gemma: the root of the hidden size).
    pub scale: Option<f32>,
    /// Patches of pixels take the place of the token table.
    pub patches: Option<PatchSpec>,
    /// Convolutions over features of sound take the place of the token table.
    pub stem: Option<StemSpec>,
    /// Of an encoder next to a decoder: the decoder's token table is read, there is none of its own.
    pub shared: bool,
    /// Inputs of the blocks' own.
    pub layers: Option<LayerInputs>,
    /// Rows of distances, which blocks make queries and keys of.
    pub relative: Option<RelativeTable>,
}

impl EmbedSpec {
    /// A token table and nothing else.
    pub fn tokens(width: usize) -> Self {
        Self {
            width,
            project: Project::Tokens,
            positions: None,
            sinusoids: None,
            token_types: None,
            norm: None,
            scale: None,
            patches: None,
            stem: None,
            shared: false,
            layers: None,
            relative: None,
        }
    }

    /// Whether it reads a token table, its own or a decoder's.
    pub fn reads_tokens(&self) -> bool {
        self.patches.is_none() && self.stem.is_none()
    }

    /// Whether a projection follows.
    pub fn projects(&self, hidden: usize) -> bool {
        self.width != hidden || (self.project == Project::Sum && self.stem.is_some())
    }

    /// Columns of the sum of tokens, positions and token types.
    pub fn sum_width(&self, hidden: usize) -> usize {
        if self.project == Project::Sum { self.width } else { hidden }
    }
}

/// The dense feed-forward part of a block; next to experts, the one that all tokens share.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MlpSpec {
    /// Columns between the two matmuls; 0: there is no dense part.
    pub inner: usize,
    /// The activation.
    pub act: Act,
    /// `act(gate) * up` instead of `act(up)`.
    pub gated: bool,
    /// Limits of gate and up, in the place of `act(gate) * up`.
    pub clamp: Option<Clamp>,
    /// xIELU in the place of the activation, by four constants of the block's own
    /// ([`Slot::ActConstants`](super::Slot::ActConstants)); not gated, and not of experts.
    pub xielu: bool,
    /// Gates are cut off at so many standard deviations above their mean, over all of a row, before the
    /// activation (Gemma 3n's sparse activations); of gated parts without a clamp, and not of experts.
    pub cutoff: Option<f32>,
}

impl MlpSpec {
    /// `down(act(up(x)))`, with `gated` `down(act(gate(x)) * up(x))`.
    pub fn new(inner: usize, act: Act, gated: bool) -> Self {
        Self { inner, act, gated, clamp: None, xielu: false, cutoff: None }
    }
}

/// What queries and keys read instead of the attention part's input `x` (Yuan's localized filtering; values
/// read `x`):
/// `norm(x + c)`, `c[t] = W2 [y[t - 1] | y[t]] + b2`, `y[t] = W1 [x[t - 1] | x[t]] + b1`, where what stands
/// before the first token is zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FilterSpec {
    /// Columns of `y`.
    pub middle: usize,
    /// The norm.
    pub norm: NormSpec,
}

/// Keys and values that all heads make of one row of a position (multi-head latent attention, arXiv
/// 2405.04434): [`Heads`] describe what is kept, one key head of `rotated + rank` columns whose value is the
/// row of `rank` columns.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LatentSpec {
    /// Columns between the two matmuls of queries; none: one matmul.
    pub query_rank: Option<usize>,
    /// Columns of a head's query and key that do not rotate.
    pub plain: usize,
    /// Columns of a head's value.
    pub value: usize,
    /// Of the rows between matmuls.
    pub norm: NormSpec,
    /// Factor of the row that is kept, behind its norm, whose stored values are multiplied by it while
    /// loading; not of the rotated part (LongCat-Flash).
    pub factor: Option<f32>,
    /// Whether a file has a matrix of the keys of all heads, turned, and one of their values, instead of one
    /// of both (GGUF).
    pub apart: bool,
}

impl LatentSpec {
    /// Columns of a head's query: plain, then rotated.
    pub fn query(&self, heads: Heads) -> usize {
        self.plain + heads.k_dim - heads.v_dim
    }
}

/// The encoder next to a decoder, and how the decoder begins.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// The stack, whose last hidden states the decoder's blocks read.
    pub stack: ModelSpec,
    /// What the decoder begins with.
    pub start: Vec<u32>,
}

impl EncoderSpec {
    /// The convolutions that it begins with, where it reads sound.
    pub fn stem(&self) -> Option<&StemSpec> {
        self.stack.embed.stem.as_ref()
    }

    /// What the decoder begins with: its own first token, then `prompt` in the place of what the model's
    /// files say. Of sound, where text may stand in front of that token, a prompt that has it is all of it.
    pub fn prompt(&self, prompt: &[u32]) -> Vec<u32> {
        match prompt {
            [] => self.start.clone(),
            own if self.stem().is_some() && self.start.first().is_some_and(|first| own.contains(first)) => {
                own.to_vec()
            }
            own => self.start.iter().take(1).chain(own).copied().collect(),
        }
    }
}

/// What the heads' values are multiplied with before the attention output: `act(W x)`, `x` what queries read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadGate {
    /// The activation.
    pub act: Act,
    /// Whether a head has one for all of its values (Laguna), not one for each (AFMoE).
    pub per_head: bool,
}

impl HeadGate {
    /// A gate of every value, or one of every head.
    pub fn new(act: Act, per_head: bool) -> Self {
        Self { act, per_head }
    }
}

/// One block.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct BlockSpec {
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: Scores,
    /// A bias of scores by the distance from query to key, from a table of buckets.
    pub buckets: Option<BucketSpec>,
    /// Score terms by distance that depend on what is at it; of encoders alone.
    pub disentangled: Option<Disentangled>,
    /// Attention over what an encoder gives.
    pub cross: Option<CrossSpec>,
    /// Whether every head has a sink: a score without a key or a value (gpt-oss).
    pub sinks: bool,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Norm of the heads' values, which no file has values for (Gemma 4); none with a filter or a latent, as
    /// the two that follow.
    pub value_norm: Option<NormSpec>,
    /// Factor of the heads' values.
    pub value_factor: Option<f32>,
    /// Whether values are the keys, before their norm and rotation.
    pub keys_are_values: bool,
    /// The earlier block whose keys and values this one reads; it has none of its own, then. Of decoders
    /// alone, and none with a filter or a latent.
    pub kv_from: Option<usize>,
    /// Largest size of queries, keys and values, behind the norms and before the rotation (OLMo's
    /// `clip_qkv`); none with a latent, or with norms after the rotation.
    pub qkv_limit: Option<f32>,
    /// Gates of what the heads give; none with a latent.
    pub attn_gate: Option<HeadGate>,
    /// What queries and keys read; with a filter, values have a matmul of their own.
    pub filter: Option<FilterSpec>,
    /// Keys and values of one row for all heads; queries, keys and values have matmuls of their own, then.
    pub latent: Option<LatentSpec>,
    /// Which keys queries read, of latent attention with two matmuls of queries.
    pub index: Option<IndexSpec>,
    /// Index into [`ModelSpec::ropes`].
    pub rope: Option<usize>,
    /// Factors of queries by position; one description for all blocks that have any.
    pub query_growth: Option<QueryGrowth>,
    /// Norm of the attention part: see [`Placement`].
    pub attn_norm: Option<NormSpec>,
    /// Norm of what attention gives.
    pub attn_post: Option<NormSpec>,
    /// Norm of the feed-forward part.
    pub mlp_norm: Option<NormSpec>,
    /// Norm of what the feed-forward part gives.
    pub mlp_post: Option<NormSpec>,
    /// Dense feed-forward part.
    pub mlp: MlpSpec,
    /// Experts.
    pub moe: Option<MoeSpec>,
    /// Biases of qkv, attention output, gate/up or up, down.
    pub bias: [bool; 4],
    /// Factor of what either part gives, before it joins the residual stream (Granite).
    pub branch_factor: Option<f32>,
    /// What an input of its own adds behind the feed-forward part.
    pub input: Option<LayerInput>,
    /// Several residual streams, of which it computes one; one description for all blocks of a model.
    pub altup: Option<AltupSpec>,
    /// What joins the residual stream together with attention.
    pub laurel: Option<LaurelSpec>,
    /// Whether the residual stream is multiplied by a stored factor at the block's end.
    pub end_factor: bool,
    /// A convolution next to the block, whose sum is normed again; of post-norm encoders alone.
    pub conv: Option<LayerConv>,
}

impl BlockSpec {
    /// Parts of the fused matmul of queries, keys and values: those that are not made otherwise.
    pub fn qkv_parts(&self) -> usize {
        match (self.kv_from, self.filter.is_some() || self.keys_are_values) {
            (Some(_), _) => 1,
            (None, true) => 2,
            (None, false) => 3,
        }
    }

    /// Columns that this matmul gives.
    pub fn qkv_cols(&self) -> usize {
        let columns = [self.heads.q_cols(), self.heads.k_cols(), self.heads.v_cols()];
        columns[..self.qkv_parts()].iter().sum()
    }

    /// Columns that a head gives to the attention output.
    pub fn head_out(&self) -> usize {
        self.latent.map_or(self.heads.v_dim, |latent| latent.value)
    }

    /// Columns that the attention output's matmul reads.
    pub fn out_cols(&self) -> usize {
        self.heads.heads * self.head_out()
    }

    /// A block with the same norm before both parts, scores scaled by the root of the head width, nothing
    /// rotated and no biases.
    pub fn new(heads: Heads, norm: NormSpec, mlp: MlpSpec) -> Self {
        Self {
            heads,
            scores: Scores::causal(1.0 / (heads.k_dim as f64).sqrt()),
            buckets: None,
            disentangled: None,
            cross: None,
            sinks: false,
            qk_norm: None,
            value_norm: None,
            value_factor: None,
            keys_are_values: false,
            kv_from: None,
            qkv_limit: None,
            attn_gate: None,
            filter: None,
            latent: None,
            index: None,
            rope: None,
            query_growth: None,
            attn_norm: Some(norm),
            attn_post: None,
            mlp_norm: Some(norm),
            mlp_post: None,
            mlp,
            moe: None,
            bias: [false; 4],
            branch_factor: None,
            input: None,
            altup: None,
            laurel: None,
            end_factor: false,
            conv: None,
        }
    }
}

/// What stands between the last hidden state and the matmul of a head: `norm(act(dense(x)))`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct HeadTransform {
    /// The activation.
    pub act: Act,
    /// The norm, where there is one.
    pub norm: Option<NormSpec>,
    /// Columns.
    pub width: usize,
    /// Whether the dense layer has a bias.
    pub bias: bool,
}

impl HeadTransform {
    /// `act(dense(x))` of so many columns.
    pub fn new(act: Act, width: usize) -> Self {
        Self { act, norm: None, width, bias: true }
    }
}

/// What the logits of a token are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenHead {
    /// The vocabulary: the next token, or a masked one.
    Vocabulary,
    /// Labels of the token.
    Labels,
    /// Whether an answer starts here, and whether it ends here: two logits.
    Span,
}

/// What reads the last hidden state.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum HeadSpec {
    /// Nothing: the hidden states are the result.
    None,
    /// Logits of every token.
    Tokens {
        /// What they are over.
        of: TokenHead,
        /// How many.
        count: usize,
        /// Shares the token table.
        tied: bool,
        /// Has a bias.
        bias: bool,
        /// What comes before.
        transform: Option<HeadTransform>,
        /// Factor of the logits.
        scale: f32,
        /// `cap * tanh(logits / cap)`.
        cap: Option<f32>,
        /// Every row of the weight is divided by its length while loading (Baichuan 2).
        unit_rows: bool,
    },
    /// Logits of the pooled row.
    Labels {
        /// How many.
        count: usize,
        /// Has a bias.
        bias: bool,
    },
}

impl HeadSpec {
    /// Next-token logits.
    pub fn tokens(vocab: usize, tied: bool, bias: bool) -> Self {
        HeadSpec::Tokens {
            of: TokenHead::Vocabulary,
            count: vocab,
            tied,
            bias,
            transform: None,
            scale: 1.0,
            cap: None,
            unit_rows: false,
        }
    }

    /// Whether every token has logits of its own.
    pub fn is_per_token(&self) -> bool {
        matches!(self, HeadSpec::Tokens { .. })
    }

    /// Whether it shares the token table.
    pub fn is_tied(&self) -> bool {
        matches!(self, HeadSpec::Tokens { tied: true, .. })
    }

    /// What comes before the matmul.
    pub fn transform(&self) -> Option<HeadTransform> {
        match self {
            HeadSpec::Tokens { transform, .. } => *transform,
            _ => None,
        }
    }
}

/// The row of a text (or image) that is pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolSource {
    /// The first one (class token).
    First,
    /// The last one.
    Last,
    /// The last one with another id than this, the padding's; the first one of a text of nothing else.
    LastExcept(u32),
    /// The first one with this id; the last one of a text that has none.
    Token(u32),
    /// The first one with the largest id of its text (the end token of the older CLIP files).
    LargestToken,
}

/// A pooled row of every text: `act(dense(norm(row)))`, each where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PoolSpec {
    /// Which row.
    pub from: PoolSource,
    /// Norm of the row (CLIP's image tower).
    pub norm: Option<NormSpec>,
    /// Columns of the dense layer and whether it has a bias.
    pub dense: Option<(usize, bool)>,
    /// Activation of the dense layer.
    pub act: Option<Act>,
}

impl PoolSpec {
    /// The row itself.
    pub fn new(from: PoolSource) -> Self {
        Self { from, norm: None, dense: None, act: None }
    }
}

/// A whole model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
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
    /// Per block the one whose operands it has, itself or an earlier one; empty: every block has its own.
    pub shared: Vec<usize>,
    /// Norm after the last block.
    pub final_norm: Option<NormSpec>,
    /// Columns after a projection of the last hidden state (OPT-350m).
    pub project_out: Option<usize>,
    /// The pooled row.
    pub pooler: Option<PoolSpec>,
    /// Head.
    pub head: HeadSpec,
    /// The encoder whose hidden states a decoder's blocks read.
    pub encoder: Option<Box<EncoderSpec>>,
    /// What was assumed beyond what the checkpoint says, one sentence each; for reports.
    pub assumed: Vec<String>,
    /// What one rank of several has of the model: blocks are what it has of them. None: all is here.
    pub group: Option<Group>,
}
