//! How fast the machine is: warp instructions per second on scalar code, FLOP/s on an mma GEMM and a wgmma
//! GEMM, checks on and off, and what a second thread gains. `cargo run --release -p ptx-vm --example speed`;
//! names (`scalar`, `mma`,
//! `wgmma`) pick some.
//!
//! Figures per core, the checks on and off, are of one thread and count the time that it had the core, where
//! the system tells it, so that neighbours matter less. One thread and two threads, with checks, go by the
//! wall clock. All are medians, and the runs that are compared take turns.

#[path = "../clock/mod.rs"]
mod clock;

use std::sync::Arc;
use std::time::Instant;

use clock::Clock;
use ptx_vm::tensor::{DataType, Swizzle, TensorMap};
use ptx_vm::{Instance, Launch, Memory, Module, Options};

const SCALAR: &str = "
.version 8.7
.target sm_80
.address_size 64
.visible .entry scalar(.param .u64 out, .param .u32 n) {
  .reg .pred %p<2>; .reg .b32 %r<9>; .reg .f32 %f<5>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mov.u32 %r7, %ctaid.x; mad.lo.s32 %r2, %r7, 128, %r2;
  mov.u32 %r3, 0; cvt.rn.f32.u32 %f1, %r2; mov.f32 %f2, 0f3F000000;
LOOP:
  fma.rn.f32 %f1, %f1, %f2, 0f3F800000; mad.lo.s32 %r4, %r2, 1664525, %r3; xor.b32 %r2, %r4, %r2; shr.u32 %r5, %r2, 3;
  add.s32 %r2, %r2, %r5; mul.f32 %f3, %f1, 0f3F7FF000; add.f32 %f1, %f1, %f3; add.s32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r1;
  @%p1 bra LOOP;
  mul.wide.u32 %rd2, %r2, 0; mov.u32 %r6, %tid.x; mad.lo.s32 %r6, %r7, 128, %r6; mul.wide.u32 %rd2, %r6, 4; add.s64 %rd1, %rd1, %rd2;
  st.global.f32 [%rd1], %f1; ret;
}";

/// Rows and columns of the matrices.
const SIZE: usize = 512;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Sets a kernel up.
type Maker = fn() -> Outcome<Bench>;

/// A kernel with its memory.
struct Bench {
    memory: Memory,
    instance: Instance,
    kernel: &'static str,
    launch: Launch,
}

fn load(text: &str, memory: &mut Memory) -> Result<Instance, ptx_vm::Error> {
    Instance::load(Arc::new(Module::parse(text)?), memory, 0)
}

fn scalar() -> Outcome<Bench> {
    let mut memory = Memory::new();
    let instance = load(SCALAR, &mut memory)?;
    let out = memory.allocate(0, 4 * 16 * 128)?;
    let params = [&out.to_le_bytes()[..], &1000u32.to_le_bytes()[..]].concat();
    let launch = Launch::new([16, 1, 1], [128, 1, 1]).with_params(params);
    Ok(Bench { memory, instance, kernel: "scalar", launch })
}

/// Addresses of two inputs full of ones and of room for the output.
fn matrices(memory: &mut Memory) -> Outcome<[u64; 3]> {
    let bytes: Vec<u8> = vec![0x3f80u16; SIZE * SIZE].iter().flat_map(|x| x.to_le_bytes()).collect();
    let n = bytes.len() as u64;
    let [a, b, c] = [memory.allocate(0, n)?, memory.allocate(0, n)?, memory.allocate(0, 2 * n)?];
    memory.write(a, &bytes)?;
    memory.write(b, &bytes)?;
    Ok([a, b, c])
}

fn mma() -> Outcome<Bench> {
    let mut memory = Memory::new();
    let instance = load(include_str!("../../tests/ptx/gemm.ptx"), &mut memory)?;
    let [a, b, c] = matrices(&mut memory)?.map(u64::to_le_bytes);
    let dim = (SIZE as u32).to_le_bytes();
    let params = [&a[..], &b, &c, &dim, &dim, &dim].concat();
    let launch = Launch::new([SIZE as u32 / 64, SIZE as u32 / 64, 1], [128, 1, 1]).with_params(params);
    Ok(Bench { memory, instance, kernel: "gemm_bf16", launch })
}

fn wgmma() -> Outcome<Bench> {
    let mut memory = Memory::new();
    let instance = load(include_str!("../../tests/ptx/wgmma.ptx"), &mut memory)?;
    let [a, b, c] = matrices(&mut memory)?;
    let map = |at| {
        let mut m = TensorMap::tiled(DataType::Bf16, at, &[SIZE as u64; 2], &[SIZE as u64 * 2], &[64, 64]);
        m.swizzle = Swizzle::Bytes128;
        m.encode()
    };
    let dim = (SIZE as u32).to_le_bytes();
    let params = [&map(a)?[..], &map(b)?, &c.to_le_bytes(), &dim, &dim].concat();
    let blocks = SIZE as u32 / 64;
    let launch =
        Launch { dynamic_shared: 32768, ..Launch::new([blocks, blocks, 1], [128, 1, 1]).with_params(params) };
    Ok(Bench { memory, instance, kernel: "gemm_wgmma", launch })
}

/// Runs of each kind.
const RUNS: usize = 5;

/// What one launch took.
#[derive(Clone, Copy)]
struct Taken {
    core: f64,
    wall: f64,
    instructions: f64,
}

impl Bench {
    fn run(&mut self, options: &Options) -> Outcome<Taken> {
        let (clock, wall) = (Clock::start(), Instant::now());
        let report = ptx_vm::launch(&self.instance, self.kernel, &self.launch, &mut self.memory, options)?;
        Ok(Taken {
            core: clock.seconds(),
            wall: wall.elapsed().as_secs_f64(),
            instructions: report.instructions as f64,
        })
    }
}

/// The median of a time of some runs.
fn median(runs: &[Taken], time: fn(&Taken) -> f64) -> f64 {
    let mut times: Vec<f64> = runs.iter().map(time).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn line(what: &str, name: &str, seconds: f64, instructions: f64, note: &str) {
    let rate = instructions / seconds / 1e6;
    let flops = match name {
        "scalar" => String::new(),
        _ => format!("{:6.2} GFLOP/s, ", 2.0 * (SIZE as f64).powi(3) / seconds / 1e9),
    };
    println!("{what:10}  {name:6} {flops}{rate:6.2} M warp instructions/s {note}");
}

fn main() -> Outcome {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let on = Options::default();
    let off = Options { shared_races: false, global_races: false, uninitialised: false, ..on };
    let makers: [(&str, Maker); 3] = [("scalar", scalar), ("mma", mma), ("wgmma", wgmma)];
    for (name, make) in makers {
        if !wanted.is_empty() && wanted.iter().all(|w| w != name) {
            continue;
        }
        let mut bench = make()?;
        let mut runs = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            for (runs, options) in runs.iter_mut().zip([on, off, Options { threads: 2, ..on }]) {
                runs.push(bench.run(&options)?);
            }
        }
        let [with, without, two] = runs;
        let instructions = with[0].instructions;
        line("checks on", name, median(&with, |t| t.core), instructions, "per core");
        line("checks off", name, median(&without, |t| t.core), instructions, "per core");
        let (one, two) = (median(&with, |t| t.wall), median(&two, |t| t.wall));
        line("1 thread", name, one, instructions, "by the wall clock");
        line("2 threads", name, two, instructions, &format!("by the wall clock, {:.2} times one", one / two));
    }
    Ok(())
}
