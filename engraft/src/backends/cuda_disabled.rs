//! A build without the CUDA backend.

use super::inspect::{Inspector, Opening, Place};
use super::name::{CudaOptions, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use serde_json::Value;
use std::path::Path;

pub fn visit<V: Visitor>(name: &CudaOptions, _visitor: V) -> Result<V::Output> {
    Err(absent(&name.clone().into()))
}

pub fn limits(name: &CudaOptions) -> Result<Limits> {
    Err(absent(&name.clone().into()))
}

pub fn devices() -> Result<Vec<String>> {
    Ok(Vec::new())
}

pub fn nccl(_library: &Path) -> Result<String> {
    Err(absent(&CudaOptions::new().into()))
}

pub fn found(_opening: &Opening) -> Result<Vec<(Place, Value)>> {
    Ok(Vec::new())
}

pub fn inspect<V: Inspector>(index: u16, _opening: &Opening, _inspector: V) -> Result<V::Output> {
    Err(absent(&CudaOptions::new().index(index).into()))
}
