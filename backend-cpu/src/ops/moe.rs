//! Experts: routing, their matmuls, their sum.

use super::linear;
use crate::kernels::choice;
use crate::kernels::experts::{self, Experts, Grouped};
use crate::kernels::moe::{self as kernel, Routed, Slots};
use crate::mem::{SharedMat, Words};
use crate::select::Choice;
use crate::simd::Isa;
use crate::{Cpu, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::ops::{Combine, ExpertLinear, MoeOp, MoeOpKind, Route, Signature};
use std::sync::PoisonError;

/// The matmuls are those of `linear`.
pub(super) fn select(kind: MoeOpKind, signature: &Signature, isa: Isa) -> Choice {
    match kind {
        MoeOpKind::ExpertLinear => linear::select(signature, isa),
        MoeOpKind::Route | MoeOpKind::Combine => Choice::eight(signature, isa),
    }
}

pub(super) fn run(stream: &mut CpuStream, op: MoeOp<'_, Cpu>) -> Result<()> {
    match op {
        MoeOp::Route(op) => route(stream, op),
        MoeOp::ExpertLinear(op) => expert_linear(stream, op),
        MoeOp::Combine(op) => combine(stream, op),
    }
}

fn combine(stream: &mut CpuStream, op: Combine<'_, Cpu>) -> Result<()> {
    let Combine { y, weights, chosen, add, out } = op;
    let (y, weights, out) = (SharedMat::from(y), SharedMat::from(weights), SharedMat::from(out));
    let chosen = chosen.map(|chosen| (Words::from(chosen.experts), chosen.share));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let chosen = chosen.as_ref().map(|(experts, share)| (unsafe { experts.slice() }, *share));
        let slots = Slots { y: y.read(), weights: weights.read(), chosen };
        kernel::combine(cpu.machine(), slots, add, out.write())
    })
}

fn route(stream: &mut CpuStream, op: Route<'_, Cpu>) -> Result<()> {
    let Route { logits, router, choice_bias, experts, weights, groups } = op;
    let bias = choice_bias.map(CpuWeight::vector).transpose()?;
    let (logits, weights) = (SharedMat::from(logits), SharedMat::from(weights));
    let (experts, groups) = (Words::from(experts), Words::from(groups));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time; the outputs are different allocations.
        let (experts, groups) = unsafe { (experts.slice_mut(), groups.slice_mut()) };
        let routed = Routed { experts, weights: weights.write() };
        kernel::route(cpu.machine(), logits.read(), (&router, bias.as_deref()), routed)?;
        choice::group(experts, router.experts, groups);
        Ok(())
    })
}

fn expert_linear(stream: &mut CpuStream, op: ExpertLinear<'_, Cpu>) -> Result<()> {
    let ExpertLinear { x, weight, bias, groups, first, out } = op;
    let (x, w, out) = (SharedMat::from(x), weight.experts()?, SharedMat::from(out));
    let bias = bias.map(CpuWeight::vector).transpose()?;
    let (words, count) = (Words::from(groups.groups), groups.count);
    stream.enqueue(move |cpu| {
        let mut scratch = cpu.expert_scratch().lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream runs one op at a time.
        let groups = Grouped { words: unsafe { words.slice() }, count };
        let all = Experts { weights: &w, bias: bias.as_deref(), first };
        experts::expert_linear(cpu.machine(), x.read(), all, groups, out.write(), &mut scratch)
    })
}
