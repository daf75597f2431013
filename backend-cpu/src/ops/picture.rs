//! Convolutions in groups, attention without a softmax.

use crate::kernels::picture::{self as kernel, Grouped, Linear};
use crate::mem::{SharedMat, Words};
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::ops::{GroupedConv, LinearAttend, PictureOp};

pub(super) fn run(stream: &mut CpuStream, op: PictureOp<'_, Cpu>) -> Result<()> {
    match op {
        PictureOp::GroupedConv(op) => grouped_conv(stream, op),
        PictureOp::LinearAttend(op) => linear_attend(stream, op),
    }
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
