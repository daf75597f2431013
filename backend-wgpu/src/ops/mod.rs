//! The backend contract on top of the kernels: each op chooses a kernel, places its views, and hands a call to the
//! stream. One file per stem.

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
mod rows;
mod sample;
mod select;

pub(crate) use attention::ScoreBuffers;
pub(crate) use kv::slab_bytes;
pub(crate) use select::Select;

use crate::command::elem;
use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::params::Act;
use engraft_core::{Error, Result};

/// Invocations of a workgroup of kernels that go over elements.
const FLAT: usize = 256;

/// The number by which shaders know an activation (`act_of` in `math.wgsl`).
fn activation(act: Act) -> Result<u32> {
    Ok(match act {
        Act::Relu => 0,
        Act::Silu => 1,
        Act::Gelu => 2,
        Act::GeluTanh => 3,
        Act::QuickGelu => 4,
        Act::Tanh => 5,
        other => {
            return Err(Error::Unsupported {
                op: format!("activation {other:?}"),
                backend: "wgpu".into(),
                reason: "no kernel".into(),
            });
        }
    })
}

/// How an op runs here. Native ops are those that `primitive` and `fused` implement; what `fused` leaves to its
/// composed default says why. What `prepare_weight` would refuse is missing.
pub(crate) fn coverage(select: &Select, op: Op, signature: &Signature) -> Coverage {
    let x = elem(signature.dtype).name();
    if let Some(reason) = signature.weight.and_then(crate::weight::unreadable) {
        return Coverage::Missing(reason);
    }
    let weight = match signature.weight {
        Some(format) => format!("_{}", format.name().to_lowercase()),
        None => String::new(),
    };
    let kernel = match op {
        // The default reduces over a group of one and calls `add_norm`, which is native.
        Op::ReduceAddNorm => Op::AddNorm.name(),
        other => other.name(),
    };
    Coverage::Native(format!("{kernel}{weight}_{x}_wgsl{}", select.suffix(op, signature)))
}
