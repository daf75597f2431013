//! Which kernel an op takes: the one place that the ops and the report both ask.

use engraft_core::backend::{Coverage, Op, Signature};
use engraft_core::numerics::Mode;

/// How an op runs here.
pub(crate) fn coverage(_mode: Mode, op: Op, signature: &Signature) -> Coverage {
    let kernel = match op {
        // The default reduces over a group of one and calls `add_norm`, which is native.
        Op::ReduceAddNorm => Op::AddNorm.name(),
        other => other.name(),
    };
    Coverage::Native(match signature.weight {
        Some(format) => format!("{kernel}_{}_{}", format.name().to_lowercase(), signature.dtype),
        None => format!("{kernel}_{}", signature.dtype),
    })
}
