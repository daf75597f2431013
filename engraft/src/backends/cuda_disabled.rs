//! A build without the CUDA backend.

use super::name::{CudaName, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;

pub fn visit<V: Visitor>(name: &CudaName, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &CudaName) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn devices() -> Result<Vec<String>> {
    Ok(Vec::new())
}
