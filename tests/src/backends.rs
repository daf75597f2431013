//! What can be tested on this machine, and what the run was told to require.
//!
//! `ENGRAFT_REQUIRE` is a list such as `cuda:soft,wgpu:llvmpipe`: what it names must be there, or the run fails.
//! What is absent otherwise is skipped, and the run says so.

use crate::laws::Lab;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::numerics::Madd;
use engraft_cpu::{Cpu, CpuConfig, Isa};
use engraft_wgpu::{Wgpu, WgpuConfig};
use std::sync::Arc;

/// The variable of test programs.
pub const REQUIRE: &str = "ENGRAFT_REQUIRE";

/// Backends of the project, by the name before the colon, that have no package here yet.
pub const ABSENT: [&str; 1] = ["cuda"];

/// Is shown a backend that is there.
pub trait LabVisitor {
    /// Sees one backend with its twins.
    fn visit<B: Backend>(&mut self, lab: Lab<B>);
}

fn cpu(threads: usize, madd: Madd, isa: Option<Isa>) -> Result<Arc<Cpu>> {
    Cpu::new(CpuConfig { threads, madd, isa })
}

/// The CPU in one form of multiply-add: one thread and the best instructions, with everything that must equal it.
pub fn cpu_lab(madd: Madd) -> Result<Lab<Cpu>> {
    let name = match madd {
        Madd::Fused => "cpu",
        Madd::Separate => "cpu-separate",
    };
    let twins = vec![
        ("2 threads against 1", cpu(2, madd, None)?),
        ("5 threads against 1", cpu(5, madd, None)?),
        ("portable against the best instructions", cpu(1, madd, Some(Isa::Portable))?),
    ];
    Ok(Lab { name: name.into(), subject: cpu(1, madd, None)?, twins })
}

/// Adapters of this machine by the first word of their name, software ones too.
pub fn adapters() -> Vec<String> {
    let all = engraft_wgpu::list().unwrap_or_default();
    let first = |name: &str| name.split_whitespace().next().map(str::to_lowercase);
    all.iter().filter_map(|a| first(&a.name)).collect()
}

/// An adapter, software ones too; in the browsers' way of passing parameters when `uniform_parameters`.
pub fn wgpu(adapter: Option<&str>, uniform_parameters: bool) -> Result<Arc<Wgpu>> {
    Wgpu::new(WgpuConfig { adapter: adapter.map(str::to_string), software: true, uniform_parameters })
}

/// Shows every backend that is there.
///
/// # Errors
/// When one of them does not start.
pub fn each(visitor: &mut impl LabVisitor) -> Result<()> {
    for madd in [Madd::Fused, Madd::Separate] {
        visitor.visit(cpu_lab(madd)?);
    }
    for name in adapters() {
        // Drivers compile every kernel of every instance: no twins, except in `goldens --uniform-parameters`.
        let subject = wgpu(Some(&name), false)?;
        visitor.visit(Lab { name: format!("wgpu-{name}"), subject, twins: Vec::new() });
    }
    Ok(())
}

/// Ops that no shader exists for yet. A backend that is listed here must refuse the op, by name; one that runs it after
/// all has to be taken off the list.
const WITHOUT_SHADER: [&str; 0] = [];

/// Whether the backend of this lab is known to lack an op.
pub fn lacks(lab: &str, op: &str) -> bool {
    lab.starts_with("wgpu") && WITHOUT_SHADER.contains(&op)
}

/// Names in `required` that are not among `here`: `cpu` always is, `wgpu` is any adapter, `wgpu:part` one whose name
/// has that part.
pub fn missing(required: &str, here: &[String]) -> Vec<String> {
    let there = |name: &str| match name.split_once(':') {
        None => name == "cpu" || (name == "wgpu" && !here.is_empty()),
        Some((kind, part)) => kind == "wgpu" && here.iter().any(|a| a.contains(&part.to_lowercase())),
    };
    let names = required.split(',').map(str::trim).filter(|n| !n.is_empty());
    names.filter(|n| !there(n)).map(str::to_string).collect()
}

/// Names that `ENGRAFT_REQUIRE` asks for and that are not there.
pub fn missing_here() -> Vec<String> {
    std::env::var(REQUIRE).map(|list| missing(&list, &adapters())).unwrap_or_default()
}

/// Backends of the project that cannot be tested on this machine.
pub fn absent() -> Vec<&'static str> {
    let no_adapter = adapters().is_empty().then_some("wgpu");
    ABSENT.into_iter().chain(no_adapter).collect()
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_required_must_be_there() {
        let none: &[String] = &[];
        assert!(missing("", none).is_empty() && missing("cpu, ", none).is_empty());
        assert_eq!(missing("cuda:soft,cpu,wgpu:llvmpipe,wgpu", none), ["cuda:soft", "wgpu:llvmpipe", "wgpu"]);
        let here = ["llvmpipe".to_string()];
        assert_eq!(missing("wgpu,wgpu:LLVM,wgpu:radeon", &here), ["wgpu:radeon"]);
    }
}
