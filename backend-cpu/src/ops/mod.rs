//! The backend contract on top of the kernels: each op turns views into memory-holding descriptors and hands a closure
//! to the stream, which runs or records it.
//!
//! One file per stem. What changes per step (ids, positions, slots, lengths) is read from memory inside the closure.

mod attention;
mod elementwise;
mod embed;
mod fused;
mod kv;
mod linear;
mod moe;
mod norm;
mod primitive;
mod rope;
mod sample;

use crate::mem::Rows;
use crate::simd::Isa;
use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::mem::WeightFormat;
use engraft_core::params::Act;

use crate::kernels;
pub(crate) use moe::ExpertScratch;
pub(crate) use sample::SampleScratch;

/// How an op runs here. Native ops are those that `primitive` and `fused` implement; what `fused` leaves to its
/// composed default says why.
pub(crate) fn coverage(op: Op, signature: &Signature, isa: Isa) -> Coverage {
    let kernel = match op {
        // The default reduces over a group of one and calls `add_norm`, which is native.
        Op::ReduceAddNorm => Op::AddNorm.name(),
        Op::QkvRopeAppend => {
            return Coverage::Composed("q, k and v rows stay in cache between norm, rope and append".into());
        }
        other => other.name(),
    };
    // What AVX-512 was worth another compilation for; see `simd::wide`.
    let wide = match op {
        Op::Linear | Op::LinearAct | Op::LinearAdd | Op::GatedLinear | Op::ExpertLinear => {
            signature.weight != Some(WeightFormat::W8A8)
        }
        Op::Norm | Op::AddNorm | Op::ReduceAddNorm | Op::HeadNorm | Op::Attend | Op::AttendDense => true,
        _ => false,
    };
    let isa = match (isa, wide) {
        (Isa::Avx512, false) => Isa::Avx2,
        (isa, _) => isa,
    };
    let isa = isa.name();
    Coverage::Native(match signature.weight {
        Some(format) => format!("{kernel}_{}_{isa}", format.name().to_lowercase()),
        None => format!("{kernel}_{}_{isa}", signature.dtype),
    })
}

impl Rows {
    /// A kernel's view to read.
    pub(crate) fn read(&self) -> kernels::Rows {
        // SAFETY: `Exec` has checked that all rows lie inside the allocation, which this descriptor keeps alive; the
        // stream runs one op at a time.
        unsafe { kernels::Rows::new(self.row(0), self.dtype, self.rows, self.cols, self.pitch) }
    }

    /// A kernel's view to write.
    pub(crate) fn write(&self) -> kernels::RowsMut {
        // SAFETY: as in `read`; the op's output came from an exclusive borrow.
        unsafe { kernels::RowsMut::new(self.row(0), self.dtype, self.rows, self.cols, self.pitch) }
    }
}

/// The kernel's name of an activation.
pub(crate) fn activation(act: Act) -> engraft_core::Result<kernels::Activation> {
    use kernels::Activation as A;
    Ok(match act {
        Act::Relu => A::Relu,
        Act::Silu => A::Silu,
        Act::Gelu => A::GeluErf,
        Act::GeluTanh => A::GeluTanh,
        Act::QuickGelu => A::QuickGelu,
        Act::Tanh => A::Tanh,
        other => {
            return Err(engraft_core::Error::Unsupported {
                op: format!("activation {other:?}"),
                backend: "cpu".into(),
                reason: "no kernel".into(),
            });
        }
    })
}
