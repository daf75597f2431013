//! A build without the wgpu backend.

use super::name::{WgpuOptions, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;

pub fn visit<V: Visitor>(name: &WgpuOptions, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &WgpuOptions) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn adapters() -> Vec<String> {
    Vec::new()
}
