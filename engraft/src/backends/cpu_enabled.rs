//! The CPU backend is compiled in.

use super::inspect::{Inspected, Inspector, Opening, Place};
use super::properties::{common, kept};
use super::visit::{Limits, Visitor};
use engraft_core::Result;
use engraft_cpu::{Cpu, CpuConfig, limits};
use serde_json::{Value, json};

pub fn visit<V: Visitor>(threads: usize, visitor: V) -> Result<V::Output> {
    visitor.visit(Cpu::new(CpuConfig { threads, ..CpuConfig::default() })?)
}

pub fn limits(threads: usize) -> Result<Limits> {
    let cpu = Cpu::new(CpuConfig { threads, ..CpuConfig::default() })?;
    limits_of(&cpu)
}

fn limits_of(cpu: &Cpu) -> Result<Limits> {
    let found = limits::measure(cpu.machine(), ROUNDS)?;
    Ok(Limits { read_gbs: found.read_gb_s, fma_gflops: found.fma_gflop_s })
}

/// Passes of which the best counts.
const ROUNDS: usize = 3;

/// There is one, and what it is the system says.
pub fn found() -> Result<Vec<(Place, Value)>> {
    Ok(vec![(Place::Cpu, json!({}))])
}

/// Shows it to `inspector`.
pub fn inspect<V: Inspector>(opening: &Opening, inspector: V) -> Result<V::Output> {
    let cpu = Cpu::new(CpuConfig { threads: opening.threads, ..CpuConfig::default() })?;
    let mut facts = common(cpu.as_ref());
    let machine = cpu.machine();
    facts.insert("instructions".into(), machine.isa.name().into());
    facts.insert("threads".into(), machine.pool.threads().into());
    facts.insert("clock".into(), "host".into());
    facts.insert("probes".into(), json!([]));
    facts.insert("promises".into(), kept("by its kernels, which define the order"));
    let measured = cpu.clone();
    inspector.inspect(Inspected {
        backend: cpu,
        facts,
        limits: Box::new(move || limits_of(&measured)),
        kernels: None,
    })
}
