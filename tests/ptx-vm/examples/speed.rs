//! How fast the machine is: warp instructions per second on scalar code, FLOP/s on an mma GEMM and a wgmma GEMM, checks on
//! and off. `cargo run --release -p ptx-vm --example speed`

use std::sync::Arc;
use std::time::Instant;

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

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn load(text: &str, memory: &mut Memory) -> Result<Instance, ptx_vm::Error> {
    Instance::load(Arc::new(Module::parse(text)?), memory, 0)
}

fn timed(
    instance: &Instance,
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<(f64, u64), ptx_vm::Fault> {
    let mut best = f64::MAX;
    let mut instructions = 0;
    for _ in 0..3 {
        let start = Instant::now();
        instructions = ptx_vm::launch(instance, kernel, launch, memory, options)?.instructions;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((best, instructions))
}

fn main() -> Outcome {
    let off =
        Options { shared_races: false, global_races: false, uninitialised: false, ..Options::default() };
    for (name, options) in [("checks on ", Options::default()), ("checks off", off)] {
        let mut memory = Memory::new();
        let instance = load(SCALAR, &mut memory)?;
        let out = memory.allocate(0, 4 * 512)?;
        let params = [&out.to_le_bytes()[..], &4000u32.to_le_bytes()[..]].concat();
        let launch = Launch::new([4, 1, 1], [128, 1, 1]).with_params(params);
        let (t, n) = timed(&instance, "scalar", &launch, &mut memory, &options)?;
        println!("{name}  scalar  {:8.2} M warp instructions/s", n as f64 / t / 1e6);

        let size = 256usize;
        let instance = load(include_str!("../tests/ptx/gemm.ptx"), &mut memory)?;
        let data = vec![0x3f80u16; size * size];
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (a, b, c) = (
            memory.allocate(0, bytes.len() as u64)?,
            memory.allocate(0, bytes.len() as u64)?,
            memory.allocate(0, (size * size * 4) as u64)?,
        );
        memory.write(a, &bytes)?;
        memory.write(b, &bytes)?;
        let dim = (size as u32).to_le_bytes();
        let params = [&a.to_le_bytes()[..], &b.to_le_bytes(), &c.to_le_bytes(), &dim, &dim, &dim].concat();
        let launch = Launch::new([size as u32 / 64, size as u32 / 64, 1], [128, 1, 1]).with_params(params);
        let (t, n) = timed(&instance, "gemm_bf16", &launch, &mut memory, &options)?;
        let flops = 2.0 * (size as f64).powi(3);
        println!(
            "{name}  mma     {:8.2} GFLOP/s, {:.2} M warp instructions/s",
            flops / t / 1e9,
            n as f64 / t / 1e6
        );

        let instance = load(include_str!("../tests/ptx/wgmma.ptx"), &mut memory)?;
        let map = |at| {
            let mut m =
                TensorMap::tiled(DataType::Bf16, at, &[size as u64; 2], &[size as u64 * 2], &[64, 64]);
            m.swizzle = Swizzle::Bytes128;
            m.encode()
        };
        let params = [&map(a)?[..], &map(b)?, &c.to_le_bytes(), &dim, &dim].concat();
        let launch = Launch {
            dynamic_shared: 32768,
            ..Launch::new([size as u32 / 64, size as u32 / 64, 1], [128, 1, 1]).with_params(params)
        };
        let (t, _) = timed(&instance, "gemm_wgmma", &launch, &mut memory, &options)?;
        println!("{name}  wgmma   {:8.2} GFLOP/s", flops / t / 1e9);
    }
    Ok(())
}
