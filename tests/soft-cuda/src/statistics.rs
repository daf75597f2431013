//! What has run: launches and traffic by kernel, bytes that the driver itself copied and set.
//!
//! Counted when an operation runs, not when it is submitted (graphs are both): synchronise before asking.
//! Traffic of kernels is measured only while `settings.machine.count_traffic` is on; everything else always.
//! By address range the machine's memory knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ptx_vm::Report;
use ptx_vm::memory::Traffic;

/// What the launches of one kernel did.
#[derive(Debug, Clone, Copy, Default)]
pub struct KernelCounts {
    /// Launches that ended well.
    pub launches: u64,
    /// Blocks of them.
    pub blocks: u64,
    /// Warp instructions of them.
    pub instructions: u64,
    /// Bytes moved from and to global memory; distinct within each launch.
    pub traffic: Traffic,
}

/// All counts.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// By kernel name, over all modules.
    pub kernels: BTreeMap<Arc<str>, KernelCounts>,
    /// Bytes of copies, of any kind.
    pub copied: u64,
    /// Bytes of memsets.
    pub filled: u64,
    /// Functions that their first launch loaded: a driver may wait for all work then.
    pub loaded_late: u64,
    /// Launches of graphs, and kernels in them; counted when they are submitted.
    pub graphs: (u64, u64),
}

impl Statistics {
    /// Notes a launch.
    pub fn ran(&mut self, name: &Arc<str>, report: &Report) {
        let counts = self.kernels.entry(name.clone()).or_default();
        counts.launches += 1;
        counts.blocks += report.blocks;
        counts.instructions += report.instructions;
        counts.traffic += report.traffic;
    }

    /// Launches and warp instructions of all kernels.
    pub fn total(&self) -> (u64, u64) {
        self.kernels.values().fold((0, 0), |(l, i), k| (l + k.launches, i + k.instructions))
    }
}
