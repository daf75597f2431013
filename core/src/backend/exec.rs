//! The only door through which model code reaches ops.
//!
//! `Exec` checks shapes and element types once, opens a profile span per op, and (when asked) scans outputs for
//! non-finite values. Backends below it receive calls that go together.

use super::{
    AttnCall, Backend, FusedOps, Groups, KvView, NormCall, Op, Prepared, PrimitiveOps, QkvCall, RopeView,
    RouteMut, SampleCall, Stream,
};
use crate::mem::{BufMut, BufRef, DeviceMem, MatMut, MatRef};
use crate::params::{Act, Heads, Router, Scores};
use crate::profile::Probe;
use crate::{Error, Result};

/// A weight with its bias.
#[derive(Debug)]
pub struct Linear<W> {
    /// `[n, k]`.
    pub weight: Prepared<W>,
    /// `[n]`.
    pub bias: Option<Prepared<W>>,
}

impl<W> Linear<W> {
    /// What ops take.
    pub fn view(&self) -> LinearRef<'_, W> {
        LinearRef { weight: &self.weight, bias: self.bias.as_ref() }
    }
}

/// A borrowed weight with its bias: tied heads borrow the token table.
#[derive(Debug)]
pub struct LinearRef<'a, W> {
    /// `[n, k]`.
    pub weight: &'a Prepared<W>,
    /// `[n]`.
    pub bias: Option<&'a Prepared<W>>,
}

impl<W> Clone for LinearRef<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for LinearRef<'_, W> {}

impl<'a, W> LinearRef<'a, W> {
    fn raw_bias(self) -> Option<&'a W> {
        self.bias.map(|b| &b.raw)
    }
}

/// Stream, communicator and observers of one step.
pub struct Exec<'a, B: Backend> {
    /// The queue.
    pub stream: &'a mut B::Stream,
    /// The group.
    pub comm: &'a mut B::Comm,
    /// Time per op, when profiling.
    pub probe: Option<&'a mut Probe<<B::Stream as Stream<B>>::Event>>,
}

type Ref<'a, B> = MatRef<'a, <B as Backend>::Mem>;
type Mut<'a, B> = MatMut<'a, <B as Backend>::Mem>;

fn same(op: &'static str, what: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Error::Shape { op, what, got, want }) }
}

fn at_least(op: &'static str, what: &'static str, got: usize, want: usize) -> Result<()> {
    if got >= want { Ok(()) } else { Err(Error::Shape { op, what, got, want }) }
}

fn fits<M: DeviceMem>(op: &'static str, m: MatRef<'_, M>) -> Result<()> {
    at_least(op, "pitch", m.pitch, m.cols)?;
    let end = if m.rows == 0 { 0 } else { m.offset + (m.rows - 1) * m.pitch + m.cols };
    at_least(op, "bytes of a matrix", m.mem.bytes(), end * m.dtype.bytes())
}

fn alike<M: DeviceMem>(op: &'static str, a: MatRef<'_, M>, b: MatRef<'_, M>) -> Result<()> {
    same(op, "rows", b.rows, a.rows)?;
    same(op, "columns", b.cols, a.cols)?;
    same(op, "element type", b.dtype as usize, a.dtype as usize)?;
    fits(op, a)?;
    fits(op, b)
}

fn norm_fits<M: DeviceMem>(op: &'static str, x: MatRef<'_, M>, out: MatRef<'_, M>) -> Result<()> {
    alike(op, x, out)
}

impl<'a, B: Backend> Exec<'a, B> {
    /// A door without observers.
    pub fn new(stream: &'a mut B::Stream, comm: &'a mut B::Comm) -> Self {
        Self { stream, comm, probe: None }
    }

    fn span(&mut self, op: Op, run: impl FnOnce(&mut B::Stream, &mut B::Comm) -> Result<()>) -> Result<()> {
        let Some(probe) = self.probe.as_deref_mut() else { return run(self.stream, self.comm) };
        let from = self.stream.record()?;
        run(self.stream, self.comm)?;
        probe.push(op, from, self.stream.record()?);
        Ok(())
    }

    fn linear_fits(
        op: &'static str,
        x: Ref<'_, B>,
        l: LinearRef<'_, B::Weight>,
        out: Ref<'_, B>,
    ) -> Result<()> {
        same(op, "columns of x", x.cols, l.weight.cols)?;
        same(op, "columns of the output", out.cols, l.weight.rows)?;
        same(op, "rows of the output", out.rows, x.rows)?;
        if let Some(bias) = l.bias {
            same(op, "length of the bias", bias.rows * bias.cols, l.weight.rows)?;
        }
        fits(op, x)?;
        fits(op, out)
    }

    /// See [`PrimitiveOps::embed`].
    pub fn embed(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        t: &Prepared<B::Weight>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        same("embed", "rows", out.rows, ids.len)?;
        same("embed", "columns", out.cols, t.cols)?;
        fits("embed", out.as_ref())?;
        self.span(Op::Embed, |s, _| s.embed(ids, &t.raw, out))
    }

    /// See [`FusedOps::embed_add`].
    pub fn embed_add(
        &mut self,
        ids: BufRef<'_, B::Mem, u32>,
        t: &Prepared<B::Weight>,
        scratch: Mut<'_, B>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        same("embed_add", "rows", out.rows, ids.len)?;
        same("embed_add", "columns", out.cols, t.cols)?;
        alike("embed_add", out.as_ref(), scratch.as_ref())?;
        self.span(Op::EmbedAdd, |s, _| s.embed_add(ids, &t.raw, scratch, out))
    }

    /// See [`PrimitiveOps::linear`].
    pub fn linear(&mut self, x: Ref<'_, B>, l: LinearRef<'_, B::Weight>, out: Mut<'_, B>) -> Result<()> {
        Self::linear_fits("linear", x, l, out.as_ref())?;
        self.span(Op::Linear, |s, _| s.linear(x, &l.weight.raw, l.raw_bias(), out))
    }

    /// See [`FusedOps::linear_act`].
    pub fn linear_act(
        &mut self,
        x: Ref<'_, B>,
        l: LinearRef<'_, B::Weight>,
        act: Act,
        out: Mut<'_, B>,
    ) -> Result<()> {
        Self::linear_fits("linear_act", x, l, out.as_ref())?;
        self.span(Op::LinearAct, |s, _| s.linear_act(x, &l.weight.raw, l.raw_bias(), act, out))
    }

    /// See [`FusedOps::gated_linear`].
    pub fn gated_linear(
        &mut self,
        x: Ref<'_, B>,
        l: LinearRef<'_, B::Weight>,
        act: Act,
        scratch: Mut<'_, B>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        Self::linear_fits("gated_linear", x, l, scratch.as_ref())?;
        same("gated_linear", "rows of the output", out.rows, x.rows)?;
        same("gated_linear", "columns of gate and up", l.weight.rows, 2 * out.cols)?;
        same("gated_linear", "element type", out.dtype as usize, scratch.dtype as usize)?;
        self.span(Op::GatedLinear, |s, _| s.gated_linear(x, &l.weight.raw, l.raw_bias(), act, scratch, out))
    }

    /// See [`FusedOps::linear_add`].
    pub fn linear_add(
        &mut self,
        x: Ref<'_, B>,
        l: LinearRef<'_, B::Weight>,
        scratch: Mut<'_, B>,
        residual: Mut<'_, B>,
    ) -> Result<()> {
        Self::linear_fits("linear_add", x, l, residual.as_ref())?;
        alike("linear_add", residual.as_ref(), scratch.as_ref())?;
        self.span(Op::LinearAdd, |s, _| s.linear_add(x, &l.weight.raw, l.raw_bias(), scratch, residual))
    }

    /// See [`PrimitiveOps::norm`].
    pub fn norm(&mut self, x: Ref<'_, B>, n: NormCall<'_, B::Weight>, out: Mut<'_, B>) -> Result<()> {
        norm_fits("norm", x, out.as_ref())?;
        self.span(Op::Norm, |s, _| s.norm(x, n, out))
    }

    /// See [`FusedOps::add_norm`].
    pub fn add_norm(
        &mut self,
        residual: Mut<'_, B>,
        x: Ref<'_, B>,
        n: NormCall<'_, B::Weight>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        alike("add_norm", residual.as_ref(), x)?;
        norm_fits("add_norm", residual.as_ref(), out.as_ref())?;
        self.span(Op::AddNorm, |s, _| s.add_norm(residual, x, n, out))
    }

    /// See [`FusedOps::reduce_add_norm`].
    pub fn reduce_add_norm(
        &mut self,
        residual: Mut<'_, B>,
        partial: Mut<'_, B>,
        n: NormCall<'_, B::Weight>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        alike("reduce_add_norm", residual.as_ref(), partial.as_ref())?;
        norm_fits("reduce_add_norm", residual.as_ref(), out.as_ref())?;
        self.span(Op::ReduceAddNorm, |s, c| s.reduce_add_norm(c, residual, partial, n, out))
    }

    /// `residual += sum of partial over all ranks`, where no norm follows.
    pub fn reduce_add(&mut self, residual: Mut<'_, B>, mut partial: Mut<'_, B>) -> Result<()> {
        use super::Communicator;
        alike("add", residual.as_ref(), partial.as_ref())?;
        self.span(Op::Add, |s, c| {
            c.all_reduce(s, partial.reborrow())?;
            s.add(residual, partial.as_ref())
        })
    }

    /// See [`PrimitiveOps::activate`].
    pub fn activate(&mut self, x: Mut<'_, B>, act: Act) -> Result<()> {
        fits("activate", x.as_ref())?;
        self.span(Op::Activate, |s, _| s.activate(x, act))
    }

    /// See [`FusedOps::qkv_rope_append`].
    pub fn qkv_rope_append(
        &mut self,
        qkv: Mut<'_, B>,
        call: QkvCall<'_, B::Mem, B::Weight>,
        kv: KvView<'_, B::Mem>,
    ) -> Result<()> {
        const OP: &str = "qkv_rope_append";
        same(OP, "columns", qkv.cols, call.heads.qkv_cols())?;
        same(OP, "rows", call.step.slots.len, qkv.rows)?;
        same(OP, "kv heads of the slab", kv.layout.kv_heads, call.heads.kv_heads)?;
        same(OP, "key width of the slab", kv.layout.k_dim, call.heads.k_dim)?;
        if let Some(rope) = &call.rope {
            at_least(OP, "head width", call.heads.k_dim, 2 * rope.pairs)?;
            same(OP, "rope table", rope.table.len, 2 * rope.positions * rope.pairs)?;
        }
        fits(OP, qkv.as_ref())?;
        self.span(Op::QkvRopeAppend, |s, _| s.qkv_rope_append(qkv, call, kv))
    }

    /// See [`PrimitiveOps::kv_append`].
    pub fn kv_append(
        &mut self,
        k: Ref<'_, B>,
        v: Ref<'_, B>,
        slots: BufRef<'_, B::Mem, i32>,
        kv: KvView<'_, B::Mem>,
    ) -> Result<()> {
        const OP: &str = "kv_append";
        same(OP, "slots", slots.len, k.rows)?;
        same(OP, "rows of v", v.rows, k.rows)?;
        same(OP, "columns of k", k.cols, kv.layout.kv_heads * kv.layout.k_dim)?;
        same(OP, "columns of v", v.cols, kv.layout.kv_heads * kv.layout.v_dim)?;
        same(OP, "element type", v.dtype as usize, k.dtype as usize)?;
        fits(OP, k)?;
        fits(OP, v)?;
        self.span(Op::KvAppend, |s, _| s.kv_append(k, v, slots, kv))
    }

    /// See [`PrimitiveOps::rope`].
    pub fn rope(
        &mut self,
        x: Mut<'_, B>,
        width: usize,
        positions: BufRef<'_, B::Mem, u32>,
        rope: RopeView<'_, B::Mem>,
    ) -> Result<()> {
        same("rope", "positions", positions.len, x.rows)?;
        at_least("rope", "head width", width, 2 * rope.pairs)?;
        fits("rope", x.as_ref())?;
        self.span(Op::Rope, |s, _| s.rope(x, width, positions, rope))
    }

    /// See [`PrimitiveOps::attend`].
    pub fn attend(
        &mut self,
        plan: &B::AttnPlan,
        q: Ref<'_, B>,
        kv: KvView<'_, B::Mem>,
        call: AttnCall<'_, B::Mem>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        same("attend", "columns of q", q.cols, call.heads.q_cols())?;
        same("attend", "columns of the output", out.cols, call.heads.out_cols())?;
        same("attend", "rows of the output", out.rows, q.rows)?;
        fits("attend", q)?;
        fits("attend", out.as_ref())?;
        self.span(Op::Attend, |s, _| s.attend(plan, q, kv, call, out))
    }

    /// See [`PrimitiveOps::attend_dense`]; `qkv` is the fused `q | k | v` matrix.
    pub fn attend_dense(
        &mut self,
        qkv: Ref<'_, B>,
        bounds: BufRef<'_, B::Mem, u32>,
        max_rows: usize,
        heads: Heads,
        scores: &Scores,
        out: Mut<'_, B>,
    ) -> Result<()> {
        same("attend_dense", "columns of qkv", qkv.cols, heads.qkv_cols())?;
        same("attend_dense", "columns of the output", out.cols, heads.out_cols())?;
        same("attend_dense", "rows of the output", out.rows, qkv.rows)?;
        fits("attend_dense", qkv)?;
        fits("attend_dense", out.as_ref())?;
        let (q_end, k_end) = (heads.q_cols(), heads.q_cols() + heads.k_cols());
        let (q, k) = (qkv.columns(0..q_end)?, qkv.columns(q_end..k_end)?);
        let v = qkv.columns(k_end..heads.qkv_cols())?;
        self.span(Op::AttendDense, |s, _| s.attend_dense(q, k, v, bounds, max_rows, heads, scores, out))
    }

    /// `acc += x`.
    pub fn add(&mut self, acc: Mut<'_, B>, x: Ref<'_, B>) -> Result<()> {
        alike("add", acc.as_ref(), x)?;
        self.span(Op::Add, |s, _| s.add(acc, x))
    }

    /// `out = norm(sum of partial over all ranks)`; partial is overwritten.
    pub fn reduce_norm(
        &mut self,
        mut partial: Mut<'_, B>,
        n: NormCall<'_, B::Weight>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        use super::Communicator;
        norm_fits("norm", partial.as_ref(), out.as_ref())?;
        self.span(Op::Norm, |s, c| {
            c.all_reduce(s, partial.reborrow())?;
            s.norm(partial.as_ref(), n, out)
        })
    }

    /// See [`PrimitiveOps::head_norm`].
    pub fn head_norm(&mut self, x: Mut<'_, B>, width: usize, n: NormCall<'_, B::Weight>) -> Result<()> {
        at_least("head_norm", "head width", width, 1)?;
        same("head_norm", "columns beyond whole heads", x.cols % width, 0)?;
        fits("head_norm", x.as_ref())?;
        self.span(Op::HeadNorm, |s, _| s.head_norm(x, width, n))
    }

    /// See [`PrimitiveOps::scale`].
    pub fn scale(&mut self, x: Mut<'_, B>, factor: f32, cap: Option<f32>) -> Result<()> {
        fits("scale", x.as_ref())?;
        self.span(Op::Scale, |s, _| s.scale(x, factor, cap))
    }

    /// See [`PrimitiveOps::route`].
    pub fn route(&mut self, logits: Ref<'_, B>, router: &Router, out: RouteMut<'_, B::Mem>) -> Result<()> {
        const OP: &str = "route";
        let slots = logits.rows * router.top_k;
        same(OP, "columns of the logits", logits.cols, router.experts)?;
        at_least(OP, "experts", router.experts, router.top_k.max(1))?;
        at_least(OP, "room for chosen experts", Router::MAX_TOP_K, router.top_k)?;
        same(OP, "chosen experts", out.experts.len, slots)?;
        same(OP, "grouped slots", out.groups.len, router.experts + 1 + slots)?;
        same(OP, "rows of the weights", out.weights.rows, logits.rows)?;
        same(OP, "columns of the weights", out.weights.cols, router.top_k)?;
        for dtype in [logits.dtype, out.weights.dtype] {
            same(OP, "element type", dtype as usize, crate::mem::Float::F32 as usize)?;
        }
        fits(OP, logits)?;
        fits(OP, out.weights.as_ref())?;
        self.span(Op::Route, |s, _| s.route(logits, router, out))
    }

    /// See [`PrimitiveOps::expert_linear`].
    pub fn expert_linear(
        &mut self,
        x: Ref<'_, B>,
        l: LinearRef<'_, B::Weight>,
        groups: Groups<'_, B::Mem>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        const OP: &str = "expert_linear";
        same(OP, "columns of x", x.cols, l.weight.cols)?;
        same(OP, "rows of all experts", l.weight.rows, out.cols * groups.count)?;
        same(OP, "slots", groups.experts.len, out.rows)?;
        same(OP, "grouped slots", groups.groups.len, groups.count + 1 + out.rows)?;
        same(OP, "slots beyond whole tokens", out.rows % x.rows.max(1), 0)?;
        same(OP, "element type", out.dtype as usize, x.dtype as usize)?;
        if let Some(bias) = l.bias {
            same(OP, "length of the bias", bias.rows * bias.cols, l.weight.rows)?;
        }
        fits(OP, x)?;
        fits(OP, out.as_ref())?;
        self.span(Op::ExpertLinear, |s, _| s.expert_linear(x, &l.weight.raw, l.raw_bias(), groups, out))
    }

    /// See [`PrimitiveOps::combine`].
    pub fn combine(&mut self, y: Ref<'_, B>, weights: Ref<'_, B>, add: bool, out: Mut<'_, B>) -> Result<()> {
        const OP: &str = "combine";
        same(OP, "rows of the weights", weights.rows, out.rows)?;
        same(OP, "slots", y.rows, out.rows * weights.cols)?;
        same(OP, "columns", y.cols, out.cols)?;
        same(OP, "element type", out.dtype as usize, y.dtype as usize)?;
        same(OP, "element type of weights", weights.dtype as usize, crate::mem::Float::F32 as usize)?;
        fits(OP, y)?;
        fits(OP, weights)?;
        fits(OP, out.as_ref())?;
        self.span(Op::Combine, |s, _| s.combine(y, weights, add, out))
    }

    /// See [`PrimitiveOps::gate`].
    pub fn gate(&mut self, gate_up: Ref<'_, B>, act: Act, out: Mut<'_, B>) -> Result<()> {
        same("gate", "rows", out.rows, gate_up.rows)?;
        same("gate", "columns of gate and up", gate_up.cols, 2 * out.cols)?;
        same("gate", "element type", out.dtype as usize, gate_up.dtype as usize)?;
        fits("gate", gate_up)?;
        fits("gate", out.as_ref())?;
        self.span(Op::Gate, |s, _| s.gate(gate_up, act, out))
    }

    /// See [`PrimitiveOps::gather_rows`].
    pub fn gather_rows(
        &mut self,
        x: Ref<'_, B>,
        rows: BufRef<'_, B::Mem, u32>,
        out: Mut<'_, B>,
    ) -> Result<()> {
        same("gather_rows", "rows", out.rows, rows.len)?;
        same("gather_rows", "columns", out.cols, x.cols)?;
        same("gather_rows", "element type", out.dtype as usize, x.dtype as usize)?;
        fits("gather_rows", x)?;
        fits("gather_rows", out.as_ref())?;
        self.span(Op::GatherRows, |s, _| s.gather_rows(x, rows, out))
    }

    /// See [`PrimitiveOps::convert`].
    pub fn convert(&mut self, x: Ref<'_, B>, out: Mut<'_, B>) -> Result<()> {
        same("convert", "rows", out.rows, x.rows)?;
        same("convert", "columns", out.cols, x.cols)?;
        fits("convert", x)?;
        fits("convert", out.as_ref())?;
        self.span(Op::Convert, |s, _| s.convert(x, out))
    }

    /// See [`PrimitiveOps::patch`].
    pub fn patch(&mut self, pairs: BufRef<'_, B::Mem, u32>, table: BufMut<'_, B::Mem, u32>) -> Result<()> {
        if pairs.len == 0 {
            return Ok(());
        }
        self.span(Op::Patch, |s, _| s.patch(pairs, table))
    }

    /// See [`PrimitiveOps::sample`].
    pub fn sample(
        &mut self,
        logits: Ref<'_, B>,
        call: SampleCall<'_, B::Mem>,
        out: BufMut<'_, B::Mem, u32>,
    ) -> Result<()> {
        same("sample", "tokens", out.len, logits.rows)?;
        same("sample", "slots", call.slots.len, logits.rows)?;
        same("sample", "words of seen bits", call.seen_words, logits.cols.div_ceil(32))?;
        fits("sample", logits)?;
        self.span(Op::Sample, |s, _| s.sample(logits, call, out))
    }
}
