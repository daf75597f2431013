//! `FusedOps`: products with their epilogues, residual and norm, embedding sums, rotation and append.

use super::*;
use crate::{Wgpu, WgpuMem as M, WgpuStream, WgpuWeight as W};
use engraft_core::backend::{FusedOps, KvView, NormCall, QkvCall};
use engraft_core::mem::{BufRef, MatMut, MatRef};
use linear::Then;

impl FusedOps<Wgpu> for WgpuStream {
    fn embed_add(
        &mut self,
        ids: BufRef<'_, M, u32>,
        table: &W,
        _: MatMut<'_, M>,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        embed::embed(self, ids, table, out, true)
    }
    fn add_norm(
        &mut self,
        residual: MatMut<'_, M>,
        x: MatRef<'_, M>,
        norm: NormCall<'_, W>,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        norm::add_norm(self, residual, x, norm, out)
    }
    fn qkv_rope_append(
        &mut self,
        qkv: MatMut<'_, M>,
        call: QkvCall<'_, M, W>,
        kv: KvView<'_, M>,
    ) -> Result<()> {
        rope::qkv_rope_append(self, qkv, call, kv)
    }
    fn linear_act(
        &mut self,
        x: MatRef<'_, M>,
        w: &W,
        bias: Option<&W>,
        act: Act,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        linear::linear(self, x, w, bias, Then::Activate(activation(act)?), out)
    }
    fn gated_linear(
        &mut self,
        x: MatRef<'_, M>,
        w: &W,
        bias: Option<&W>,
        act: Act,
        _: MatMut<'_, M>,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        linear::linear(self, x, w, bias, Then::Activate(activation(act)?), out)
    }
    fn linear_add(
        &mut self,
        x: MatRef<'_, M>,
        w: &W,
        bias: Option<&W>,
        _: MatMut<'_, M>,
        residual: MatMut<'_, M>,
    ) -> Result<()> {
        linear::linear(self, x, w, bias, Then::AddTo, residual)
    }
}
