//! Tensor-core kernels on the machine without a GPU: checked-in PTX, every check on, several schedules,
//! against f64.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "tensor/bias.rs"]
mod bias;
#[path = "tensor/clusters.rs"]
mod clusters;
#[path = "tensor/flash.rs"]
mod flash;
#[path = "tensor/flash_features.rs"]
mod flash_features;
#[path = "tensor/gemm.rs"]
mod gemm;
#[path = "tensor/gemm_codes.rs"]
mod gemm_codes;
#[path = "tensor/gemm_endings.rs"]
mod gemm_endings;
#[path = "tensor/gemm_own.rs"]
mod gemm_own;
#[path = "tensor/gemm_rings.rs"]
mod gemm_rings;
#[path = "tensor/grouped.rs"]
mod grouped;
#[path = "tensor/grouped_kernels.rs"]
mod grouped_kernels;
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
