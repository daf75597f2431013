//! A build without the CPU backend.

use super::{BackendName, Limits, Visitor, absent};
use engraft_core::Result;

pub const AVAILABLE: bool = false;

pub fn visit<V: Visitor>(_threads: usize, _visitor: V) -> Result<V::Output> {
    Err(absent(&BackendName::Cpu))
}

pub fn limits(_threads: usize) -> Result<Limits> {
    Err(absent(&BackendName::Cpu))
}
