//! The CUDA backend is compiled in.

use super::inspect::{Inspected, Inspector, Opening, Place};
use super::name::CudaOptions;
use super::properties::{common, kept};
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use engraft_cuda::{Cuda, CudaConfig, Nccl, list};
use serde_json::{Map, Value, json};
use std::path::Path;
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
    let CudaOptions {
        index,
        driver,
        kernel_cache,
        mode,
        cublaslt,
        nccl,
        exchange,
        in_order,
        blocking,
        wait_limit,
    } = name.clone();
    Cuda::new(CudaConfig {
        device: index.into(),
        driver,
        kernel_cache,
        mode,
        cublaslt,
        nccl,
        exchange,
        blocking,
        in_order,
        wait_limit,
    })
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

/// Version and file of NCCL.
pub fn nccl(library: &Path) -> Result<String> {
    let nccl = Nccl::open(library)?;
    Ok(format!("{} ({})", nccl.version(), nccl.path().display()))
}

/// Devices for reports.
pub fn found(opening: &Opening) -> Result<Vec<(Place, Value)>> {
    let facts = |d: engraft_cuda::Listed| {
        let (major, minor) = d.capability;
        json!({"name": d.name, "capability": format!("{major}.{minor}"), "memory_bytes": d.memory_bytes})
    };
    let all = list(opening.cuda_driver.as_deref())?;
    Ok(all.into_iter().zip(0..).map(|(device, index)| (Place::Cuda(index), facts(device))).collect())
}

/// Shows a device to `inspector`.
pub fn inspect<V: Inspector>(index: u16, opening: &Opening, inspector: V) -> Result<V::Output> {
    let (driver, kernel_cache) = (opening.cuda_driver.clone(), opening.kernel_cache.clone());
    let device = index.into();
    let cuda = Cuda::new(CudaConfig { device, driver, kernel_cache, ..CudaConfig::default() })?;
    let mut facts = common(cuda.as_ref());
    let driver: Map<String, Value> =
        cuda.facts().into_iter().map(|(name, value)| (name.to_string(), value.into())).collect();
    facts.insert("driver".into(), driver.into());
    facts.insert("clock".into(), "device".into());
    facts.insert("probes".into(), json!([]));
    facts.insert("promises".into(), kept("by its kernels, whose instructions are fixed; not probed"));
    let measured = cuda.clone();
    let limits = move || {
        let (read_gbs, fma_gflops) = measured.limits()?;
        Ok(Limits { read_gbs, fma_gflops })
    };
    inspector.inspect(Inspected { backend: cuda, facts, limits: Box::new(limits), kernels: None })
}
