//! The machine under the tests: checked-in PTX, device memory, launches under several schedules.

use engraft_kernels::Launch;
use ptx_vm::{Instance, Memory, Module, Options, Schedule};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// The text of a stem, parsed once per process.
pub fn module(stem: &str, arch: &str) -> Arc<Module> {
    static PARSED: OnceLock<Mutex<HashMap<String, Arc<Module>>>> = OnceLock::new();
    let mut parsed = PARSED.get_or_init(Mutex::default).lock().unwrap();
    let make = || {
        // The file itself, which a test of the manifest holds to be the one that the crate embeds.
        let path = format!("{}/ptx/{stem}.{arch}.ptx.gz", env!("CARGO_MANIFEST_DIR"));
        let text = engraft_kernels::unpack(&std::fs::read(path).unwrap()).unwrap();
        Arc::new(Module::parse(&text).unwrap())
    };
    parsed.entry(format!("{stem} {arch}")).or_insert_with(make).clone()
}

/// The schedules of every proof, with all checks on; the last one sums as tensor cores are known to.
pub fn schedules() -> [Options; 3] {
    let with = |schedule| Options { schedule, ..Options::default() };
    [
        with(Schedule::Forward),
        with(Schedule::Reverse),
        Options { tensor_core_sums: true, ..with(Schedule::Random(7)) },
    ]
}

/// Device memory, and launches.
pub struct Device {
    pub memory: Memory,
    /// What no launch writes, in ascending order.
    weights: Vec<Range<u64>>,
}

impl Device {
    pub fn new() -> Self {
        Device { memory: Memory::new(), weights: Vec::new() }
    }

    /// Exactly these bytes; what lies around them is out of bounds.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        if bytes.is_empty() {
            return 0;
        }
        let at = self.memory.allocate(0, bytes.len() as u64).unwrap();
        self.memory.write(at, bytes).unwrap();
        at
    }

    /// The same that no launch writes: a kernel may read it before it waits for the launches before it.
    pub fn put_weight(&mut self, bytes: &[u8]) -> u64 {
        let at = self.put(bytes);
        if !bytes.is_empty() {
            self.weights.push(at..at + bytes.len() as u64);
        }
        at
    }

    /// Everything else: what an unfinished launch may still write.
    fn unfinished(&self) -> Vec<Range<u64>> {
        let begins = [0].into_iter().chain(self.weights.iter().map(|range| range.end));
        let ends = self.weights.iter().map(|range| range.start).chain([u64::MAX]);
        begins.zip(ends).map(|(begin, end)| begin..end).collect()
    }

    pub fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        self.memory.read(at, &mut to).unwrap();
        to
    }

    /// Runs one launch; a fault is a failure that names it.
    pub fn run(&mut self, launch: &Launch, params: &[u8], options: &Options) {
        // The reverse schedule runs the text for Hopper: bits that equal those of the others hold for both.
        let hopper =
            options.schedule == Schedule::Reverse || matches!(launch.stem(), "gemmw" | "gemmwq" | "flashw");
        let arch = if hopper { "compute_90a" } else { "compute_80" };
        let instance = Instance::load(module(launch.stem(), arch), &mut self.memory, 0).unwrap();
        let mut job = ptx_vm::Launch::new(launch.grid, launch.block).with_params(params.to_vec());
        job.dynamic_shared = launch.shared_bytes;
        let cluster = instance.module().kernel(&launch.entry).and_then(|kernel| kernel.required_cluster);
        job.cluster = cluster.unwrap_or(job.cluster);
        if hopper {
            // There a launch may begin before those before it have ended.
            job.pending = self.unfinished();
        }
        if let Err(fault) = ptx_vm::launch(&instance, &launch.entry, &job, &mut self.memory, options) {
            panic!("{} for {arch}, schedule {}: {fault}", launch.entry, options.schedule);
        }
        instance.unload(&mut self.memory).unwrap();
    }
}

/// Numbers without a pattern, the same on every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

/// Element types as the tests see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    F32,
    F16,
    Bf16,
}

impl Type {
    pub fn elem(self) -> engraft_kernels::params::Elem {
        use engraft_kernels::params::Elem;
        match self {
            Type::F32 => Elem::F32,
            Type::F16 => Elem::F16,
            Type::Bf16 => Elem::BF16,
        }
    }
    pub fn round(self, v: f32) -> f32 {
        match self {
            Type::F32 => v,
            Type::F16 => half::f16::from_f32(v).to_f32(),
            Type::Bf16 => half::bf16::from_f32(v).to_f32(),
        }
    }
    pub fn write(self, values: &[f32]) -> Vec<u8> {
        match self {
            Type::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Type::F16 => values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
            Type::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        }
    }
    pub fn read(self, bytes: &[u8]) -> Vec<f32> {
        let pair = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        match self {
            Type::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            Type::F16 => bytes.chunks(2).map(|b| half::f16::from_bits(pair(b)).to_f32()).collect(),
            Type::Bf16 => bytes.chunks(2).map(|b| half::bf16::from_bits(pair(b)).to_f32()).collect(),
        }
    }
    /// Half the distance of neighbours around `v`.
    pub fn half_ulp(self, v: f64) -> f64 {
        let (bits, least) = match self {
            Type::F32 => (24, -126),
            Type::F16 => (11, -14),
            Type::Bf16 => (8, -126),
        };
        let e = if v == 0.0 { least } else { (v.abs().log2().floor() as i32).max(least) };
        f64::from(e - bits).exp2()
    }
}

/// Unit roundoff of f32.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;
