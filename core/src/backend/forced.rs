//! `Composed<B>`: any backend with every fused op left to its default, so that a whole model runs fused against
//! composed on the same device.

use super::*;
use crate::mem::{BufMut, BufRef, MatMut, MatRef};
use crate::params::{Act, Heads, Router, Scores};
use std::future::Future;

/// A backend that never uses a fused kernel.
#[derive(Debug)]
pub struct Composed<B> {
    inner: Arc<B>,
    name: String,
}

impl<B: Backend> Composed<B> {
    /// Wraps a backend.
    pub fn new(inner: Arc<B>) -> Self {
        let name = format!("{} (composed)", inner.name());
        Self { inner, name }
    }
}

/// The stream of [`Composed`].
pub struct ComposedStream<B: Backend>(B::Stream);

/// The communicator of [`Composed`].
pub struct ComposedComm<B: Backend>(B::Comm);

impl<B: Backend> Backend for Composed<B> {
    type Mem = B::Mem;
    type Weight = B::Weight;
    type Graph = B::Graph;
    type AttnPlan = B::AttnPlan;
    type Stream = ComposedStream<B>;
    type Comm = ComposedComm<B>;

    fn name(&self) -> &str {
        &self.name
    }
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn numerics(&self) -> Numerics {
        self.inner.numerics()
    }
    fn alloc(&self, bytes: usize) -> Result<B::Mem> {
        self.inner.alloc(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<Self::Stream> {
        Ok(ComposedStream(self.inner.stream()?))
    }
    fn solo(self: &Arc<Self>) -> Result<Self::Comm> {
        Ok(ComposedComm(self.inner.solo()?))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<B::Weight> {
        self.inner.prepare_weight(weight)
    }
    fn kv_bytes(&self, layout: &KvLayout) -> (usize, usize) {
        self.inner.kv_bytes(layout)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<B::AttnPlan> {
        self.inner.attention_plan(bound)
    }
    fn coverage(&self, op: Op, signature: &Signature) -> Coverage {
        match op {
            Op::EmbedAdd
            | Op::AddNorm
            | Op::LinearAct
            | Op::GatedLinear
            | Op::LinearAdd
            | Op::QkvRopeAppend
            | Op::ReduceAddNorm => match self.inner.coverage(op, signature) {
                Coverage::Missing(reason) => Coverage::Missing(reason),
                _ => Coverage::Composed("composed model asked for".into()),
            },
            _ => self.inner.coverage(op, signature),
        }
    }
    fn ready(&self, kernels: &[&str]) -> Result<()> {
        self.inner.ready(kernels)
    }
}

impl<B: Backend> FusedOps<Composed<B>> for ComposedStream<B> {}

impl<B: Backend> PrimitiveOps<Composed<B>> for ComposedStream<B> {
    fn embed(&mut self, ids: BufRef<'_, B::Mem, u32>, t: &B::Weight, out: MatMut<'_, B::Mem>) -> Result<()> {
        self.0.embed(ids, t, out)
    }
    fn linear(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.linear(x, w, bias, out)
    }
    fn norm(
        &mut self,
        x: MatRef<'_, B::Mem>,
        norm: NormCall<'_, B::Weight>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.norm(x, norm, out)
    }
    fn add(&mut self, acc: MatMut<'_, B::Mem>, x: MatRef<'_, B::Mem>) -> Result<()> {
        self.0.add(acc, x)
    }
    fn activate(&mut self, x: MatMut<'_, B::Mem>, act: Act) -> Result<()> {
        self.0.activate(x, act)
    }
    fn gate(&mut self, gate_up: MatRef<'_, B::Mem>, act: Act, out: MatMut<'_, B::Mem>) -> Result<()> {
        self.0.gate(gate_up, act, out)
    }
    fn scale(&mut self, x: MatMut<'_, B::Mem>, factor: f32, cap: Option<f32>) -> Result<()> {
        self.0.scale(x, factor, cap)
    }
    fn route(
        &mut self,
        logits: MatRef<'_, B::Mem>,
        router: &Router,
        out: RouteMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.route(logits, router, out)
    }
    fn expert_linear(
        &mut self,
        x: MatRef<'_, B::Mem>,
        w: &B::Weight,
        bias: Option<&B::Weight>,
        groups: Groups<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.expert_linear(x, w, bias, groups, out)
    }
    fn combine(
        &mut self,
        y: MatRef<'_, B::Mem>,
        weights: MatRef<'_, B::Mem>,
        add: bool,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.combine(y, weights, add, out)
    }
    fn head_norm(
        &mut self,
        x: MatMut<'_, B::Mem>,
        width: usize,
        norm: NormCall<'_, B::Weight>,
    ) -> Result<()> {
        self.0.head_norm(x, width, norm)
    }
    fn rope(
        &mut self,
        x: MatMut<'_, B::Mem>,
        width: usize,
        positions: BufRef<'_, B::Mem, u32>,
        rope: RopeView<'_, B::Mem>,
    ) -> Result<()> {
        self.0.rope(x, width, positions, rope)
    }
    fn kv_append(
        &mut self,
        k: MatRef<'_, B::Mem>,
        v: MatRef<'_, B::Mem>,
        slots: BufRef<'_, B::Mem, i32>,
        kv: KvView<'_, B::Mem>,
    ) -> Result<()> {
        self.0.kv_append(k, v, slots, kv)
    }
    fn kv_copy_pages(&mut self, pairs: BufRef<'_, B::Mem, u32>, kv: KvView<'_, B::Mem>) -> Result<()> {
        self.0.kv_copy_pages(pairs, kv)
    }
    fn plan_attention(&mut self, shape: StepShape, plan: &mut B::AttnPlan) -> Result<()> {
        self.0.plan_attention(shape, plan)
    }
    fn attend(
        &mut self,
        plan: &B::AttnPlan,
        q: MatRef<'_, B::Mem>,
        kv: KvView<'_, B::Mem>,
        call: AttnCall<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.attend(plan, q, kv, call, out)
    }
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
    ) -> Result<()> {
        self.0.attend_dense(q, k, v, bounds, max_rows, heads, scores, out)
    }
    fn gather_rows(
        &mut self,
        x: MatRef<'_, B::Mem>,
        rows: BufRef<'_, B::Mem, u32>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.gather_rows(x, rows, out)
    }
    fn convert(&mut self, x: MatRef<'_, B::Mem>, out: MatMut<'_, B::Mem>) -> Result<()> {
        self.0.convert(x, out)
    }
    fn patch(&mut self, pairs: BufRef<'_, B::Mem, u32>, dst: BufMut<'_, B::Mem, u32>) -> Result<()> {
        self.0.patch(pairs, dst)
    }
    fn mark_seen(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        slot: usize,
        words: usize,
        seen: BufMut<'_, B::Mem, u32>,
    ) -> Result<()> {
        self.0.mark_seen(ids, slot, words, seen)
    }
    fn argmax(&mut self, x: MatRef<'_, B::Mem>, out: BufMut<'_, B::Mem, u32>) -> Result<()> {
        self.0.argmax(x, out)
    }
    fn sample(
        &mut self,
        logits: MatRef<'_, B::Mem>,
        call: SampleCall<'_, B::Mem>,
        out: BufMut<'_, B::Mem, u32>,
    ) -> Result<()> {
        self.0.sample(logits, call, out)
    }
    fn kv_read(
        &mut self,
        kv: KvView<'_, B::Mem>,
        table: Table<'_, B::Mem>,
        row: usize,
        out_k: MatMut<'_, B::Mem>,
        out_v: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.kv_read(kv, table, row, out_k, out_v)
    }
}

impl<B: Backend> Stream<Composed<B>> for ComposedStream<B> {
    type Event = <B::Stream as Stream<B>>::Event;
    type Ticket = <B::Stream as Stream<B>>::Ticket;

    fn upload<T: bytemuck::Pod>(&mut self, src: &[T], dst: BufMut<'_, B::Mem, T>) -> Result<()> {
        self.0.upload(src, dst)
    }
    fn download<T: bytemuck::Pod>(&mut self, src: BufRef<'_, B::Mem, T>) -> Result<Self::Ticket> {
        self.0.download(src)
    }
    fn collect<T: bytemuck::Pod>(
        &mut self,
        ticket: Self::Ticket,
        out: &mut [T],
    ) -> impl Future<Output = Result<()>> {
        self.0.collect(ticket, out)
    }
    fn submit(&mut self) -> Result<()> {
        self.0.submit()
    }
    fn sync(&mut self) -> Result<()> {
        self.0.sync()
    }
    fn record(&mut self) -> Result<Self::Event> {
        self.0.record()
    }
    fn elapsed_us(&mut self, from: &Self::Event, to: &Self::Event) -> Result<f64> {
        self.0.elapsed_us(from, to)
    }
    fn begin_capture(&mut self) -> Result<()> {
        self.0.begin_capture()
    }
    fn end_capture(&mut self) -> Result<B::Graph> {
        self.0.end_capture()
    }
    unsafe fn replay(&mut self, graph: &B::Graph) -> Result<()> {
        // SAFETY: the caller's promise is the inner stream's.
        unsafe { self.0.replay(graph) }
    }
}

impl<B: Backend> Communicator<Composed<B>> for ComposedComm<B> {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_reduce(&mut self, s: &mut ComposedStream<B>, x: MatMut<'_, B::Mem>) -> Result<()> {
        self.0.all_reduce(&mut s.0, x)
    }
    fn all_gather(
        &mut self,
        s: &mut ComposedStream<B>,
        x: MatRef<'_, B::Mem>,
        out: MatMut<'_, B::Mem>,
    ) -> Result<()> {
        self.0.all_gather(&mut s.0, x, out)
    }
    fn broadcast(
        &mut self,
        s: &mut ComposedStream<B>,
        x: BufMut<'_, B::Mem, u32>,
        root: usize,
    ) -> Result<()> {
        self.0.broadcast(&mut s.0, x, root)
    }
    fn barrier(&mut self, s: &mut ComposedStream<B>) -> Result<()> {
        self.0.barrier(&mut s.0)
    }
}
