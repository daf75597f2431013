//! The CPU backend is compiled in.

use super::visit::{Limits, Visitor};
use engraft_core::Result;
use engraft_cpu::{Cpu, CpuConfig, limits};

pub fn visit<V: Visitor>(threads: usize, visitor: V) -> Result<V::Output> {
    visitor.visit(Cpu::new(CpuConfig { threads, ..CpuConfig::default() })?)
}

pub fn limits(threads: usize) -> Result<Limits> {
    let cpu = Cpu::new(CpuConfig { threads, ..CpuConfig::default() })?;
    let found = limits::measure(cpu.machine(), ROUNDS)?;
    Ok(Limits { read_gbs: found.read_gb_s, fma_gflops: found.fma_gflop_s })
}

/// Passes of which the best counts.
const ROUNDS: usize = 3;
