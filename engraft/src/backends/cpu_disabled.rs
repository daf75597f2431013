//! A build without the CPU backend.

use super::name::{BackendName, absent};
use super::visit::{Limits, Visitor};
use engraft_core::Result;

pub fn visit<V: Visitor>(_threads: usize, _visitor: V) -> Result<V::Output> {
    Err(absent(&BackendName::Cpu))
}

pub fn limits(_threads: usize) -> Result<Limits> {
    Err(absent(&BackendName::Cpu))
}
