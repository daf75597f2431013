//! A build without the CPU backend.

use super::inspect::{Inspector, Opening, Place};
use super::name::{BackendName, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use serde_json::Value;

pub fn visit<V: Visitor>(_threads: usize, _visitor: V) -> Result<V::Output> {
    Err(absent(&BackendName::Cpu))
}

pub fn limits(_threads: usize) -> Result<Limits> {
    Err(absent(&BackendName::Cpu))
}

pub fn found() -> Result<Vec<(Place, Value)>> {
    Ok(Vec::new())
}

pub fn inspect<V: Inspector>(_opening: &Opening, _inspector: V) -> Result<V::Output> {
    Err(absent(&BackendName::Cpu))
}
