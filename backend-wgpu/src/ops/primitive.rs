//! `PrimitiveOps`, by forwarding to the stems.

use super::*;
use crate::{Wgpu, WgpuMem as M, WgpuPlan, WgpuStream, WgpuWeight as W};
use engraft_core::Result;
use engraft_core::backend::{
    AttnCall, Groups, KvView, NormCall, PrimitiveOps, RopeView, RouteMut, SampleCall, Table,
};
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef, StepShape};
use engraft_core::params::{Heads, Router, Scores};

impl PrimitiveOps<Wgpu> for WgpuStream {
    fn embed(&mut self, ids: BufRef<'_, M, u32>, table: &W, out: MatMut<'_, M>) -> Result<()> {
        embed::embed(self, ids, table, out, false)
    }
    fn linear(&mut self, x: MatRef<'_, M>, w: &W, bias: Option<&W>, out: MatMut<'_, M>) -> Result<()> {
        linear::linear(self, x, w, bias, linear::Then::Nothing, out)
    }
    fn norm(&mut self, x: MatRef<'_, M>, norm: NormCall<'_, W>, out: MatMut<'_, M>) -> Result<()> {
        norm::norm(self, x, norm, out)
    }
    fn add(&mut self, acc: MatMut<'_, M>, x: MatRef<'_, M>) -> Result<()> {
        elementwise::add(self, acc, x)
    }
    fn activate(&mut self, x: MatMut<'_, M>, act: Act) -> Result<()> {
        elementwise::activate(self, x, act)
    }
    fn gate(&mut self, gate_up: MatRef<'_, M>, act: Act, out: MatMut<'_, M>) -> Result<()> {
        elementwise::gate(self, gate_up, act, out)
    }
    fn scale(&mut self, x: MatMut<'_, M>, factor: f32, cap: Option<f32>) -> Result<()> {
        elementwise::scale(self, x, factor, cap)
    }
    fn route(&mut self, logits: MatRef<'_, M>, router: &Router, out: RouteMut<'_, M>) -> Result<()> {
        moe::route(self, logits, router, out)
    }
    fn expert_linear(
        &mut self,
        x: MatRef<'_, M>,
        w: &W,
        bias: Option<&W>,
        groups: Groups<'_, M>,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        moe::expert_linear(self, x, w, bias, groups, out)
    }
    fn combine(
        &mut self,
        y: MatRef<'_, M>,
        weights: MatRef<'_, M>,
        add: bool,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        moe::combine(self, y, weights, add, out)
    }
    fn head_norm(&mut self, x: MatMut<'_, M>, width: usize, norm: NormCall<'_, W>) -> Result<()> {
        norm::head_norm(self, x, width, norm)
    }
    fn rope(
        &mut self,
        x: MatMut<'_, M>,
        width: usize,
        positions: BufRef<'_, M, u32>,
        rope: RopeView<'_, M>,
    ) -> Result<()> {
        rope::rope(self, x, width, positions, rope)
    }
    fn kv_append(
        &mut self,
        k: MatRef<'_, M>,
        v: MatRef<'_, M>,
        slots: BufRef<'_, M, i32>,
        kv: KvView<'_, M>,
    ) -> Result<()> {
        kv::append(self, k, v, slots, kv)
    }
    fn kv_copy_pages(&mut self, pairs: BufRef<'_, M, u32>, kv: KvView<'_, M>) -> Result<()> {
        kv::copy_pages(self, pairs, kv)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut WgpuPlan) -> Result<()> {
        crate::stream::plan(shape, plan)
    }
    fn attend(
        &mut self,
        _: &WgpuPlan,
        q: MatRef<'_, M>,
        kv: KvView<'_, M>,
        call: AttnCall<'_, M>,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        attention::attend(self, q, kv, call, out)
    }
    fn attend_dense(
        &mut self,
        q: MatRef<'_, M>,
        k: MatRef<'_, M>,
        v: MatRef<'_, M>,
        bounds: BufRef<'_, M, u32>,
        _: usize,
        heads: Heads,
        scores: &Scores,
        out: MatMut<'_, M>,
    ) -> Result<()> {
        attention::attend_dense(self, [q, k, v], bounds, heads, scores, out)
    }
    fn gather_rows(&mut self, x: MatRef<'_, M>, rows: BufRef<'_, M, u32>, out: MatMut<'_, M>) -> Result<()> {
        rows::gather(self, x, rows, out)
    }
    fn convert(&mut self, x: MatRef<'_, M>, out: MatMut<'_, M>) -> Result<()> {
        elementwise::convert(self, x, out)
    }
    fn patch(&mut self, pairs: BufRef<'_, M, u32>, dst: BufMut<'_, M, u32>) -> Result<()> {
        rows::patch(self, pairs, dst)
    }
    fn mark_seen(
        &mut self,
        ids: BufRef<'_, M, u32>,
        slot: usize,
        words: usize,
        seen: BufMut<'_, M, u32>,
    ) -> Result<()> {
        rows::mark_seen(self, ids, slot, words, seen)
    }
    fn argmax(&mut self, x: MatRef<'_, M>, out: BufMut<'_, M, u32>) -> Result<()> {
        sample::argmax(self, x, out)
    }
    fn sample(
        &mut self,
        logits: MatRef<'_, M>,
        call: SampleCall<'_, M>,
        out: BufMut<'_, M, u32>,
    ) -> Result<()> {
        sample::sample(self, logits, call, out)
    }
    fn kv_read(
        &mut self,
        kv: KvView<'_, M>,
        table: Table<'_, M>,
        row: usize,
        out_k: MatMut<'_, M>,
        out_v: MatMut<'_, M>,
    ) -> Result<()> {
        kv::read(self, kv, table, row, out_k, out_v)
    }
}
