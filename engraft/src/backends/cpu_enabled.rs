//! The CPU backend is compiled in.

use super::Visitor;
use engraft_core::Result;
use engraft_cpu::{Cpu, CpuConfig};

pub const AVAILABLE: bool = true;

pub fn visit<V: Visitor>(threads: usize, visitor: V) -> Result<V::Output> {
    visitor.visit(Cpu::new(CpuConfig { threads, ..CpuConfig::default() })?)
}
