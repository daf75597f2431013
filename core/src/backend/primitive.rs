//! The small vocabulary that every backend speaks.

use super::{AttnCall, Backend, Groups, KvView, NormCall, RopeView, RouteMut, SampleCall, Table};
use crate::mem::{BufMut, BufRef, MatMut, MatRef, StepShape};
use crate::params::{Act, Heads, Router, Scores};
use crate::{Error, Result};

/// What a backend answers that has no kernel for an op that only some families need.
fn missing(op: &str) -> Result<()> {
    Err(Error::Unsupported {
        op: op.into(),
        backend: "chosen".into(),
        reason: "it has no kernel for this op yet; run this model on cpu".into(),
    })
}

/// Primitive ops. `M` and `W` below are `B::Mem` and `B::Weight`; matrices are `[rows, cols]`.
///
/// Element types: activations in any of the backend's; all operands of a call share it unless said otherwise.
/// Arithmetic in f32, one rounding on output. Sums in the order of `docs/numerics.md`.
pub trait PrimitiveOps<B: Backend> {
    /// `out[t] = table[ids[t]]`: ids `[tokens]`, table `[vocab, cols]`, out `[tokens, cols]`. An id beyond the table
    /// gives a row of zeros.
    fn embed(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        table: &B::Weight,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// `out = x w^T + bias`: x `[rows, k]`, w `[n, k]`, bias `[n]`, out `[rows, n]`. `out` may have another element
    /// type than `x` (logits are f32).
    fn linear(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// Row-wise norm: x, out `[rows, cols]`.
    fn norm(
        &mut self,
        x: MatRef<'_, B::Mem>,
        norm: NormCall<'_, B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// `acc += x`.
    fn add(&mut self, acc: MatMut<'_, B::Mem>, x: MatRef<'_, B::Mem>) -> Result<()>;

    /// `x = act(x)` in place.
    fn activate(&mut self, x: MatMut<'_, B::Mem>, act: Act) -> Result<()>;

    /// `out = act(g) * u` of `gate_up = [g | u]`: gate_up `[rows, 2 inner]`, out `[rows, inner]`; act(g) is rounded to
    /// f32 only.
    fn gate(&mut self, gate_up: MatRef<'_, B::Mem>, act: Act, out: MatMut<'_, B::Mem>) -> Result<()>;

    /// `y = factor * x`, then `cap * tanh(y / cap)` where a cap is given, in place; one rounding at the end.
    fn scale(&mut self, x: MatMut<'_, B::Mem>, factor: f32, cap: Option<f32>) -> Result<()> {
        let _ = (x, factor, cap);
        missing("scale")
    }

    /// Chooses experts: logits `[tokens, experts]` f32, `out` as [`RouteMut`] says. The `top_k` largest logits of a row
    /// are chosen, ties go to the lowest expert, NaN counts as the smallest.
    ///
    /// Softmax: `w = e / s`, `e = exp(logit - max)`, `s` the sum over all experts in the order of `docs/numerics.md`
    /// (grain 1), or over the chosen in ascending order where renormalised. Sigmoid: `w = sigmoid(logit)`, divided by
    /// the sum of the chosen where renormalised (by 1 where that is 0). Then times the router's scale.
    fn route(
        &mut self,
        logits: MatRef<'_, B::Mem>,
        router: &Router,
        out: RouteMut<'_, B::Mem>,
    ) -> Result<()> {
        let _ = (logits, router, out);
        missing("route")
    }

    /// Every slot's product with its expert's weight: w holds `[n, k]` of every expert, one after the other
    /// ([`super::WeightUse::Experts`]), bias `[experts * n]`; out `[slots, n]`; x has a row per slot or, `[slots / top_k,
    /// k]`, a row per token. Rows are those of [`PrimitiveOps::linear`], bit for bit.
    fn expert_linear(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        groups: Groups<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        let _ = (x, w, bias, groups, out);
        missing("expert_linear")
    }

    /// `out[t] = sum_j weights[t, j] * y[t * top_k + j]`, one chain of multiply-adds from zero in ascending `j`; with
    /// `add`, that is added to `out[t]`. y `[tokens * top_k, n]`, weights `[tokens, top_k]` f32, out `[tokens, n]`.
    fn combine(
        &mut self,
        y: MatRef<'_, B::Mem>,
        weights: MatRef<'_, B::Mem>,
        add: bool,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        let _ = (y, weights, add, out);
        missing("combine")
    }

    /// Norm of every head in place: x `[rows, heads * width]`.
    fn head_norm(&mut self, x: MatMut<'_, B::Mem>, width: usize, norm: NormCall<'_, B::Weight>)
    -> Result<()>;

    /// Rotates every head in place: x `[tokens, heads * width]`; row `t` turns by the angles of `positions[t]`.
    fn rope(
        &mut self,
        x: MatMut<'_, B::Mem>,
        width: usize,
        positions: BufRef<'_, B::Mem, u32>,
        rope: RopeView<'_, B::Mem>,
    ) -> Result<()>;

    /// Writes k `[tokens, kv_heads * k_dim]` and v `[tokens, kv_heads * v_dim]` to their slots; [`crate::mem::SKIP`]
    /// writes nothing.
    fn kv_append(
        &mut self,
        k: MatRef<'_, B::Mem>,
        v: MatRef<'_, B::Mem>,
        slots: BufRef<'_, B::Mem, i32>,
        kv: KvView<'_, B::Mem>,
    ) -> Result<()>;

    /// Copies whole pages: `pairs` is `[from, to, from, to, ...]`; a pair of equal numbers does nothing.
    fn kv_copy_pages(&mut self, pairs: BufRef<'_, B::Mem, u32>, kv: KvView<'_, B::Mem>) -> Result<()>;

    /// Schedules this step's attention, outside any captured region; `plan` was made for bounds that hold `shape`.
    fn plan_attention(&mut self, shape: StepShape, plan: &mut B::AttnPlan) -> Result<()>;

    /// Attention over pages: q `[tokens, heads * k_dim]`, out `[tokens, heads * v_dim]`. Query row `i` of sequence `s`
    /// has position `kv_lens[s] - queries + i` and sees what `scores` leaves it; a row that sees nothing is zero.
    /// Token rows outside every sequence are not written.
    fn attend(
        &mut self,
        plan: &B::AttnPlan,
        q: MatRef<'_, B::Mem>,
        kv: KvView<'_, B::Mem>,
        call: AttnCall<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// Attention without pages, for encoders: q, k, v hold all sequences one after the other, sequence `s` in rows
    /// `bounds[s]..bounds[s + 1]`; keys are numbered from 0 in each. Same arithmetic as [`PrimitiveOps::attend`].
    fn attend_dense(
        &mut self,
        q: MatRef<'_, B::Mem>,
        k: MatRef<'_, B::Mem>,
        v: MatRef<'_, B::Mem>,
        bounds: BufRef<'_, B::Mem, u32>,
        max_rows: usize,
        heads: Heads,
        scores: &Scores,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// `out[r] = x[rows[r]]`; a row number beyond `x` gives zeros.
    fn gather_rows(
        &mut self,
        x: MatRef<'_, B::Mem>,
        rows: BufRef<'_, B::Mem, u32>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()>;

    /// `out = x`, rounded to `out`'s element type.
    fn convert(&mut self, x: MatRef<'_, B::Mem>, out: MatMut<'_, B::Mem>) -> Result<()>;

    /// `dst[index] = value` for every `(index, value)` of `pairs`; indices beyond `dst` do nothing.
    fn patch(&mut self, pairs: BufRef<'_, B::Mem, u32>, dst: BufMut<'_, B::Mem, u32>) -> Result<()>;

    /// Clears row `slot` of the seen bits and sets those of `ids`; when a request enters.
    fn mark_seen(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        slot: usize,
        words: usize,
        seen: BufMut<'_, B::Mem, u32>,
    ) -> Result<()>;

    /// `out[r]` = column of the largest value of row `r`; ties go to the lowest.
    fn argmax(&mut self, x: MatRef<'_, B::Mem>, out: BufMut<'_, B::Mem, u32>) -> Result<()>;

    /// Draws `out[r]` from row `r` of f32 logits `[rows, vocab]` by the rule of [`crate::sample`]; rows without a slot
    /// give `u32::MAX`.
    fn sample(
        &mut self,
        logits: MatRef<'_, B::Mem>,
        call: SampleCall<'_, B::Mem>,
        out: BufMut<'_, B::Mem, u32>,
    ) -> Result<()>;

    /// A sequence's cache as plain rows: positions `0..out_k.rows` of table row `row`, out_k `[positions, kv_heads *
    /// k_dim]`, out_v `[positions, kv_heads * v_dim]` (serialization and tests).
    fn kv_read(
        &mut self,
        kv: KvView<'_, B::Mem>,
        table: Table<'_, B::Mem>,
        row: usize,
        out_k: MatMut<'_, B::Mem>,
        out_v: MatMut<'_, B::Mem>,
    ) -> Result<()>;
}
