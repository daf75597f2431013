//! A build without the CUDA backend.

use super::name::{CudaOptions, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;

pub fn visit<V: Visitor>(name: &CudaOptions, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &CudaOptions) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn devices() -> Result<Vec<String>> {
    Ok(Vec::new())
}
