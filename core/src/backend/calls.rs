//! Operand groups of ops that have many: norms, rotary tables, KV slabs, attention, sampling.

use crate::kv::Table;
use crate::mem::{BufMut, BufRef, MatMut, StepView};
use crate::params::{Heads, NormKind, RopeStyle, Scores};
use crate::sample::SampleRow;

/// A norm with its weights.
#[derive(Debug)]
pub struct NormCall<'a, W> {
    /// Which norm.
    pub kind: NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// `[cols]`; none multiplies by one.
    pub weight: Option<&'a W>,
    /// `[cols]`, layer norm only.
    pub bias: Option<&'a W>,
    /// Multiply by `1 + weight` (Gemma).
    pub plus_one: bool,
}

impl<W> Clone for NormCall<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for NormCall<'_, W> {}

/// Rotary tables: `cos` and `sin` `[positions, pairs]` f32, one after the other in one buffer.
#[derive(Debug)]
pub struct RopeView<'a, M> {
    /// `[2, positions, pairs]`.
    pub table: BufRef<'a, M, f32>,
    /// Positions.
    pub positions: usize,
    /// Rotated pairs per head; the first `2 * pairs` columns of a head turn.
    pub pairs: usize,
    /// How pairs lie.
    pub style: RopeStyle,
}

impl<M> Clone for RopeView<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for RopeView<'_, M> {}

/// Attention over pages: which sequences, which scores.
#[derive(Debug)]
pub struct AttnCall<'a, M> {
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: &'a Scores,
    /// The step: bounds, table rows, lengths.
    pub step: StepView<'a, M>,
    /// Pages of the sequences.
    pub table: Table<'a, M>,
}

/// What happens between the fused q|k|v product and attention.
#[derive(Debug)]
pub struct QkvCall<'a, M, W> {
    /// Heads.
    pub heads: Heads,
    /// Norm of every query head, over its width.
    pub q_norm: Option<NormCall<'a, W>>,
    /// Norm of every key head.
    pub k_norm: Option<NormCall<'a, W>>,
    /// Rotary embedding of q and k.
    pub rope: Option<RopeView<'a, M>>,
    /// The step: positions and write slots.
    pub step: StepView<'a, M>,
}

/// Which experts a step's tokens go to, as [`super::PrimitiveOps::route`] leaves it on the device. A *slot* is one of the
/// `tokens * top_k` pairs of token and expert, `token * top_k + choice`.
#[derive(Debug)]
pub struct RouteMut<'a, M> {
    /// `[tokens * top_k]` the expert of every slot; ascending within a token.
    pub experts: BufMut<'a, M, u32>,
    /// `[tokens, top_k]` f32 weights of the slots.
    pub weights: MatMut<'a, M>,
    /// `[experts + 1]` then `[tokens * top_k]`: the slots of expert `e` are entries `groups[e]..groups[e + 1]` of the
    /// second part, in ascending order.
    pub groups: BufMut<'a, M, u32>,
}

/// Slots by expert, to read: see [`RouteMut`].
#[derive(Debug)]
pub struct Groups<'a, M> {
    /// `[tokens * top_k]`.
    pub experts: BufRef<'a, M, u32>,
    /// `[count + 1]` then `[tokens * top_k]`.
    pub groups: BufRef<'a, M, u32>,
    /// Experts.
    pub count: usize,
}

impl<M> Clone for Groups<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Groups<'_, M> {}

/// Sampling: one row of logits, one token.
#[derive(Debug)]
pub struct SampleCall<'a, M> {
    /// The sampling table `[slots]`: parameters of every live request.
    pub table: BufRef<'a, M, SampleRow>,
    /// Per row of logits the row of `table`; [`crate::mem::NO_ROW`] = draw nothing.
    pub slots: BufRef<'a, M, u32>,
    /// Per row the position of the new token.
    pub positions: BufRef<'a, M, u32>,
    /// `[slots, vocab / 32 rounded up]` bits of tokens already seen, for the repetition penalty; drawn tokens are
    /// added.
    pub seen: BufMut<'a, M, u32>,
    /// Words of one row of `seen`.
    pub seen_words: usize,
}
