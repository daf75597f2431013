//! The backend contract on top of the kernels: each op fills a kernel's parameters from views and hands them
//! to the stream. One file per stem has its ops and which kernel each of them takes; [`select`] has the
//! choices that depend on more than element types.

mod attention;
mod elementwise;
mod embed;
mod int8;
mod kv;
mod linear;
mod moe;
mod norm;
mod rope;
mod rows;
mod sample;
mod select;

pub(crate) use kv::slab_bytes;

use crate::terms::Terms;
use crate::weight::{format_of, word};
use crate::{Cuda, CudaMem, CudaStream, CudaWeight, Kernel};
use engraft_core::backend::Coverage;
use engraft_core::mem::{BufMut, BufRef, Float, MatMut, MatRef};
use engraft_core::ops::{Checked, Op, OpKind, Run, Signature};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use engraft_kernels::params::{Activation, Elem, Format, MatView};

impl Run<Cuda> for CudaStream {
    fn run(&mut self, op: Checked<'_, Cuda>) -> Result<()> {
        let signature = op.op().signature();
        match op.into_op() {
            Op::Embed(op) => embed::run(self, op),
            Op::Linear(op) => linear::run(self, op, &signature),
            Op::Norm(op) => norm::run(self, op),
            Op::Elementwise(op) => elementwise::run(self, op),
            Op::Moe(op) => moe::run(self, op),
            Op::Rope(op) => rope::run(self, op, &signature),
            Op::Kv(op) => kv::run(self, op),
            Op::Attention(op) => attention::run(self, op, &signature),
            Op::Rows(op) => rows::run(self, op),
            Op::Sample(op) => sample::run(self, op),
        }
    }
}

/// How an op runs here.
pub(crate) fn coverage(terms: Terms, signature: &Signature) -> Coverage<Kernel> {
    let kernel = match signature.op {
        OpKind::Embed(_) => embed::kernel(signature),
        OpKind::Linear(_) => linear::kernel(terms, signature),
        OpKind::Norm(op) => Ok(norm::kernel(terms, op, signature)),
        OpKind::Elementwise(op) => Ok(elementwise::kernel(op, signature)),
        OpKind::Moe(op) => moe::kernel(op, signature),
        OpKind::Rope(op) => rope::kernel(op, signature),
        OpKind::Kv(op) => Ok(kv::kernel(op)),
        OpKind::Attention(op) => attention::kernel(terms, op, signature),
        OpKind::Rows(op) => Ok(rows::kernel(op, signature)),
        OpKind::Sample(_) => Ok(sample::kernel()),
    };
    kernel.map_or_else(Coverage::Missing, Coverage::Native)
}

/// The kernels' number of a signature's weight format.
///
/// # Errors
/// Why there is none.
fn format(signature: &Signature) -> std::result::Result<Format, String> {
    signature.weight.and_then(format_of).ok_or_else(|| no_format(signature))
}

/// That an op with this signature has no kernel here.
fn unsupported(signature: &Signature, reason: String) -> Error {
    Error::Unsupported { op: signature.op.to_string(), backend: "cuda".into(), reason }
}

fn no_format(signature: &Signature) -> String {
    let format = signature.weight.map_or("none".into(), |format| format.to_string());
    format!("no kernel for {} with weights in format {format}", signature.op)
}

/// The kernels' number of an element type.
fn elem(dtype: Float) -> Elem {
    match dtype {
        Float::F32 => Elem::F32,
        Float::F16 => Elem::F16,
        Float::Bf16 => Elem::BF16,
    }
}

/// The kernels' number of an activation.
fn activation(act: Act) -> Result<Activation> {
    Ok(match act {
        Act::Relu => Activation::RELU,
        Act::Silu => Activation::SILU,
        Act::Gelu => Activation::GELU,
        Act::GeluTanh => Activation::GELU_TANH,
        Act::QuickGelu => Activation::QUICK_GELU,
        Act::Tanh => Activation::TANH,
        other => {
            return Err(Error::Unsupported {
                op: format!("activation {other:?}"),
                backend: "cuda".into(),
                reason: "no kernel".into(),
            });
        }
    })
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
