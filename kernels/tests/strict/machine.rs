//! A virtual GPU for one test: memory, launches with every check, odd layouts.

use bytemuck::{Pod, Zeroable};
use engraft_kernels::Launch;
use engraft_kernels::params::{Elem, MatView};
use half::{bf16, f16};
use ptx_vm::{Fault, Instance, Memory, Module, Options, Report, Schedule};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Orders in which warps and blocks take turns.
pub const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Reverse, Schedule::Random(7)];

/// The text whose launches may begin before those before them have ended.
pub const HOPPER: &str = "compute_90a";

/// Everything but these ranges, which are in ascending order: what an unfinished launch may still write.
fn between(known: &[Range<u64>]) -> Vec<Range<u64>> {
    let begins = [0].into_iter().chain(known.iter().map(|range| range.end));
    let ends = known.iter().map(|range| range.start).chain([u64::MAX]);
    begins.zip(ends).map(|(begin, end)| begin..end).collect()
}

/// Parsed modules, once per program. From the file: a kernel that changes needs no new test program.
fn parsed(stem: &str, arch: &str) -> Arc<Module> {
    static MODULES: Mutex<BTreeMap<String, Arc<Module>>> = Mutex::new(BTreeMap::new());
    let path = format!("{}/ptx/{stem}.{arch}.ptx.gz", env!("CARGO_MANIFEST_DIR"));
    let mut modules = MODULES.lock().unwrap();
    if !modules.contains_key(&path) {
        let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let text = engraft_kernels::unpack(&packed).unwrap_or_else(|e| panic!("{path}: {e}"));
        modules.insert(path.clone(), Arc::new(Module::parse(&text).unwrap()));
    }
    modules[&path].clone()
}

/// [`Machine::each`] or [`Machine::once`].
pub type Runs = fn(&mut dyn FnMut(&mut Machine));

/// Device memory and one schedule.
pub struct Machine {
    memory: Memory,
    schedule: Schedule,
    /// What no launch writes.
    weights: Vec<Range<u64>>,
}

impl Machine {
    /// Runs `test` under every schedule, or those of a sample.
    pub fn each(test: &mut dyn FnMut(&mut Machine)) {
        for schedule in sample::some(SCHEDULES) {
            test(&mut Machine::new(schedule));
        }
    }

    /// Runs `test` under one schedule for each text: where there are many cases.
    pub fn once(test: &mut dyn FnMut(&mut Machine)) {
        for schedule in &SCHEDULES[1..] {
            test(&mut Machine::new(*schedule));
        }
    }

    fn new(schedule: Schedule) -> Self {
        Machine { memory: Memory::new(), schedule, weights: Vec::new() }
    }

    /// Uninitialised memory.
    pub fn empty(&mut self, bytes: usize) -> u64 {
        self.memory.allocate(0, bytes.max(1) as u64).unwrap()
    }

    /// Memory that holds `data`.
    pub fn put<T: Pod>(&mut self, data: &[T]) -> u64 {
        let at = self.empty(std::mem::size_of_val(data));
        self.memory.write(at, bytemuck::cast_slice(data)).unwrap();
        at
    }

    /// Memory that no launch writes: a kernel may read it before it waits for the launches before it.
    pub fn put_weight<T: Pod>(&mut self, data: &[T]) -> u64 {
        let at = self.put(data);
        self.weights.push(at..at + std::mem::size_of_val(data) as u64);
        at
    }

    /// What lies at an address.
    pub fn get<T: Pod + Zeroable>(&mut self, at: u64, count: usize) -> Vec<T> {
        let mut out = vec![T::zeroed(); count];
        self.memory.read(at, bytemuck::cast_slice_mut(&mut out)).unwrap();
        out
    }

    /// Launches a kernel; anything wrong with it ends the test.
    pub fn run<P: Pod>(&mut self, params: &P, launch: &Launch) {
        self.run_with(params, launch, Options::default());
    }

    /// The same where blocks may write the same place, which then means nothing.
    pub fn run_wild<P: Pod>(&mut self, params: &P, launch: &Launch) {
        self.run_with(params, launch, Options { global_races: false, ..Options::default() });
    }

    fn run_with<P: Pod>(&mut self, params: &P, launch: &Launch, options: Options) {
        assert!(!launch.is_empty(), "an empty launch of {}", launch.entry);
        // One of the schedules takes the other text.
        let arch = if self.schedule == Schedule::Reverse { HOPPER } else { "compute_80" };
        let module = parsed(launch.stem(), arch);
        let options = Options { schedule: self.schedule, ..options };
        self.outcome(&module, arch, params, launch, &options).unwrap_or_else(|fault| {
            panic!("{} for {arch}, schedule {}: {fault}", launch.entry, self.schedule)
        });
    }

    /// Launches a kernel of a text, on Hopper behind a launch that has not ended.
    pub fn outcome<P: Pod>(
        &mut self,
        module: &Arc<Module>,
        arch: &str,
        params: &P,
        launch: &Launch,
        options: &Options,
    ) -> Result<Report, Fault> {
        let kernel = module.kernel(&launch.entry).unwrap_or_else(|| panic!("no entry {}", launch.entry));
        let params = kernel.pack(&[bytemuck::bytes_of(params)]).unwrap();
        let instance = Instance::load(module.clone(), &mut self.memory, 0).unwrap();
        let mut call = ptx_vm::Launch::new(launch.grid, launch.block).with_params(params);
        call.dynamic_shared = launch.shared_bytes;
        if arch == HOPPER {
            call.pending = between(&self.weights);
        }
        ptx_vm::launch(&instance, &launch.entry, &call, &mut self.memory, options)
    }

    /// A matrix of these values (rounded to the type), rows `pitch` apart, beginning `offset` elements into
    /// its allocation; what lies between is poison.
    pub fn matrix(
        &mut self,
        values: &[f32],
        cols: usize,
        elem: Elem,
        pitch: usize,
        offset: usize,
    ) -> MatView {
        let rows = values.len() / cols;
        let mut all = vec![POISON; offset + rows * pitch];
        for (r, row) in values.chunks(cols).enumerate() {
            all[offset + r * pitch..][..cols].copy_from_slice(row);
        }
        let bytes = encode(&all, elem);
        let ptr = self.put(&bytes) + (offset * elem.bytes() as usize) as u64;
        MatView { ptr, pitch: pitch as u64, rows: rows as u32, cols: cols as u32 }
    }

    /// A matrix without gaps.
    pub fn dense(&mut self, values: &[f32], cols: usize, elem: Elem) -> MatView {
        self.matrix(values, cols, elem, cols, 0)
    }

    /// A matrix's values; what lies between its rows must still be poison.
    pub fn values(&mut self, m: MatView, elem: Elem) -> Vec<f32> {
        let (cols, pitch) = (m.cols as usize, m.pitch as usize);
        let count = (m.rows as usize).saturating_sub(1) * pitch + cols;
        let bytes: Vec<u8> = self.get(m.ptr, count * elem.bytes() as usize);
        let all = decode(&bytes, elem);
        let poison = round(POISON, elem);
        let mut out = Vec::new();
        for row in all.chunks(pitch) {
            out.extend_from_slice(&row[..cols]);
            assert!(row[cols..].iter().all(|v| v.to_bits() == poison.to_bits()), "written between rows");
        }
        out
    }
}

/// A value that no test computes.
const POISON: f32 = -777.0;

/// Bytes of values, rounded to a type.
pub fn encode(values: &[f32], elem: Elem) -> Vec<u8> {
    let each = |v: &f32| match elem {
        Elem::F32 => v.to_le_bytes().to_vec(),
        Elem::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
        _ => bf16::from_f32(*v).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

/// Values of bytes.
pub fn decode(bytes: &[u8], elem: Elem) -> Vec<f32> {
    match elem {
        Elem::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Elem::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

/// A value rounded to a type.
pub fn round(v: f32, elem: Elem) -> f32 {
    match elem {
        Elem::F32 => v,
        Elem::F16 => f16::from_f32(v).to_f32(),
        _ => bf16::from_f32(v).to_f32(),
    }
}

/// Values rounded to a type.
pub fn rounded(v: &[f32], elem: Elem) -> Vec<f32> {
    v.iter().map(|v| round(*v, elem)).collect()
}

/// Deterministic values in about (-1, 1), a few of them larger.
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    words(n, seed)
        .into_iter()
        .map(|w| {
            let v = (w >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
            if w & 63 == 0 { v * 8.0 } else { v }
        })
        .collect()
}

/// Deterministic words.
pub fn words(n: usize, seed: u64) -> Vec<u32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s = s.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (s >> 32) as u32
    };
    (0..n).map(|_| next()).collect()
}

/// Equal bit for bit, any NaN equal to any NaN.
pub fn same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let equal = g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan();
        assert!(equal, "{what}: value {i} is {g:e} ({:08x}), not {w:e} ({:08x})", g.to_bits(), w.to_bits());
    }
}
