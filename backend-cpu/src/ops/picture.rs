//! Convolutions, attention without a softmax.

use super::elementwise::activation;
use crate::kernels::linear::{After, Epilogue, Windows, conv as kernel_of_all};
use crate::kernels::picture::{self as kernel, Grouped, Linear};
use crate::mem::{SharedMat, Words};
use crate::select::Choice;
use crate::simd::Isa;
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::mem::WeightFormat;
use engraft_core::ops::{Conv, GroupedConv, LinearAttend, PictureOp, Signature};

pub(super) fn select(signature: &Signature, isa: Isa) -> Choice {
    match signature.weight {
        Some(WeightFormat::W8A8) => Choice::Composed("windows become bytes before they are multiplied"),
        _ => Choice::sixteen(signature, isa),
    }
}

pub(super) fn run(stream: &mut CpuStream, op: PictureOp<'_, Cpu>) -> Result<()> {
    match op {
        PictureOp::Conv(op) => conv(stream, op),
        PictureOp::GroupedConv(op) => grouped_conv(stream, op),
        PictureOp::LinearAttend(op) => linear_attend(stream, op),
    }
}

fn conv(stream: &mut CpuStream, op: Conv<'_, Cpu>) -> Result<()> {
    let Conv { x, rows, taps, weight, bias, act, scratch: _, out } = op;
    let (x, rows, out) = (SharedMat::from(x), Words::from(rows), SharedMat::from(out));
    let (w, bias) = (weight.panels()?, bias.map(|bias| bias.vector()).transpose()?);
    let act = act.map(activation).transpose()?;
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let windows = Windows { rows: unsafe { rows.slice() }, taps };
        let after = act.map_or(After::Nothing, After::Activate);
        let epilogue = Epilogue { bias: bias.as_deref(), after };
        kernel_of_all(cpu.machine(), x.read(), windows, &w, (out.write(), &epilogue))
    })
}

fn grouped_conv(stream: &mut CpuStream, op: GroupedConv<'_, Cpu>) -> Result<()> {
    let GroupedConv { x, rows, taps, inputs, outputs, weight, bias, out } = op;
    let (x, rows, out) = (SharedMat::from(x), Words::from(rows), SharedMat::from(out));
    let (weight, bias) = (weight.vector()?, bias.map(|bias| bias.vector()).transpose()?);
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let rows = unsafe { rows.slice() };
        let of = Grouped { rows, taps, inputs, outputs, weight: &weight, bias: bias.as_deref() };
        kernel::grouped_conv(cpu.machine(), x.read(), of, out.write())
    })
}

fn linear_attend(stream: &mut CpuStream, op: LinearAttend<'_, Cpu>) -> Result<()> {
    let LinearAttend { q, k, v, bounds, max_rows: _, heads, width, step, eps, sums, out } = op;
    let ([q, k, v], bounds) = ([q, k, v].map(SharedMat::from), Words::from(bounds));
    let (sums, out) = (SharedMat::from(sums), SharedMat::from(out));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time.
        let bounds = unsafe { bounds.slice() };
        let of = Linear { q: q.read(), k: k.read(), v: v.read(), bounds, heads, width, step, eps };
        kernel::linear_attend(cpu.machine(), of, sums.write(), out.write())
    })
}
