//! Backends by name.
//!
//! Users name a backend in a string; generic code (engine, plan, benchmarks) is called with the right type by
//! a [`Visitor`]. An unknown name is distinguished from one that this build was made without: the
//! first is a user's slip, the second needs another build.

mod cache;
#[cfg_attr(feature = "cpu", path = "cpu_enabled.rs")]
#[cfg_attr(not(feature = "cpu"), path = "cpu_disabled.rs")]
mod cpu;
#[cfg_attr(feature = "cuda", path = "cuda_enabled.rs")]
#[cfg_attr(not(feature = "cuda"), path = "cuda_disabled.rs")]
mod cuda;
mod inspect;
mod name;
#[cfg(any(feature = "cpu", feature = "cuda", feature = "wgpu"))]
mod properties;
mod visit;
#[cfg_attr(feature = "wgpu", path = "wgpu_enabled.rs")]
#[cfg_attr(not(feature = "wgpu"), path = "wgpu_disabled.rs")]
mod wgpu;

#[doc(hidden)]
pub use inspect::{Inspected, Inspector, Measure, Opening, Place, Probing};
pub use name::{BackendName, CudaOptions, KNOWN, NCCL, WgpuOptions};
pub use visit::{Limits, Visitor};

use engraft_core::{Error, Result};
use serde_json::Value;

/// Starts the named backend (`threads` 0: one per core) and runs `visitor` with it.
///
/// # Errors
/// `Unsupported` when this build has no such backend; what starting it and the visitor raise.
pub fn with_backend<V: Visitor>(name: &BackendName, threads: usize, visitor: V) -> Result<V::Output> {
    match name {
        BackendName::Cpu => cpu::visit(threads, visitor),
        BackendName::Cuda(device) => cuda::visit(device, visitor),
        BackendName::Wgpu(adapter) => wgpu::visit(adapter, visitor),
    }
}

/// The adapters that `wgpu` can run on, for people; empty where this build lacks that backend.
pub fn adapters() -> Vec<String> {
    wgpu::adapters()
}

/// The devices that `cuda` can run on, for people; none where this build lacks that backend.
///
/// # Errors
/// `Unsupported` without a driver.
pub fn cuda_devices() -> Result<Vec<String>> {
    cuda::devices()
}

/// Version and file of NCCL, for people: `library` as [`CudaOptions::nccl`].
///
/// # Errors
/// `Config` where it is not found, lacks a function or is too old, `Unsupported` where this build lacks
/// `cuda`.
pub fn nccl(library: &std::path::Path) -> Result<String> {
    cuda::nccl(library)
}

/// Every device that this build can run on by one of the backends `cpu`, `cuda` and `wgpu`, for a report.
///
/// # Errors
/// Why there is none; `Config` for another backend.
#[doc(hidden)]
pub fn devices(backend: &str, opening: &Opening) -> Result<Vec<(Place, Value)>> {
    match backend {
        "cpu" => cpu::found(),
        "cuda" => cuda::found(opening),
        "wgpu" => wgpu::found(),
        _ => Err(Error::config("backend", format!("\"{backend}\""), "cpu, cuda, wgpu")),
    }
}

/// Opens a device for a report and shows it to `inspector`.
///
/// # Errors
/// As [`with_backend`].
#[doc(hidden)]
pub fn inspect<V: Inspector>(place: Place, opening: &Opening, inspector: V) -> Result<V::Output> {
    match place {
        Place::Cpu => cpu::inspect(opening, inspector),
        Place::Cuda(index) => cuda::inspect(index, opening, inspector),
        Place::Wgpu(index) => wgpu::inspect(index, opening, inspector),
    }
}

/// Measures the named backend's limits now; takes a moment and half a gigabyte.
///
/// # Errors
/// As [`with_backend`].
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::backends::{BackendName, measure_limits};
///
/// let limits = measure_limits(&BackendName::Cpu, 0)?;
/// println!("{:.0} GB/s, {:.0} GFLOP/s", limits.read_gbs, limits.fma_gflops);
/// # assert!(limits.read_gbs > 0.0 && limits.fma_gflops > 0.0);
/// # Ok(())
/// # }
/// ```
pub fn measure_limits(name: &BackendName, threads: usize) -> Result<Limits> {
    match name {
        BackendName::Cpu => cpu::limits(threads),
        BackendName::Cuda(device) => cuda::limits(device),
        BackendName::Wgpu(adapter) => wgpu::limits(adapter),
    }
}
