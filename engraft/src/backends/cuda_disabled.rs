//! A build without the CUDA backend.

use super::{CudaName, Limits, Visitor, absent};
use engraft_core::Result;

pub const AVAILABLE: bool = false;

pub fn visit<V: Visitor>(name: &CudaName, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &CudaName) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn devices() -> Result<Vec<String>> {
    Ok(Vec::new())
}
