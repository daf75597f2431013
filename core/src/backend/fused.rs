//! Fused ops: each has a composed default over primitives, which a backend overrides where it has a kernel.
//!
//! A fused op and its composed form agree bit for bit on the CPU, for every element type: where the composed form
//! rounds in between, so does the fused one. Other backends state their own promise by mode.

use super::{Backend, Communicator, KvView, NormCall, PrimitiveOps, QkvCall, composed};
use crate::Result;
use crate::mem::{BufRef, MatMut, MatRef};
use crate::params::Act;

/// Fused ops over `B`'s memory and weights.
pub trait FusedOps<B: Backend<Stream = Self>>: PrimitiveOps<B> + Sized {
    /// `out += table[ids]`: ids `[tokens]`, out `[tokens, cols]`; scratch `[tokens, cols]`.
    fn embed_add(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        table: &B::Weight,
        scratch: MatMut<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        composed::embed_add::<B>(self, ids, table, scratch, out)
    }

    /// `residual += x; out = norm(residual)`: all `[rows, cols]`.
    fn add_norm(
        &mut self,
        residual: MatMut<'_, B::Mem>,
        x: MatRef<'_, B::Mem>,
        norm: NormCall<'_, B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        composed::add_norm::<B>(self, residual, x, norm, out)
    }

    /// `out = act(x w^T + bias)`.
    fn linear_act(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        act: Act,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        composed::linear_act::<B>(self, x, w, bias, act, out)
    }

    /// `[g | u] = x w^T + bias; out = act(g) * u`: w `[2 inner, k]`, scratch `[rows, 2 inner]`, out `[rows, inner]`.
    fn gated_linear(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        act: Act,
        scratch: MatMut<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        composed::gated_linear::<B>(self, x, w, bias, act, scratch, out)
    }

    /// `residual += x w^T + bias`: scratch and residual `[rows, n]`.
    fn linear_add(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        scratch: MatMut<'_, B::Mem>,
        residual: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        composed::linear_add::<B>(self, x, w, bias, scratch, residual)
    }

    /// Norms and rotates q and k of `qkv` `[tokens, q | k | v]` in place and appends k and v to their slots.
    fn qkv_rope_append(
        &mut self,
        qkv: MatMut<'_, B::Mem>,
        call: QkvCall<'_, B::Mem, B::Weight>,
        kv: KvView<'_, B::Mem>,
    ) -> Result<()> {
        composed::qkv_rope_append::<B>(self, qkv, call, kv)
    }

    /// `residual += sum of partial over all ranks; out = norm(residual)`: all `[rows, cols]`; partial is overwritten.
    fn reduce_add_norm(
        &mut self,
        comm: &mut B::Comm,
        residual: MatMut<'_, B::Mem>,
        mut partial: MatMut<'_, B::Mem>,
        norm: NormCall<'_, B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        comm.all_reduce(self, partial.reborrow())?;
        self.add_norm(residual, partial.as_ref(), norm, out)
    }
}
