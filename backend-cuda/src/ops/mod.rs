//! The backend contract on top of the kernels: each op fills a kernel's parameters from views and hands them
//! to the stream. One file per stem has its ops and which kernel each of them takes; [`select`] has the
//! choices that depend on more than element types.

mod attention;
mod elementwise;
mod embed;
mod index;
mod int8;
mod kv;
mod linear;
mod moe;
mod names;
mod norm;
mod picture;
mod rope;
mod rows;
mod sample;
mod select;

pub(crate) use kv::slab_bytes;
pub(crate) use select::taken;

use crate::terms::Terms;
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream, CudaWeight, Kernel};
use engraft_core::Result;
use engraft_core::backend::Coverage;
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef};
use engraft_core::ops::{Checked, Op, OpKind, PictureOpKind, Run, Signature};
use engraft_kernels::params::MatView;

impl Run<Cuda> for CudaStream {
    fn run(&mut self, op: Checked<'_, Cuda>) -> Result<()> {
        let signature = op.op().signature();
        if composed(signature.op).is_some() {
            return op.compose(self);
        }
        match op.into_op() {
            Op::Embed(op) => embed::run(self, op),
            Op::Linear(op) => linear::run(self, op, &signature),
            Op::Norm(op) => norm::run(self, op),
            Op::Elementwise(op) => elementwise::run(self, op),
            Op::Moe(op) => moe::run(self, op, &signature),
            Op::Rope(op) => rope::run(self, op, &signature),
            Op::Kv(op) => kv::run(self, op),
            Op::Attention(op) => attention::run(self, op, &signature),
            Op::Index(op) => index::run(self, op, &signature),
            Op::Picture(op) => picture::run(self, op),
            Op::Rows(op) => rows::run(self, op),
            Op::Sample(op) => sample::run(self, op),
        }
    }
}

/// Why an op runs by its composition; of all others none.
fn composed(op: OpKind) -> Option<&'static str> {
    match op {
        OpKind::Picture(PictureOpKind::Conv) => Some("windows are gathered, then multiplied as other rows"),
        _ => None,
    }
}

/// How an op runs here.
pub(crate) fn coverage(terms: Terms, signature: &Signature) -> Coverage<Kernel> {
    if let Some(reason) = composed(signature.op) {
        return Coverage::Composed(reason.into());
    }
    let kernel = match signature.op {
        OpKind::Embed(_) => embed::kernel(signature),
        OpKind::Linear(_) => linear::kernel(terms, signature),
        OpKind::Norm(op) => Ok(norm::kernel(terms, op, signature)),
        OpKind::Elementwise(op) => Ok(elementwise::kernel(op, signature)),
        OpKind::Moe(op) => moe::kernel(terms, op, signature),
        OpKind::Rope(op) => rope::kernel(op, signature),
        OpKind::Kv(op) => Ok(kv::kernel(op, signature)),
        OpKind::Attention(op) => attention::kernel(terms, op, signature),
        OpKind::Index(op) => index::kernel(op, signature),
        OpKind::Picture(op) => picture::kernel(op, signature),
        OpKind::Rows(op) => Ok(rows::kernel(op, signature)),
        OpKind::Sample(_) => Ok(sample::kernel()),
    };
    kernel.map_or_else(Coverage::Missing, Coverage::Native)
}

/// What kernels see of operands. Views lie inside their memory; whose memory that is they do not know.
impl CudaStream {
    /// A matrix to read.
    fn matrix(&self, m: MatRef<'_, CudaMem>) -> Result<MatView> {
        Ok(MatView {
            ptr: self.gpu().address(m.mem())? + (m.offset() * m.dtype().bytes()) as u64,
            pitch: m.pitch() as u64,
            rows: word(m.rows())?,
            cols: word(m.cols())?,
        })
    }

    /// A matrix to write.
    fn matrix_mut(&self, m: &MatMut<'_, CudaMem>) -> Result<MatView> {
        self.matrix(m.as_ref())
    }

    /// Address of the first element of a buffer to read.
    pub(crate) fn buffer<T>(&self, b: BufRef<'_, CudaMem, T>) -> Result<u64> {
        Ok(self.gpu().address(b.mem())? + (b.offset() * size_of::<T>()) as u64)
    }

    /// Address of the first element of a buffer to write.
    pub(crate) fn buffer_mut<T>(&self, b: &BufMut<'_, CudaMem, T>) -> Result<u64> {
        self.buffer(b.as_ref())
    }

    /// Address of the f32 values of a bias or a norm's weight; 0: none.
    fn vector(&self, weight: Option<&CudaWeight>) -> Result<u64> {
        weight.map_or(Ok(0), |weight| weight.vector(self.gpu()))
    }
}
