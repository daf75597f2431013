//! The processor: its threads, instruction set and kind of multiply-add, and scratch that ops share.

use crate::kernels::{AlignedBytes, Machine};
use crate::simd::Isa;
use engraft_core::backend::Caps;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Madd;
use engraft_core::sample::Scratch;
use engraft_core::{Error, Result};
use std::sync::{Arc, Mutex};

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
    /// Grows to the largest vocabulary seen and stays.
    sample_scratch: Mutex<Scratch>,
    /// Rows of the slots of one expert side by side; grows to the largest step and stays.
    expert_scratch: Mutex<AlignedBytes>,
    caps: Caps,
}

/// More threads than machines have.
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
            device: match machine.pool.threads() {
                1 => format!("1 thread, {}", machine.isa.name()),
                threads => format!("{threads} threads, {}", machine.isa.name()),
            },
            dtypes: vec![Float::F32, Float::F16, Float::Bf16],
            kv_formats: KvFormat::ALL.to_vec(),
            graphs: true,
            asynchronous: false,
            memory_bytes: None,
            slab_bytes: None,
        };
        let expert_scratch = Mutex::new(AlignedBytes::zeroed(0));
        Ok(Arc::new(Self { machine, sample_scratch: Mutex::default(), expert_scratch, caps }))
    }

    /// Threads, instruction set, kind of multiply-add.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn expert_scratch(&self) -> &Mutex<AlignedBytes> {
        &self.expert_scratch
    }

    pub(crate) fn sample_scratch(&self) -> &Mutex<Scratch> {
        &self.sample_scratch
    }
}

impl Cpu {
    /// What it offers.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }
}
