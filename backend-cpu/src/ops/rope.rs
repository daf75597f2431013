//! Rotary embedding.

use crate::kernels::rope::{Angles, rope as kernel};
use crate::mem::{SharedMat, Words};
use crate::select::Choice;
use crate::simd::Isa;
use crate::{Cpu, CpuStream};
use engraft_core::ops::{Rope, RopeOp, RopeOpKind, Signature};
use engraft_core::{Error, Result};

/// What happens between q|k|v and attention is composed: those passes touch rows that are in cache anyway.
pub(super) fn select(kind: RopeOpKind, signature: &Signature, isa: Isa) -> Choice {
    match kind {
        RopeOpKind::Rope => Choice::eight(signature, isa),
        RopeOpKind::QkvRopeAppend => {
            Choice::Composed("q, k and v rows stay in cache between norm, rope and append")
        }
    }
}

pub(super) fn run(stream: &mut CpuStream, op: RopeOp<'_, Cpu>) -> Result<()> {
    match op {
        RopeOp::Rope(Rope { x, width, positions, rope }) => {
            let (x, positions, table) = (SharedMat::from(x), Words::from(positions), Words::from(rope.table));
            let (count, pairs, style) = (rope.positions * rope.pairs, rope.pairs, rope.style);
            stream.enqueue(move |cpu| {
                // SAFETY: the stream runs one op at a time.
                let (positions, table) = unsafe { (positions.slice(), table.slice()) };
                let (cos, sin) = table.split_at(count);
                kernel(cpu.machine(), x.write(), width, positions, Angles { cos, sin, pairs, style })
            })
        }
        RopeOp::QkvRopeAppend(_) => Err(Error::internal("`select` composes qkv_rope_append")),
    }
}
