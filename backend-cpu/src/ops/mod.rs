//! The backend contract on top of the kernels: each op turns views into memory-holding descriptors and hands
//! a closure to the stream, which runs or captures it.
//!
//! One file per stem. What changes per step (ids, positions, slots, lengths) is read from memory inside the
//! closure.

mod attention;
mod elementwise;
mod embed;
mod index;
mod kv;
mod linear;
mod moe;
mod norm;
mod picture;
mod rope;
mod rows;
mod sample;

use crate::kernels;
use crate::mem::SharedMat;
use crate::select::{Choice, unsupported};
use crate::simd::Isa;
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::ops::{Checked, Op, OpKind, Run, Signature};

/// How an op runs here: the one choice behind what is reported and what is done.
pub(crate) fn select(signature: &Signature, isa: Isa) -> Choice {
    match signature.op {
        OpKind::Linear(_) => linear::select(signature, isa),
        OpKind::Norm(_) => Choice::sixteen(signature, isa),
        OpKind::Picture(_) => picture::select(signature, isa),
        OpKind::Moe(kind) => moe::select(kind, signature, isa),
        OpKind::Rope(kind) => rope::select(kind, signature, isa),
        OpKind::Attention(_) => attention::select(signature, isa),
        OpKind::Embed(_)
        | OpKind::Elementwise(_)
        | OpKind::Kv(_)
        | OpKind::Index(_)
        | OpKind::Rows(_)
        | OpKind::Sample(_) => Choice::eight(signature, isa),
    }
}

impl Run<Cpu> for CpuStream {
    fn run(&mut self, op: Checked<'_, Cpu>) -> Result<()> {
        match select(&op.op().signature(), self.cpu().machine().isa) {
            Choice::Kernel(_) => {}
            Choice::Composed(_) => return op.compose(self),
            Choice::Missing(reason) => return Err(unsupported(op.op().kind().name(), reason)),
        }
        match op.into_op() {
            Op::Embed(op) => embed::run(self, op),
            Op::Linear(op) => linear::run(self, op),
            Op::Norm(op) => norm::run(self, op),
            Op::Elementwise(op) => elementwise::run(self, op),
            Op::Moe(op) => moe::run(self, op),
            Op::Rope(op) => rope::run(self, op),
            Op::Kv(op) => kv::run(self, op),
            Op::Attention(op) => attention::run(self, op),
            Op::Index(op) => index::run(self, op),
            Op::Picture(op) => picture::run(self, op),
            Op::Rows(op) => rows::run(self, op),
            Op::Sample(op) => sample::run(self, op),
        }
    }
}

impl SharedMat {
    /// A kernel's view to read.
    fn read(&self) -> kernels::RawMat {
        // SAFETY: a view that exists lies inside its allocation, which this descriptor keeps alive; whoever
        // ran the op has borrowed it, or promised as much for a replay.
        unsafe { kernels::RawMat::new(self.row(0), self.dtype, self.rows, self.cols, self.pitch) }
    }

    /// A kernel's view to write.
    fn write(&self) -> kernels::RawMatMut {
        // SAFETY: as in `read`; what an op writes was borrowed exclusively.
        unsafe { kernels::RawMatMut::new(self.row(0), self.dtype, self.rows, self.cols, self.pitch) }
    }
}
