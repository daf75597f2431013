//! A build without the wgpu backend.

use super::{Limits, Visitor, WgpuName, absent};
use engraft_core::Result;

pub const AVAILABLE: bool = false;

pub fn visit<V: Visitor>(name: &WgpuName, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &WgpuName) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn adapters() -> Vec<String> {
    Vec::new()
}
