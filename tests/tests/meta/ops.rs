//! The ops of [`BrokenStream`]: the CPU's, each with the place where its bugs strike.

use crate::backend::{Broken, BrokenStream};
use crate::bugs::Bug;
use conformance::dice::round;
use engraft_core::Result;
use engraft_core::backend::{
    AttnCall, FusedOps, Groups, KvView, NormCall, PrimitiveOps, QkvCall, RopeView, RouteMut, SampleCall,
    Solo, Table,
};
use engraft_core::mem::{BufMut, BufRef, Float, MatMut, MatRef, SKIP, StepShape};
use engraft_core::params::{Act, Heads, RopeStyle, Router, Scores};
use engraft_cpu::{CpuMem, CpuPlan, CpuWeight};

type In<'a> = MatRef<'a, CpuMem>;
type Out<'a> = MatMut<'a, CpuMem>;
type Words<'a> = BufRef<'a, CpuMem, u32>;

fn other_act(act: Act) -> Act {
    if act == Act::Silu { Act::Relu } else { Act::Silu }
}

impl PrimitiveOps<Broken> for BrokenStream {
    fn embed(&mut self, ids: Words<'_>, table: &CpuWeight, out: Out<'_>) -> Result<()> {
        if self.is_recording(Bug::EmbedIsNotRecorded) {
            return Ok(());
        }
        if self.is(Bug::EmbedNextId) {
            let ids = self.changed(ids, |id| id + 1)?;
            return self.inner.embed(ids.view(), table, out);
        }
        self.inner.embed(ids, table, out)
    }

    fn linear(&mut self, x: In<'_>, w: &CpuWeight, bias: Option<&CpuWeight>, mut out: Out<'_>) -> Result<()> {
        let bias = bias.filter(|_| !self.is(Bug::LinearDropsBias));
        let unwritten = self.is(Bug::LinearLastColumnUnwritten);
        let before = if unwritten { self.values(out.as_ref())? } else { Vec::new() };
        self.inner.linear(x, w, bias, out.reborrow())?;
        let (out, rows, cols) = (out.as_ref(), out.rows, out.cols);
        if self.is(Bug::LinearRowsShifted) {
            let mut values = self.values(out)?;
            values.rotate_left(cols);
            self.store(out, &values)?;
        }
        if unwritten {
            for r in 0..rows {
                self.set(out, r, cols - 1, before[r * cols + cols - 1])?;
            }
        }
        if self.is(Bug::LinearOneNan) {
            self.set(out, rows / 2, cols / 2, f32::NAN)?;
        }
        if self.is(Bug::LinearWritesBeyondRow) {
            self.set(out, rows - 1, cols, 0.0)?;
        }
        let threaded = self.is(Bug::LinearBitsDependOnThreads) && self.is_threaded();
        if self.is(Bug::LinearLastBit) || threaded {
            self.nudge(out, rows)?;
        }
        Ok(())
    }

    fn norm(&mut self, x: In<'_>, mut norm: NormCall<'_, CpuWeight>, mut out: Out<'_>) -> Result<()> {
        if self.is(Bug::NormEpsilonTimes100) {
            norm.eps *= 100.0;
        }
        if self.is(Bug::NormDropsBias) {
            norm.bias = None;
        }
        self.inner.norm(x, norm, out.reborrow())?;
        if self.is(Bug::NormBitsDependOnPitch) && out.pitch > out.cols {
            self.nudge(out.as_ref(), out.rows)?;
        }
        Ok(())
    }

    fn add(&mut self, mut acc: Out<'_>, x: In<'_>) -> Result<()> {
        if self.is(Bug::AddsTwice) {
            self.inner.add(acc.reborrow(), x)?;
        }
        self.inner.add(acc, x)
    }

    fn activate(&mut self, mut x: Out<'_>, act: Act) -> Result<()> {
        if self.is(Bug::ActivateSkipsLastRow) {
            x.rows -= 1;
        }
        self.inner.activate(x, act)
    }

    fn gate(&mut self, gate_up: In<'_>, act: Act, mut out: Out<'_>) -> Result<()> {
        let act = if self.is(Bug::GateWrongActivation) { other_act(act) } else { act };
        self.inner.gate(gate_up, act, out.reborrow())?;
        if self.is(Bug::GateBitsChangeFromCallToCall) && self.second_call() {
            self.nudge(out.as_ref(), out.rows)?;
        }
        Ok(())
    }

    fn scale(&mut self, x: Out<'_>, factor: f32, cap: Option<f32>) -> Result<()> {
        self.inner.scale(x, factor, cap.filter(|_| !self.is(Bug::ScaleForgetsCap)))
    }

    fn route(&mut self, logits: In<'_>, router: &Router, mut out: RouteMut<'_, CpuMem>) -> Result<()> {
        let forgets = self.is(Bug::RouteForgetsScale);
        let router = Router { scale: if forgets { 1.0 } else { router.scale }, ..*router };
        let again = RouteMut {
            experts: out.experts.reborrow(),
            weights: out.weights.reborrow(),
            groups: out.groups.reborrow(),
        };
        self.inner.route(logits, &router, again)?;
        if self.is(Bug::RouteNextExpert) {
            let experts: Vec<u32> = self.words(out.experts.as_ref())?;
            let next: Vec<u32> = experts.iter().map(|e| (e + 1) % router.experts as u32).collect();
            engraft_core::backend::Stream::upload(&mut self.inner, &next, out.experts)?;
        }
        Ok(())
    }

    fn expert_linear(
        &mut self,
        x: In<'_>,
        w: &CpuWeight,
        bias: Option<&CpuWeight>,
        groups: Groups<'_, CpuMem>,
        mut out: Out<'_>,
    ) -> Result<()> {
        let bias = bias.filter(|_| !self.is(Bug::ExpertLinearDropsBias));
        self.inner.expert_linear(x, w, bias, groups, out.reborrow())?;
        if self.is(Bug::ExpertLinearLastBit) {
            self.nudge(out.as_ref(), out.rows)?;
        }
        Ok(())
    }

    fn combine(&mut self, y: In<'_>, weights: In<'_>, add: bool, out: Out<'_>) -> Result<()> {
        self.inner.combine(y, weights, add && !self.is(Bug::CombineOverwrites), out)
    }

    fn head_norm(&mut self, x: Out<'_>, width: usize, mut norm: NormCall<'_, CpuWeight>) -> Result<()> {
        if self.is(Bug::HeadNormForgetsPlusOne) {
            norm.plus_one = false;
        }
        self.inner.head_norm(x, width, norm)
    }

    fn rope(
        &mut self,
        mut x: Out<'_>,
        width: usize,
        mut positions: Words<'_>,
        mut rope: RopeView<'_, CpuMem>,
    ) -> Result<()> {
        if self.is(Bug::RopeNextPosition) {
            let count = rope.positions as u32;
            let next = self.changed(positions, |p| (p + 1) % count)?;
            return self.inner.rope(x, width, next.view(), rope);
        }
        if self.is(Bug::RopeSkipsLastToken) {
            x.rows -= 1;
            positions.len -= 1;
        }
        if self.is(Bug::RopeOtherStyle) {
            rope.style = match rope.style {
                RopeStyle::Half => RopeStyle::Interleaved,
                RopeStyle::Interleaved => RopeStyle::Half,
            };
        }
        self.inner.rope(x, width, positions, rope)
    }

    fn kv_append(
        &mut self,
        k: In<'_>,
        v: In<'_>,
        slots: BufRef<'_, CpuMem, i32>,
        kv: KvView<'_, CpuMem>,
    ) -> Result<()> {
        let count = (kv.layout.pages * kv.layout.page_size) as i32;
        if self.is(Bug::AppendSwapsKeysAndValues) && k.cols == v.cols {
            return self.inner.kv_append(v, k, slots, kv);
        }
        if self.is(Bug::AppendNextSlot) {
            let next = self.changed(slots, |s| if s == SKIP { s } else { (s + 1) % count })?;
            return self.inner.kv_append(k, v, next.view(), kv);
        }
        if self.is(Bug::AppendWritesSkipped) {
            let written = self.changed(slots, |s| if s == SKIP { count - 1 } else { s })?;
            return self.inner.kv_append(k, v, written.view(), kv);
        }
        self.inner.kv_append(k, v, slots, kv)
    }

    fn kv_copy_pages(&mut self, pairs: Words<'_>, kv: KvView<'_, CpuMem>) -> Result<()> {
        if self.is(Bug::CopyPagesBackwards) {
            let words = self.words(pairs)?;
            let swapped: Vec<u32> = words.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
            let swapped = self.buffer(&swapped)?;
            return self.inner.kv_copy_pages(swapped.view(), kv);
        }
        self.inner.kv_copy_pages(pairs, kv)
    }

    fn plan_attention(&mut self, shape: StepShape, plan: &mut CpuPlan) -> Result<()> {
        self.inner.plan_attention(shape, plan)
    }

    fn attend(
        &mut self,
        plan: &CpuPlan,
        q: In<'_>,
        kv: KvView<'_, CpuMem>,
        call: AttnCall<'_, CpuMem>,
        mut out: Out<'_>,
    ) -> Result<()> {
        let mut scores = call.scores.clone();
        if self.is(Bug::AttendScaleOnePercent) {
            scores.scale *= 1.01;
        }
        if self.is(Bug::AttendIgnoresWindow) {
            scores.window = None;
        }
        if self.is(Bug::AttendNotCausal) {
            scores.causal = false;
        }
        if self.is(Bug::AttendIgnoresSlopes) {
            scores.alibi = None;
        }
        if self.is(Bug::AttendIgnoresCap) {
            scores.soft_cap = None;
        }
        let step = call.step;
        self.inner.attend(plan, q, kv, AttnCall { scores: &scores, ..call }, out.reborrow())?;
        if self.is(Bug::AttendBitsDependOnBatch) && step.shape.seqs > 1 {
            let live = self.words(step.bounds)?[step.shape.seqs];
            self.nudge(out.as_ref(), live as usize)?;
        }
        Ok(())
    }

    fn attend_dense(
        &mut self,
        q: In<'_>,
        k: In<'_>,
        v: In<'_>,
        bounds: Words<'_>,
        max_rows: usize,
        heads: Heads,
        scores: &Scores,
        out: Out<'_>,
    ) -> Result<()> {
        let mut scores = scores.clone();
        if self.is(Bug::DenseWindowOneWider) {
            scores.window = scores.window.map(|w| w + 1);
        }
        self.inner.attend_dense(q, k, v, bounds, max_rows, heads, &scores, out)
    }

    fn gather_rows(&mut self, x: In<'_>, rows: Words<'_>, out: Out<'_>) -> Result<()> {
        if self.is(Bug::GatherNextRow) {
            let next = self.changed(rows, |r| r + 1)?;
            return self.inner.gather_rows(x, next.view(), out);
        }
        self.inner.gather_rows(x, rows, out)
    }

    fn convert(&mut self, x: In<'_>, mut out: Out<'_>) -> Result<()> {
        self.inner.convert(x, out.reborrow())?;
        if self.is(Bug::ConvertTruncates) && out.dtype != Float::F32 {
            let exact = self.values(x)?;
            let truncated: Vec<f32> = exact.iter().map(|v| towards_zero(*v, out.dtype)).collect();
            self.store(out.as_ref(), &truncated)?;
        }
        Ok(())
    }

    fn patch(&mut self, mut pairs: Words<'_>, dst: BufMut<'_, CpuMem, u32>) -> Result<()> {
        if self.is(Bug::PatchDropsLastPair) {
            pairs.len -= 2;
        }
        self.inner.patch(pairs, dst)
    }

    fn mark_seen(
        &mut self,
        mut ids: Words<'_>,
        slot: usize,
        words: usize,
        mut seen: BufMut<'_, CpuMem, u32>,
    ) -> Result<()> {
        if self.is(Bug::MarkSeenDropsLastId) {
            ids.len -= 1;
        }
        let old = if self.is(Bug::MarkSeenKeepsOldBits) { self.words(seen.as_ref())? } else { Vec::new() };
        self.inner.mark_seen(ids, slot, words, seen.reborrow())?;
        if self.is(Bug::MarkSeenKeepsOldBits) {
            let new = self.words(seen.as_ref())?;
            let both: Vec<u32> = new.iter().zip(&old).map(|(n, o)| n | o).collect();
            self.inner_upload(&both, seen)?;
        }
        Ok(())
    }

    fn argmax(&mut self, x: In<'_>, mut out: BufMut<'_, CpuMem, u32>) -> Result<()> {
        self.inner.argmax(x, out.reborrow())?;
        if self.is(Bug::ArgmaxNextColumn) {
            let next: Vec<u32> = self.words(out.as_ref())?.iter().map(|c| c + 1).collect();
            self.inner_upload(&next, out)?;
        } else if self.is(Bug::ArgmaxLastOfEquals) {
            let values = self.values(x)?;
            let last = |row: &[f32]| {
                let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter().rposition(|v| *v == best).unwrap_or(0) as u32
            };
            let last: Vec<u32> = values.chunks(x.cols).map(last).collect();
            self.inner_upload(&last, out)?;
        }
        Ok(())
    }

    fn sample(
        &mut self,
        logits: In<'_>,
        mut call: SampleCall<'_, CpuMem>,
        out: BufMut<'_, CpuMem, u32>,
    ) -> Result<()> {
        if self.is(Bug::SampleNextPosition) {
            let next = self.changed(call.positions, |p| p + 1)?;
            let call = SampleCall { positions: next.view(), ..call };
            return self.inner.sample(logits, call, out);
        }
        if self.is(Bug::SampleForgetsToMark) {
            let old = self.words(call.seen.as_ref())?;
            let SampleCall { table, slots, positions, seen_words, .. } = call;
            let seen = call.seen.reborrow();
            self.inner.sample(logits, SampleCall { table, slots, positions, seen, seen_words }, out)?;
            return self.inner_upload(&old, call.seen);
        }
        self.inner.sample(logits, call, out)
    }

    fn kv_read(
        &mut self,
        kv: KvView<'_, CpuMem>,
        table: Table<'_, CpuMem>,
        row: usize,
        out_k: Out<'_>,
        out_v: Out<'_>,
    ) -> Result<()> {
        self.inner.kv_read(kv, table, row, out_k, out_v)
    }
}

impl BrokenStream {
    fn inner_upload(&mut self, words: &[u32], to: BufMut<'_, CpuMem, u32>) -> Result<()> {
        engraft_core::backend::Stream::upload(&mut self.inner, words, to)
    }
}

/// `v` in a 16-bit type, rounded towards zero.
fn towards_zero(v: f32, dtype: Float) -> f32 {
    let nearest = round(v, dtype);
    if nearest.abs() <= v.abs() {
        return nearest;
    }
    let step = |bits: u16| bits - 1;
    match dtype {
        Float::F16 => half::f16::from_bits(step(half::f16::from_f32(nearest).to_bits())).to_f32(),
        _ => half::bf16::from_bits(step(half::bf16::from_f32(nearest).to_bits())).to_f32(),
    }
}

impl FusedOps<Broken> for BrokenStream {
    fn embed_add(&mut self, ids: Words<'_>, table: &CpuWeight, scratch: Out<'_>, out: Out<'_>) -> Result<()> {
        if self.is(Bug::EmbedAddOverwrites) {
            return self.inner.embed(ids, table, out);
        }
        self.inner.embed_add(ids, table, scratch, out)
    }

    fn add_norm(
        &mut self,
        mut residual: Out<'_>,
        x: In<'_>,
        norm: NormCall<'_, CpuWeight>,
        mut out: Out<'_>,
    ) -> Result<()> {
        let keep = self.is(Bug::AddNormKeepsOldResidual);
        let old = if keep { self.values(residual.as_ref())? } else { Vec::new() };
        self.inner.add_norm(residual.reborrow(), x, norm, out.reborrow())?;
        self.store(residual.as_ref(), &old)?;
        if self.is(Bug::AddNormLastBit) {
            self.nudge(out.as_ref(), out.rows)?;
        }
        Ok(())
    }

    fn linear_act(
        &mut self,
        x: In<'_>,
        w: &CpuWeight,
        bias: Option<&CpuWeight>,
        act: Act,
        mut out: Out<'_>,
    ) -> Result<()> {
        self.inner.linear_act(x, w, bias, act, out.reborrow())?;
        if self.is(Bug::LinearActTwice) {
            self.inner.activate(out, act)?;
        }
        Ok(())
    }

    fn gated_linear(
        &mut self,
        x: In<'_>,
        w: &CpuWeight,
        bias: Option<&CpuWeight>,
        act: Act,
        scratch: Out<'_>,
        out: Out<'_>,
    ) -> Result<()> {
        let act = if self.is(Bug::GatedLinearWrongActivation) { other_act(act) } else { act };
        self.inner.gated_linear(x, w, bias, act, scratch, out)
    }

    fn linear_add(
        &mut self,
        x: In<'_>,
        w: &CpuWeight,
        bias: Option<&CpuWeight>,
        scratch: Out<'_>,
        residual: Out<'_>,
    ) -> Result<()> {
        let bias = bias.filter(|_| !self.is(Bug::LinearAddDropsBias));
        self.inner.linear_add(x, w, bias, scratch, residual)
    }

    fn qkv_rope_append(
        &mut self,
        qkv: Out<'_>,
        mut call: QkvCall<'_, CpuMem, CpuWeight>,
        kv: KvView<'_, CpuMem>,
    ) -> Result<()> {
        if self.is(Bug::QkvDropsKeyNorm) {
            call.k_norm = None;
        }
        if self.is(Bug::QkvDropsRotation) {
            call.rope = None;
        }
        self.inner.qkv_rope_append(qkv, call, kv)
    }

    fn reduce_add_norm(
        &mut self,
        comm: &mut Solo,
        residual: Out<'_>,
        partial: Out<'_>,
        mut norm: NormCall<'_, CpuWeight>,
        out: Out<'_>,
    ) -> Result<()> {
        if self.is(Bug::ReduceAddNormDropsWeight) {
            norm.weight = None;
        }
        self.inner.reduce_add_norm(comm, residual, partial, norm, out)
    }
}
