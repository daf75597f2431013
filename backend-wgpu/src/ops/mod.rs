//! The ops on top of the kernels: each places its views and hands a call, or a few, to the stream. One file
//! per stem.

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
#[cfg(test)]
mod tests;

use crate::select::composed;
use crate::{Wgpu, WgpuStream};
use engraft_core::ops::{Checked, Op, Run};
use engraft_core::{Error, Result};

impl Run<Wgpu> for WgpuStream {
    /// Every op has a kernel, or the same choice that `coverage` reports says why not.
    fn run(&mut self, op: Checked<'_, Wgpu>) -> Result<()> {
        if composed(op.op().kind()).is_some() {
            return op.compose(self);
        }
        let variant = self.gpu().select.choose(&op.op().signature()).map_err(|reason| {
            let backend = self.gpu().gpu.name.clone();
            Error::Unsupported { op: op.op().kind().name().into(), backend, reason }
        })?;
        match op.into_op() {
            Op::Embed(op) => embed::run(self, op),
            Op::Linear(op) => linear::run(self, op, variant),
            Op::Norm(op) => norm::run(self, op, variant),
            Op::Elementwise(op) => elementwise::run(self, op),
            Op::Moe(op) => moe::run(self, op),
            Op::Rope(op) => rope::run(self, op, variant),
            Op::Kv(op) => kv::run(self, op),
            Op::Attention(op) => attention::run(self, op, variant),
            Op::Index(op) => index::run(self, op),
            Op::Picture(op) => picture::run(self, op),
            Op::Rows(op) => rows::run(self, op),
            Op::Sample(op) => sample::run(self, op),
        }
    }
}
