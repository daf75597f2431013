//! Norms.

use crate::budget::of_elements;
use crate::command::{Call, Slot, elem, groups, matrix, word};
use crate::kernel::Variant;
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::mem::MatRef;
use engraft_core::ops::{AddNorm, GaussianTopk, GroupNorm, HeadNorm, MatchRms, Norm, NormOp, NormWeights};
use engraft_core::params::NormKind;
use engraft_shaders::{Kernel, Norm as Entry, Reduce, Rescale};

pub(super) fn run(stream: &mut WgpuStream, op: NormOp<'_, Wgpu>, variant: Variant) -> Result<()> {
    let reduce = variant.sums();
    match op {
        NormOp::Norm(Norm { x, norm, out }) => {
            let rows = Operands { x, addend: None, width: x.cols(), out: out.as_ref() };
            launch(stream, (Entry::Alone, reduce), rows, norm)
        }
        NormOp::AddNorm(AddNorm { residual, x, norm, out }) => {
            let sum = residual.as_ref();
            let rows = Operands { x: sum, addend: Some(x), width: sum.cols(), out: out.as_ref() };
            launch(stream, (Entry::Add, reduce), rows, norm)
        }
        NormOp::HeadNorm(op) => heads(stream, op, reduce),
        NormOp::GroupNorm(op) => of_groups(stream, op),
        NormOp::GaussianTopk(GaussianTopk { x, deviations }) => {
            rescaled(stream, reduce, (x.as_ref(), None), deviations)
        }
        NormOp::MatchRms(MatchRms { x, like, floor }) => {
            rescaled(stream, reduce, (x.as_ref(), Some(like)), floor)
        }
    }
}

/// Norms of heads, also on the way into pages.
pub(super) fn heads(stream: &mut WgpuStream, op: HeadNorm<'_, Wgpu>, reduce: Reduce) -> Result<()> {
    let x = op.x.as_ref();
    launch(stream, (Entry::Heads, reduce), Operands { x, addend: None, width: op.width, out: x }, op.norm)
}

/// How often a row is gone over: for its moments, and for its results.
pub(super) const PASSES: usize = 3;

/// Flags of `moments.wgsl`.
pub(super) fn flags(norm: &NormWeights<'_, Wgpu>) -> u32 {
    let of = |yes: bool, bit: u32| if yes { bit } else { 0 };
    of(norm.kind == NormKind::Rms, 1)
        | of(norm.weight.is_some(), 2)
        | of(norm.bias.is_some(), 4)
        | of(norm.plus_one, 8)
}

/// What is normed.
struct Operands<'a> {
    x: MatRef<'a, WgpuMem>,
    addend: Option<MatRef<'a, WgpuMem>>,
    width: usize,
    out: MatRef<'a, WgpuMem>,
}

fn of_groups(stream: &mut WgpuStream, op: GroupNorm<'_, Wgpu>) -> Result<()> {
    let GroupNorm { x, groups: count, norm, out } = op;
    let out = out.as_ref();
    if x.rows() * x.cols() == 0 {
        return Ok(());
    }
    let gpu = stream.gpu().clone();
    let limits = gpu.limits();
    let vector = |w: Option<&WgpuWeight>| w.map_or(Ok(gpu.nothing()), WgpuWeight::vector).map(WgpuMem::share);
    let (weight, bias) = (vector(norm.weight)?, vector(norm.bias)?);
    let (from, to) = (matrix(limits, x, "activations")?, matrix(limits, out, "activations")?);
    let words = [
        word(x.rows())?,
        word(count)?,
        word(x.cols() / count.max(1))?,
        from.offset,
        word(x.pitch())?,
        to.offset,
        word(out.pitch())?,
        flags(&norm),
        norm.eps.to_bits(),
    ];
    let (weight, bias) = (Slot::whole(limits, &weight, "a norm")?, Slot::whole(limits, &bias, "a norm")?);
    let (kernel, grid) = (Kernel::NormGroups(elem(x.dtype())), groups(limits, count, 1));
    let call = Call { kernel, slots: &[weight, bias, to.slot, from.slot], words: &words, grid };
    stream.call_of(&call, of_elements(x.rows() * x.cols(), PASSES))
}

/// Rows by their own moments.
fn rescaled(
    stream: &mut WgpuStream,
    reduce: Reduce,
    (x, like): (MatRef<'_, WgpuMem>, Option<MatRef<'_, WgpuMem>>),
    value: f32,
) -> Result<()> {
    if x.rows() * x.cols() == 0 {
        return Ok(());
    }
    let gpu = stream.gpu().clone();
    let limits = gpu.limits();
    let place = |m| matrix(limits, m, "activations");
    let (to, other) = (place(x)?, like.map(place).transpose()?);
    let width = like.map_or(x.cols(), |like| like.cols());
    let parts = x.cols() / width.max(1);
    let words = [
        word(x.rows())?,
        word(parts)?,
        word(width)?,
        to.offset,
        word(x.pitch())?,
        other.as_ref().map_or(0, |other| other.offset),
        word(like.map_or(0, |like| like.pitch()))?,
        value.to_bits(),
    ];
    let (dtype, grid) = (elem(x.dtype()), groups(limits, x.rows() * parts, 1));
    let mut call = |how, slots: &[Slot<'_>]| {
        let kernel = Kernel::Rescale(how, dtype, reduce);
        let work = of_elements(x.rows() * x.cols(), PASSES);
        stream.call_of(&Call { kernel, slots, words: &words, grid }, work)
    };
    match other {
        Some(other) => call(Rescale::Match, &[to.slot, other.slot]),
        None => call(Rescale::Topk, &[to.slot]),
    }
}

fn launch(
    stream: &mut WgpuStream,
    (how, reduce): (Entry, Reduce),
    rows: Operands<'_>,
    norm: NormWeights<'_, Wgpu>,
) -> Result<()> {
    let Operands { x, addend, width, out } = rows;
    if x.rows() * x.cols() == 0 {
        return Ok(());
    }
    let gpu = stream.gpu().clone();
    let limits = gpu.limits();
    let vector = |w: Option<&WgpuWeight>| w.map_or(Ok(gpu.nothing()), WgpuWeight::vector).map(WgpuMem::share);
    let (weight, bias) = (vector(norm.weight)?, vector(norm.bias)?);
    let place = |m| matrix(limits, m, "activations");
    let (from, to, other) = (place(x)?, place(out)?, addend.map(place).transpose()?);
    let parts = x.cols() / width.max(1);
    let words = [
        word(x.rows())?,
        word(parts)?,
        word(width)?,
        from.offset,
        word(x.pitch())?,
        to.offset,
        word(out.pitch())?,
        other.map_or(0, |o| o.offset),
        word(addend.map_or(0, |a| a.pitch()))?,
        flags(&norm),
        norm.eps.to_bits(),
    ];
    let (weight, bias) = (Slot::whole(limits, &weight, "a norm")?, Slot::whole(limits, &bias, "a norm")?);
    let grid = groups(limits, x.rows() * parts, 1);
    let kernel = Kernel::Norm(how, elem(x.dtype()), reduce);
    let work = of_elements(x.rows() * x.cols(), PASSES);
    let mut call = |slots: &[Slot<'_>]| stream.call_of(&Call { kernel, slots, words: &words, grid }, work);
    match (how, other) {
        (Entry::Add, Some(other)) => call(&[weight, bias, to.slot, other.slot, from.slot]),
        (Entry::Heads, _) => call(&[weight, bias, to.slot]),
        _ => call(&[weight, bias, to.slot, from.slot]),
    }
}
