//! A build without the wgpu backend.

use super::{BackendName, Limits, Visitor, absent};
use engraft_core::Result;

pub const AVAILABLE: bool = false;

pub fn visit<V: Visitor>(name: &str, _visitor: V) -> Result<V::Output> {
    Err(absent(&BackendName::Wgpu(name.into())))
}

pub fn limits(name: &BackendName) -> Result<Limits> {
    Err(absent(name))
}

pub fn adapters() -> Vec<String> {
    Vec::new()
}
