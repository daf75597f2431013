//! What can be tested on this machine, and what the run was told to require.
//!
//! `ENGRAFT_REQUIRE` is a list such as `cuda:soft,wgpu:llvmpipe`: what it names must be there, or the run fails.
//! What is absent otherwise is skipped, and the run says so.

use crate::laws::Lab;
use engraft_core::Result;
use engraft_core::backend::Backend;
use engraft_core::numerics::Madd;
use engraft_cpu::{Cpu, CpuConfig, Isa};

/// The variable of test programs.
pub const REQUIRE: &str = "ENGRAFT_REQUIRE";

/// Backends of the project, by the name before the colon, that have no package here yet.
pub const ABSENT: [&str; 2] = ["cuda", "wgpu"];

/// Is shown a backend that is there.
pub trait LabVisitor {
    /// Sees one backend with its twins.
    fn visit<B: Backend>(&mut self, lab: Lab<B>);
}

fn cpu(threads: usize, madd: Madd, isa: Option<Isa>) -> Result<std::sync::Arc<Cpu>> {
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

/// Shows every backend that is there.
///
/// # Errors
/// When one of them does not start.
pub fn each(visitor: &mut impl LabVisitor) -> Result<()> {
    for madd in [Madd::Fused, Madd::Separate] {
        visitor.visit(cpu_lab(madd)?);
    }
    Ok(())
}

/// Names in `required` that are not there. Matches by the part before the colon: `cpu` is always there.
pub fn missing(required: &str) -> Vec<String> {
    let names = required.split(',').map(str::trim).filter(|n| !n.is_empty());
    names.filter(|n| n.split(':').next() != Some("cpu")).map(str::to_string).collect()
}

/// Names that `ENGRAFT_REQUIRE` asks for and that are not there.
pub fn missing_here() -> Vec<String> {
    std::env::var(REQUIRE).map(|list| missing(&list)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_required_must_be_there() {
        assert!(missing("").is_empty() && missing("cpu, ").is_empty());
        assert_eq!(missing("cuda:soft,cpu,wgpu:llvmpipe"), ["cuda:soft", "wgpu:llvmpipe"]);
    }
}
