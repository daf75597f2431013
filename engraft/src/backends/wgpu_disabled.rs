//! A build without the wgpu backend.

use super::name::{WgpuName, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;

pub fn visit<V: Visitor>(name: &WgpuName, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &WgpuName) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn adapters() -> Vec<String> {
    Vec::new()
}
