//! A build without the wgpu backend.

use super::inspect::{Inspector, Opening, Place};
use super::name::{WgpuOptions, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use serde_json::Value;

pub fn visit<V: Visitor>(name: &WgpuOptions, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &WgpuOptions) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn adapters() -> Vec<String> {
    Vec::new()
}

pub fn found() -> Result<Vec<(Place, Value)>> {
    Ok(Vec::new())
}

pub fn inspect<V: Inspector>(_index: usize, _opening: &Opening, _inspector: V) -> Result<V::Output> {
    Err(absent(&WgpuOptions::new().into()))
}
