//! Convolutions, attention without a softmax.

use super::names::elem;
use crate::weight::word;
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::ops::{GroupedConv, LinearAttend, PictureOp, PictureOpKind, Signature};
use engraft_core::{Error, Result};
use engraft_kernels::params::picture as kernels;

/// Which kernel.
pub(super) fn kernel(op: PictureOpKind, signature: &Signature) -> std::result::Result<Kernel, String> {
    let elem = elem(signature.x);
    Ok(match op {
        PictureOpKind::Conv => return Err("it is composed".into()),
        PictureOpKind::GroupedConv => Kernel::Entry(kernels::Conv::entry(elem)),
        PictureOpKind::LinearAttend => Kernel::Several {
            name: "picture_sums_* | picture_read_*",
            entries: kernels::Linear::entries(elem),
        },
    })
}

pub(super) fn run(stream: &mut CudaStream, op: PictureOp<'_, Cuda>) -> Result<()> {
    match op {
        PictureOp::Conv(_) => Err(Error::internal("conv is composed")),
        PictureOp::GroupedConv(op) => grouped_conv(stream, op),
        PictureOp::LinearAttend(op) => linear_attend(stream, op),
    }
}

fn grouped_conv(stream: &mut CudaStream, op: GroupedConv<'_, Cuda>) -> Result<()> {
    let p = kernels::Conv {
        x: stream.matrix(op.x)?,
        out: stream.matrix_mut(&op.out)?,
        rows: stream.buffer(op.rows)?,
        weight: stream.vector(Some(op.weight))?,
        bias: stream.vector(op.bias)?,
        taps: word(op.taps)?,
        inputs: word(op.inputs)?,
        outputs: word(op.outputs)?,
        elem: elem(op.x.dtype()),
    };
    // Numbers of products are counted in a word.
    word(op.taps.saturating_mul(op.inputs))?;
    stream.launch(&p.launch(), &p)
}

fn linear_attend(stream: &mut CudaStream, op: LinearAttend<'_, Cuda>) -> Result<()> {
    let p = kernels::Linear {
        q: stream.matrix(op.q)?,
        k: stream.matrix(op.k)?,
        v: stream.matrix(op.v)?,
        sums: stream.matrix_mut(&op.sums)?,
        out: stream.matrix_mut(&op.out)?,
        bounds: stream.buffer(op.bounds)?,
        items: word(op.items())?,
        heads: word(op.heads)?,
        width: word(op.width)?,
        step: word(op.step)?,
        eps: op.eps,
        elem: elem(op.q.dtype()),
    };
    p.launches().iter().try_for_each(|launch| stream.launch(launch, &p))
}
