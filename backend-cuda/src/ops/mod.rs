//! The backend contract on top of the kernels: each op fills a kernel's parameters from views and hands them to the
//! stream. One file per stem.

mod attention;
mod elementwise;
mod embed;
mod fused;
mod int8;
mod kv;
mod linear;
mod moe;
mod norm;
mod primitive;
mod rope;
mod rows;
mod sample;
mod select;

pub(crate) use attention::Slopes;
pub(crate) use int8::Formed;
pub(crate) use kv::slab_bytes;
pub(crate) use select::{Terms, coverage};

use crate::CudaMem;
use crate::weight::word;
use engraft_core::mem::{BufRef, DeviceMem, Float, MatRef};
use engraft_core::params::Act;
use engraft_core::{Error, Result};
use engraft_kernels::params::{Activation, Elem, MatView};

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

/// A matrix as kernels see it. `Exec` has checked that it lies inside its memory; that is checked once more, since a
/// wrong address ends the context.
fn matrix(m: MatRef<'_, CudaMem>) -> Result<MatView> {
    let last = m.rows.saturating_sub(1) * m.pitch + m.cols;
    if m.rows > 0 {
        holds(m.mem, (m.offset + last) * m.dtype.bytes())?;
    }
    Ok(MatView {
        ptr: m.mem.address() + (m.offset * m.dtype.bytes()) as u64,
        pitch: m.pitch as u64,
        rows: word(m.rows)?,
        cols: word(m.cols)?,
    })
}

/// Address of a buffer's first element.
fn buffer<T>(b: BufRef<'_, CudaMem, T>) -> Result<u64> {
    holds(b.mem, (b.offset + b.len) * size_of::<T>())?;
    Ok(b.mem.address() + (b.offset * size_of::<T>()) as u64)
}

fn holds(mem: &CudaMem, bytes: usize) -> Result<()> {
    match bytes <= mem.bytes() {
        true => Ok(()),
        false => Err(Error::Shape { op: "kernel", what: "bytes", got: bytes, want: mem.bytes() }),
    }
}
