//! The wgpu backend is compiled in.

use super::name::WgpuOptions;
use super::visit::{Limits, Visitor};
use engraft_core::backend::Backend;
use engraft_core::numerics::Mode;
use engraft_core::{Error, Result};
use engraft_wgpu::{Wgpu, WgpuConfig, list};
use std::sync::Arc;

/// Runs `visitor` on the adapter that `name` means.
pub fn visit<V: Visitor>(name: &WgpuOptions, visitor: V) -> Result<V::Output> {
    visitor.visit(open(name)?)
}

/// Measured reads and multiply-adds.
pub fn limits(name: &WgpuOptions) -> Result<Limits> {
    let (read_gbs, fma_gflops) = open(name)?.measure_limits()?;
    Ok(Limits { read_gbs, fma_gflops })
}

/// The adapter, if it keeps the promise that was asked for.
fn open(name: &WgpuOptions) -> Result<Arc<Wgpu>> {
    let WgpuOptions { adapter, mode } = name.clone();
    let gpu = Wgpu::new(WgpuConfig { adapter, mode, ..WgpuConfig::default() })?;
    if mode == Mode::Reference && gpu.numerics().mode != Mode::Reference {
        return Err(Error::Unsupported {
            op: "mode reference".into(),
            backend: gpu.name().into(),
            reason: format!(
                "the driver's arithmetic is not the CPU's: {:?}; the most it allows is {:?}",
                gpu.arithmetic(),
                gpu.numerics().mode
            ),
        });
    }
    Ok(gpu)
}

/// Adapters for people, the strongest first.
pub fn adapters() -> Vec<String> {
    let all = list().unwrap_or_default();
    let line = |a: &engraft_wgpu::Listed| {
        format!("{} ({}, {}; {}; {})", a.name, a.kind.name(), a.api, a.driver, a.abilities())
    };
    all.iter().map(line).collect()
}
