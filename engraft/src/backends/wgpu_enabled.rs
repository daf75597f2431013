//! The wgpu backend is compiled in.

use super::{BackendName, Visitor};
use engraft_core::Result;
use engraft_wgpu::{Wgpu, WgpuConfig, list};

pub const AVAILABLE: bool = true;

/// Runs `visitor` on the adapter that `name` (`wgpu`, `wgpu:part`) means.
pub fn visit<V: Visitor>(name: &str, visitor: V) -> Result<V::Output> {
    let adapter = name.split_once(':').map(|(_, part)| part.to_string());
    visitor.visit(Wgpu::new(WgpuConfig { adapter, ..WgpuConfig::default() })?)
}

/// Nothing says what an adapter could do at most.
pub fn limits(name: &BackendName) -> Result<super::Limits> {
    Err(engraft_core::Error::Unsupported {
        op: "measuring limits".into(),
        backend: name.to_string(),
        reason: "adapters do not state them".into(),
    })
}

/// Adapters for people, the strongest first.
pub fn adapters() -> Vec<String> {
    let all = list().unwrap_or_default();
    let line = |a: &engraft_wgpu::Listed| {
        format!("{} ({}, {}; {}; {})", a.name, a.kind.name(), a.api, a.driver, a.abilities())
    };
    all.iter().map(line).collect()
}
