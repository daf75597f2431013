//! Convolutions, attention without a softmax: the variants of `picture.wgsl`.

use crate::budget::of_matmul;
use crate::command::{Call, FLAT, Slot, buffer, elem, groups, matrix, word};
use crate::{Wgpu, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::ops::{GroupedConv, LinearAttend, PictureOp};
use engraft_core::{Error, Result};
use engraft_shaders::{Kernel, Picture as Entry};

pub(super) fn run(stream: &mut WgpuStream, op: PictureOp<'_, Wgpu>) -> Result<()> {
    match op {
        PictureOp::Conv(_) => Err(Error::internal("conv is composed")),
        PictureOp::GroupedConv(op) => grouped_conv(stream, op),
        PictureOp::LinearAttend(op) => linear_attend(stream, op),
    }
}

fn grouped_conv(stream: &mut WgpuStream, op: GroupedConv<'_, Wgpu>) -> Result<()> {
    let count = op.groups();
    let GroupedConv { x, rows, taps, inputs, outputs, weight, bias, out } = op;
    let out = out.as_ref();
    if out.rows() * out.cols() == 0 {
        return Ok(());
    }
    let gpu = stream.gpu().clone();
    let limits = gpu.limits();
    let vector = |w: Option<&WgpuWeight>| w.map_or(Ok(gpu.nothing()), WgpuWeight::vector).map(WgpuMem::share);
    let (weight, added) = (vector(Some(weight))?, vector(bias)?);
    let (from, to) = (matrix(limits, x, "activations")?, matrix(limits, out, "activations")?);
    let of_rows = buffer(limits, rows, "row numbers")?;
    // Numbers of values are counted in a word.
    word(taps.saturating_mul(inputs).saturating_mul(out.cols()))?;
    let words = [
        word(out.rows())?,
        word(out.cols())?,
        word(x.rows())?,
        word(count)?,
        word(taps)?,
        word(inputs)?,
        word(outputs)?,
        from.offset,
        word(x.pitch())?,
        of_rows.offset,
        to.offset,
        word(out.pitch())?,
        u32::from(bias.is_some()),
    ];
    let (weight, added) = (Slot::whole(limits, &weight, "a weight")?, Slot::whole(limits, &added, "a bias")?);
    let grid = groups(limits, out.rows() * out.cols(), FLAT);
    let (kernel, slots) =
        (Kernel::Picture(Entry::Conv, elem(x.dtype())), [from.slot, of_rows.slot, weight, added, to.slot]);
    let work = of_matmul(1, out.rows() * out.cols(), taps * inputs);
    stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)
}

/// Sums that a workgroup makes at a time.
const SUMS: usize = 32;

fn linear_attend(stream: &mut WgpuStream, op: LinearAttend<'_, Wgpu>) -> Result<()> {
    let items = op.items();
    let LinearAttend { q, k, v, bounds, heads, width, step, eps, sums, out, .. } = op;
    if items == 0 {
        return Ok(());
    }
    let (limits, sums, out) = (*stream.gpu().limits(), sums.as_ref(), out.as_ref());
    let (rows, kept) = (buffer(&limits, bounds, "bounds")?, matrix(&limits, sums, "sums of keys")?);
    let place = |m| matrix(&limits, m, "activations");
    let (keys, values) = (place(k)?, place(v)?);
    let sizes = [word(items)?, word(heads)?, word(width)?, word(step)?, word(q.rows())?, rows.offset];
    let kept_at = [kept.offset, word(sums.pitch())?];
    let at = [keys.offset, word(k.pitch())?, values.offset, word(v.pitch())?];
    let grid = groups(&limits, items * heads * (width * (width + 1)).div_ceil(SUMS), 1);
    let call = Call {
        kernel: Kernel::Picture(Entry::Sums, elem(k.dtype())),
        slots: &[keys.slot, values.slot, rows.slot, kept.slot],
        words: &[&sizes[..], &at, &kept_at].concat(),
        grid,
    };
    stream.call_of(&call, of_matmul(1, k.rows(), heads * width * (width + 1)))?;
    if q.rows() == 0 {
        return Ok(());
    }
    let (queries, to) = (place(q)?, place(out)?);
    let (at, to_at) = ([queries.offset, word(q.pitch())?], [to.offset, word(out.pitch())?, eps.to_bits()]);
    let call = Call {
        kernel: Kernel::Picture(Entry::Read, elem(q.dtype())),
        slots: &[queries.slot, rows.slot, kept.slot, to.slot],
        words: &[&sizes[..], &at, &kept_at, &to_at].concat(),
        grid: groups(&limits, out.rows() * out.cols(), FLAT),
    };
    stream.call_of(&call, of_matmul(1, out.rows() * out.cols(), width))
}
