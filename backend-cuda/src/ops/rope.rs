//! Rotary embedding, alone and between the fused q|k|v matmul and attention.

use super::kv::slabs;
use super::names::{elem, unsupported};
use crate::weight::word;
use crate::{Cuda, CudaStream, Kernel};

use engraft_core::ops::{NormWeights, OpKind, QkvRopeAppend, Rope, RopeOp, RopeOpKind, Signature};
use engraft_core::params::{NormKind, RopeStyle};
use engraft_core::{Error, Result};
use engraft_kernels::params::{kv, rope};

/// Which kernel.
///
/// # Errors
/// Why there is none.
pub(super) fn kernel(op: RopeOpKind, signature: &Signature) -> std::result::Result<Kernel, String> {
    let widest = signature.heads.map_or(0, |heads| heads.k_dim.max(heads.v_dim));
    match op {
        RopeOpKind::Rope => Ok(Kernel::Entry(rope::Rope::entry(elem(signature.x)))),
        RopeOpKind::QkvRopeAppend if widest > kv::RotateAppend::WIDEST => {
            Err(format!("heads of {widest} columns; at most {} are possible", kv::RotateAppend::WIDEST))
        }
        RopeOpKind::QkvRopeAppend => Ok(Kernel::Entry(kv::RotateAppend::entry(elem(signature.x)))),
    }
}

pub(super) fn run(stream: &mut CudaStream, op: RopeOp<'_, Cuda>, signature: &Signature) -> Result<()> {
    let OpKind::Rope(kind) = signature.op else { return Err(Error::internal("an op of another stem")) };
    kernel(kind, signature).map_err(|reason| unsupported(signature, reason))?;
    match op {
        RopeOp::Rope(op) => alone(stream, op),
        RopeOp::QkvRopeAppend(op) => rotate_append(stream, op),
    }
}

fn alone(stream: &mut CudaStream, op: Rope<'_, Cuda>) -> Result<()> {
    let p = rope::Rope {
        x: stream.matrix_mut(&op.x)?,
        positions: stream.buffer(op.positions)?,
        table: stream.buffer(op.rope.table)?,
        table_positions: word(op.rope.positions)?,
        pairs: word(op.rope.pairs)?,
        heads: word(op.x.cols() / op.width.max(1))?,
        width: word(op.width)?,
        interleaved: u32::from(op.rope.style == RopeStyle::Interleaved),
        elem: elem(op.x.dtype()),
    };
    stream.launch(&p.launch(), &p)
}

fn head_norm(stream: &CudaStream, norm: Option<NormWeights<'_, Cuda>>) -> Result<kv::HeadNorm> {
    let Some(norm) = norm else { return Ok(kv::HeadNorm::default()) };
    let flag = |yes: bool, bit: u32| if yes { bit } else { 0 };
    Ok(kv::HeadNorm {
        weight: stream.vector(norm.weight)?,
        bias: stream.vector(norm.bias)?,
        eps: norm.eps,
        flags: kv::HeadNorm::NORM
            | flag(norm.kind == NormKind::Layer, kv::HeadNorm::LAYER)
            | flag(norm.plus_one, kv::HeadNorm::PLUS_ONE),
    })
}

/// Norms, rotation and append in one launch.
fn rotate_append(stream: &mut CudaStream, op: QkvRopeAppend<'_, Cuda>) -> Result<()> {
    let mut p = kv::RotateAppend {
        qkv: stream.matrix_mut(&op.qkv)?,
        kv: slabs(stream, op.kv.as_ref())?,
        q_norm: head_norm(stream, op.q_norm)?,
        k_norm: head_norm(stream, op.k_norm)?,
        table: 0,
        positions: stream.buffer(op.positions)?,
        slots: stream.buffer(op.slots)?,
        table_positions: 0,
        pairs: 0,
        interleaved: 0,
        heads: word(op.heads.heads)?,
        elem: elem(op.qkv.dtype()),
        reserved: 0,
    };
    if let Some(rope) = op.rope {
        (p.table, p.table_positions) = (stream.buffer(rope.table)?, word(rope.positions)?);
        (p.pairs, p.interleaved) = (word(rope.pairs)?, u32::from(rope.style == RopeStyle::Interleaved));
    }
    stream.launch(&p.launch(), &p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engraft_core::mem::Float;
    use engraft_core::params::Heads;

    /// A block of the kernel has shared memory for heads of so many columns, keys or values.
    #[test]
    fn heads_wider_than_the_kernels_shared_memory_are_refused() {
        let widest = kv::RotateAppend::WIDEST;
        for (k_dim, v_dim, fits) in
            [(widest, 64, true), (64, widest, true), (widest + 1, 64, false), (64, widest + 1, false)]
        {
            let heads = Some(Heads { heads: 2, kv_heads: 1, k_dim, v_dim });
            let op = RopeOpKind::QkvRopeAppend;
            let signature = Signature { heads, ..Signature::new(op.into(), Float::F32, k_dim, 2) };
            let chosen = kernel(op, &signature);
            assert_eq!(chosen.is_ok(), fits, "heads of {k_dim} and {v_dim} columns");
            if let Err(reason) = chosen {
                assert!(reason.contains(&format!("{} columns; at most {widest}", widest + 1)), "{reason}");
            }
        }
    }
}
