//! Tensor-core kernels on the machine without a GPU: checked-in PTX, every check on, several schedules,
//! against f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "tensor/bias.rs"]
mod bias;
#[path = "tensor/clusters.rs"]
mod clusters;
#[path = "tensor/flash.rs"]
mod flash;
#[path = "tensor/gemm.rs"]
mod gemm;
#[path = "tensor/grouped.rs"]
mod grouped;
#[path = "tensor/long.rs"]
mod long;
#[path = "tensor/machine.rs"]
mod machine;
#[path = "tensor/pack.rs"]
mod pack;
#[path = "tensor/ranks.rs"]
mod ranks;
#[path = "tensor/sizes.rs"]
mod sizes;
#[path = "tensor/weights.rs"]
mod weights;
#[path = "tensor/wide.rs"]
mod wide;
#[path = "tensor/wide_packed.rs"]
mod wide_packed;
#[path = "tensor/wild.rs"]
mod wild;
