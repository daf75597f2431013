//! The CPU backend: the bit-accurate reference of the numerics contract, and fast enough to use.
//!
//! `sum` states the order of every reduction; `simd` compiles each kernel for every instruction set and both
//! forms of multiply-add with the same bits; `kernels` holds the arithmetic on plain rows; `ops` ties it to
//! the backend contract, `select` has the keys of kernels; `stream` runs ops at once or records them for
//! replay; `pool` is the fork-join pool; `limits` measures what the machine could do.

pub mod kernels;
pub mod limits;
mod mem;
mod ops;
mod pool;
mod select;
mod simd;
mod stream;
pub mod sum;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
mod weight;

pub use mem::CpuMem;
pub use pool::Pool;
pub use select::CpuKernel;
pub use simd::Isa;
pub use stream::{CpuGraph, CpuPlan, CpuStream};
pub use weight::CpuWeight;

use engraft_core::backend::{Backend, Caps, Coverage, Solo};
use engraft_core::mem::{Device, Float, HostWeight, KvLayout, StepShape};
use engraft_core::numerics::{Madd, Mode, Numerics};
use engraft_core::ops::Signature;
use engraft_core::{Error, Result};
use kernels::Machine;
use std::sync::Arc;

/// How a CPU backend runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads, the caller's counted; 0: one per core.
    pub threads: usize,
    /// Rounding of multiply-add.
    pub madd: Madd,
    /// Instruction set; none: the best there is. The bits are the same.
    pub isa: Option<Isa>,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self { threads: 0, madd: Madd::Fused, isa: None }
    }
}

/// The CPU as a backend.
#[derive(Debug)]
pub struct Cpu {
    machine: Machine,
    sample_scratch: ops::SampleScratch,
    expert_scratch: ops::ExpertScratch,
    caps: Caps,
}

/// More threads than any machine that this was thought for.
const MAX_THREADS: usize = 1024;

impl Cpu {
    /// Starts the thread pool.
    ///
    /// # Errors
    /// `Config` for more than 1024 threads.
    pub fn new(config: CpuConfig) -> Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if config.threads == 0 { cores } else { config.threads };
        if threads > MAX_THREADS {
            return Err(Error::config("threads", threads, format!("0 (one per core) to {MAX_THREADS}")));
        }
        let isa = config.isa.unwrap_or_else(Isa::detect);
        let machine = Machine::with_isa(threads, config.madd, isa);
        let caps = Caps {
            device: format!("{} threads, {}", machine.pool.threads(), machine.isa.name()),
            dtypes: vec![Float::F32, Float::F16, Float::Bf16],
            graphs: true,
            memory_bytes: None,
            slab_bytes: None,
        };
        let expert_scratch = ops::ExpertScratch::new(kernels::AlignedBytes::zeroed(0));
        Ok(Arc::new(Self { machine, sample_scratch: ops::SampleScratch::default(), expert_scratch, caps }))
    }

    /// Threads, instruction set, multiply-add form.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn expert_scratch(&self) -> &ops::ExpertScratch {
        &self.expert_scratch
    }

    pub(crate) fn sample_scratch(&self) -> &ops::SampleScratch {
        &self.sample_scratch
    }
}

impl Device for Cpu {
    type Mem = CpuMem;
    type Weight = CpuWeight;
    type AttnPlan = CpuPlan;

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        kernels::kv::slab_bytes(layout)
    }
}

impl Backend for Cpu {
    type Device = Cpu;
    type Kernel = CpuKernel;
    type Graph = CpuGraph;
    type Stream = CpuStream;
    type Comm = Solo;

    fn name(&self) -> &str {
        "cpu"
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn numerics(&self) -> Numerics {
        Numerics { mode: Mode::Reference, madd: self.machine.madd }
    }
    fn alloc(&self, bytes: usize) -> Result<CpuMem> {
        CpuMem::new(bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<CpuStream> {
        Ok(CpuStream::new(self.clone()))
    }
    fn solo(self: &Arc<Self>) -> Result<Solo> {
        Ok(Solo)
    }
    fn prepare_weight(&self, weight: HostWeight<'_>) -> Result<CpuWeight> {
        weight::prepare(self, weight)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<CpuPlan> {
        Ok(CpuPlan { bound })
    }
    fn coverage(&self, signature: &Signature) -> Coverage<CpuKernel> {
        ops::select(signature, self.machine.isa).into()
    }
}
