//! The wgpu backend is compiled in.

use super::inspect::{Inspected, Inspector, Opening, Place, Probing};
use super::name::WgpuOptions;
use super::properties::common;
use super::visit::{Limits, Visitor};
use engraft_core::backend::Backend;
use engraft_core::numerics::Mode;
use engraft_core::{Error, Result};
use engraft_wgpu::{AdapterFacts, Probe, Wgpu, WgpuConfig, list};
use serde_json::{Map, Value, json};
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
    let WgpuOptions { adapter, kernel_cache, mode } = name.clone();
    let gpu = Wgpu::new(WgpuConfig { adapter, kernel_cache, mode, ..WgpuConfig::default() })?;
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

/// Adapters for reports, in the order of their places.
pub fn found() -> Result<Vec<(Place, Value)>> {
    let all = engraft_wgpu::facts()?.iter().map(said).collect::<Vec<_>>();
    if all.is_empty() {
        return Err(Error::Unavailable { backend: "wgpu".into(), reason: "no adapter was found".into() });
    }
    Ok(all.into_iter().enumerate().map(|(index, facts)| (Place::Wgpu(index), facts)).collect())
}

/// What an adapter says of itself.
fn said(adapter: &AdapterFacts) -> Value {
    let AdapterFacts { listed, vendor, device, driver, driver_version, features, limits } = adapter;
    let limits: Map<String, Value> =
        limits.iter().map(|(name, value)| (name.to_string(), (*value).into())).collect();
    json!({
        "name": listed.name,
        "type": listed.kind.name(),
        "api": listed.api,
        "vendor": format!("{vendor:#06x}"),
        "device": format!("{device:#06x}"),
        "driver": driver,
        "driver_version": driver_version,
        "lacks_dxc": listed.lacks_dxc(),
        "f16": listed.f16,
        "subgroups": listed.subgroups.map(|(least, most)| [least, most]),
        "features": features,
        "limits": limits,
    })
}

/// Shows an adapter to `inspector`.
pub fn inspect<V: Inspector>(index: usize, opening: &Opening, inspector: V) -> Result<V::Output> {
    let kernel_cache = opening.kernel_cache.clone();
    let gpu = Wgpu::new(WgpuConfig { index: Some(index), kernel_cache, ..WgpuConfig::default() })?;
    let mut facts = common(gpu.as_ref());
    facts.insert("probes".into(), gpu.probes().iter().map(probed).collect());
    let promises: Map<String, Value> = gpu.withheld().into_iter().map(promise).collect();
    facts.insert("promises".into(), promises.into());
    facts.insert("clock".into(), if gpu.has_clock() { "device" } else { "host" }.into());
    let measured = gpu.clone();
    let limits = move || {
        let (read_gbs, fma_gflops) = measured.measure_limits()?;
        Ok(Limits { read_gbs, fma_gflops })
    };
    let compared = gpu.clone();
    let kernels = move || Ok(probed(&compared.probe_kernels()?));
    let (limits, kernels) = (Box::new(limits), Some(Box::new(kernels) as Probing));
    inspector.inspect(Inspected { backend: gpu, facts, limits, kernels })
}

/// What came of a probe.
fn probed(probe: &Probe) -> Value {
    let outcome = match probe.passed {
        Some(true) => "passed",
        Some(false) => "failed",
        None => "not run",
    };
    json!({"name": probe.name, "outcome": outcome, "found": probe.found})
}

/// Whether a mode's promise is kept, and why not.
fn promise((mode, withheld): (Mode, Option<String>)) -> (String, Value) {
    let name = format!("{mode:?}").to_lowercase();
    (name, json!({"kept": withheld.is_none(), "reason": withheld}))
}
