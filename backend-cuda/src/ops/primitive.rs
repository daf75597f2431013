//! `PrimitiveOps`, by forwarding to the stems.

use super::*;
use crate::{Cuda, CudaMem as M, CudaPlan, CudaStream, CudaWeight as W};
use engraft_core::backend::{AttnCall, KvView, NormCall, PrimitiveOps, RopeView, SampleCall, Table};
use engraft_core::mem::{BufMut, MatMut, StepShape};
use engraft_core::ops::{Heads, Scores};

fn absent(op: &str) -> Result<()> {
    Err(Error::Unsupported { op: op.into(), backend: "cuda".into(), reason: "no kernel yet".into() })
}

impl PrimitiveOps<Cuda> for CudaStream {
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
    fn head_norm(&mut self, x: MatMut<'_, M>, width: usize, norm: NormCall<'_, W>) -> Result<()> {
        norm::head_norm(self, x, width, norm)
    }
    fn rope(&mut self, _: MatMut<'_, M>, _: usize, _: BufRef<'_, M, u32>, _: RopeView<'_, M>) -> Result<()> {
        absent("rope")
    }
    fn kv_append(
        &mut self,
        _: MatRef<'_, M>,
        _: MatRef<'_, M>,
        _: BufRef<'_, M, i32>,
        _: KvView<'_, M>,
    ) -> Result<()> {
        absent("kv_append")
    }
    fn kv_copy_pages(&mut self, _: BufRef<'_, M, u32>, _: KvView<'_, M>) -> Result<()> {
        absent("kv_copy_pages")
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut CudaPlan) -> Result<()> {
        crate::stream::plan(shape, plan)
    }
    fn attend(
        &mut self,
        _: &CudaPlan,
        _: MatRef<'_, M>,
        _: KvView<'_, M>,
        _: AttnCall<'_, M>,
        _: MatMut<'_, M>,
    ) -> Result<()> {
        absent("attend")
    }
    fn attend_dense(
        &mut self,
        _: MatRef<'_, M>,
        _: MatRef<'_, M>,
        _: MatRef<'_, M>,
        _: BufRef<'_, M, u32>,
        _: usize,
        _: Heads,
        _: &Scores,
        _: MatMut<'_, M>,
    ) -> Result<()> {
        absent("attend_dense")
    }
    fn gather_rows(&mut self, _: MatRef<'_, M>, _: BufRef<'_, M, u32>, _: MatMut<'_, M>) -> Result<()> {
        absent("gather_rows")
    }
    fn convert(&mut self, x: MatRef<'_, M>, out: MatMut<'_, M>) -> Result<()> {
        elementwise::convert(self, x, out)
    }
    fn patch(&mut self, _: BufRef<'_, M, u32>, _: BufMut<'_, M, u32>) -> Result<()> {
        absent("patch")
    }
    fn mark_seen(&mut self, _: BufRef<'_, M, u32>, _: usize, _: usize, _: BufMut<'_, M, u32>) -> Result<()> {
        absent("mark_seen")
    }
    fn argmax(&mut self, _: MatRef<'_, M>, _: BufMut<'_, M, u32>) -> Result<()> {
        absent("argmax")
    }
    fn sample(&mut self, _: MatRef<'_, M>, _: SampleCall<'_, M>, _: BufMut<'_, M, u32>) -> Result<()> {
        absent("sample")
    }
    fn kv_read(
        &mut self,
        _: KvView<'_, M>,
        _: Table<'_, M>,
        _: usize,
        _: MatMut<'_, M>,
        _: MatMut<'_, M>,
    ) -> Result<()> {
        absent("kv_read")
    }
}
