//! The CUDA backend is compiled in.

use super::name::CudaOptions;
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use engraft_cuda::{Cuda, CudaConfig, list};
use std::sync::Arc;

/// Runs `visitor` on the device that `name` means.
pub fn visit<V: Visitor>(name: &CudaOptions, visitor: V) -> Result<V::Output> {
    visitor.visit(open(name)?)
}

/// A measured copy, and the rate of multiply-adds that the driver's numbers give.
pub fn limits(name: &CudaOptions) -> Result<Limits> {
    let (read_gbs, fma_gflops) = open(name)?.limits()?;
    Ok(Limits { read_gbs, fma_gflops })
}

fn open(name: &CudaOptions) -> Result<Arc<Cuda>> {
    let CudaOptions { index, driver, kernel_cache, mode, cublaslt, in_order, blocking, wait_limit } =
        name.clone();
    let device = index.into();
    Cuda::new(CudaConfig { device, driver, kernel_cache, mode, cublaslt, blocking, in_order, wait_limit })
}

/// Devices for people.
pub fn devices() -> Result<Vec<String>> {
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    let line = |d: &engraft_cuda::Listed| {
        let (major, minor) = d.capability;
        format!("{} (compute capability {major}.{minor}, {:.1} GiB)", d.name, gib(d.memory_bytes))
    };
    Ok(list(None)?.iter().map(line).collect())
}
