//! What a test program can choose and ask through [`soft_cuda::preload`]: the schedule, the models of
//! rounding, the statistics. Kernels that lean on what is not promised (an order, lucky bits) change under a
//! choice; right ones do not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::*;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use soft_cuda::preload::{Checks, Moved, Schedule, SoftCuda, Traffic};

/// Kernels of this file. `arrive`: the order in which blocks come. `powers_*`: 2^n through `ex2.approx`,
/// truncated or rounded.
/// `sums`: one and fifteen times 2^-24, summed by `mma`.
const TEXT: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry arrive(.param .u64 out, .param .u64 counter) {
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [counter]; mov.u32 %r1, %ctaid.x;
  atom.global.add.u32 %r2, [%rd2], 1; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r2; ret;
}
.visible .entry powers_truncated(.param .u64 out) {
  .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; ex2.approx.f32 %f2, %f1; cvt.rzi.u32.f32 %r2, %f2;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2; ret;
}
.visible .entry powers_rounded(.param .u64 out) {
  .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f1, %r1; ex2.approx.f32 %f2, %f1; cvt.rni.u32.f32 %r2, %f2;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2; ret;
}
.visible .entry sums(.param .u64 out) {
  .reg .pred %p<2>; .reg .b32 %r<10>; .reg .f32 %f<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 0;
  mov.b32 %r4, 0x33803380; selp.b32 %r3, 0x33803f80, %r4, %p1; mov.b32 %r5, 0x3f803f80; mov.f32 %f5, 0f00000000;
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r3, %r3, %r4, %r4}, {%r5, %r5},
    {%f5, %f5, %f5, %f5};
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f1; ret;
}";

struct Bench {
    stream: Arc<CudaStream>,
    module: Module,
}

fn bench() -> Bench {
    let context: Arc<CudaContext> = bare_context(0);
    Bench { stream: context.new_stream().unwrap(), module: Module::from_text(&context, TEXT).unwrap() }
}

impl Bench {
    fn zeros(&self, n: usize) -> (CudaSlice<u32>, u64) {
        let slice = self.stream.alloc_zeros::<u32>(n).unwrap();
        let address = slice.device_ptr(&self.stream).0;
        (slice, address)
    }

    /// One warp of a kernel that takes nothing but where its 32 results go.
    fn warp(&self, kernel: &str) -> Vec<u32> {
        let (out, at) = self.zeros(32);
        launch(&self.stream, self.module.function(kernel).unwrap(), 1, 32, 0, args([&at])).unwrap();
        self.stream.clone_dtoh(&out).unwrap()
    }
}

/// The order in which eight blocks arrive under a schedule.
fn arrivals(soft: &SoftCuda, schedule: Schedule) -> Vec<u32> {
    soft.set_schedule(schedule).unwrap();
    let bench = bench();
    let ((out, to), (_count, counter)) = (bench.zeros(8), bench.zeros(1));
    launch(&bench.stream, bench.module.function("arrive").unwrap(), 8, 1, 0, args([&to, &counter])).unwrap();
    let order = bench.stream.clone_dtoh(&out).unwrap();
    soft.set_schedule(Schedule::Forward).unwrap();
    order
}

#[test]
fn the_schedule_of_kernels_is_chosen() {
    let (soft, _alone) = soft();
    assert_eq!(arrivals(soft, Schedule::Forward), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(arrivals(soft, Schedule::Reverse), [7, 6, 5, 4, 3, 2, 1, 0]);
    let random = arrivals(soft, Schedule::Random(7));
    assert_eq!(random, arrivals(soft, Schedule::Random(7)), "a seed is a schedule");
    assert!((1..20).any(|seed| arrivals(soft, Schedule::Random(seed)) != random));
}

#[test]
fn a_kernel_that_lives_on_lucky_bits_of_an_approximation_fails_under_the_worst() {
    let (soft, _alone) = soft();
    let powers: Vec<u32> = (0..32).map(|n| if n < 24 { 1 << n } else { 0 }).collect();
    let run = |worst_approx, kernel| {
        soft.set_checks(Checks { worst_approx, ..Checks::default() }).unwrap();
        let got = bench().warp(kernel);
        // From 2^24 on an f32 is a whole number however it was rounded.
        got[..24] == powers[..24]
    };
    assert!(run(false, "powers_truncated"), "the exact model hides the mistake");
    assert!(!run(true, "powers_truncated"), "a truncated power of two lives on lucky bits");
    assert!(run(false, "powers_rounded"));
    // Half an integer is further than the documented error up to 2^20.
    soft.set_checks(Checks { worst_approx: true, ..Checks::default() }).unwrap();
    assert_eq!(bench().warp("powers_rounded")[..21], powers[..21]);
}

#[test]
fn a_kernel_that_wants_the_bits_of_a_chain_from_a_tensor_core_fails_under_its_sums() {
    let (soft, _alone) = soft();
    let run = |tensor_core_sums| {
        soft.set_checks(Checks { tensor_core_sums, ..Checks::default() }).unwrap();
        f32::from_bits(bench().warp("sums")[0])
    };
    // A chain of f32 additions loses each 2^-24 next to the one; a block sum keeps them and truncates once.
    let chain = (0..15).fold(1.0f32, |sum, _| sum + 2f32.powi(-24));
    assert_eq!(run(false), chain);
    let hardware = run(true);
    assert_ne!(hardware, chain, "bit equality is luck");
    assert_eq!(hardware, 1.0 + 7.0 * 2f32.powi(-23));
    assert!((hardware - (1.0 + 15.0 * 2f32.powi(-24))).abs() <= 2f32.powi(-23), "a tolerance is not");
}

#[test]
fn launches_and_traffic_are_counted_by_kernel_and_by_range() {
    let (soft, _alone) = soft();
    let context = bare_context(0);
    let stream = context.new_stream().unwrap();
    let module = Module::load(&context);
    let (x, y) = (stream.clone_htod(&[1.0f32; 1000]).unwrap(), stream.alloc_zeros::<f32>(1000).unwrap());
    let (from, to) = (x.device_ptr(&stream).0, y.device_ptr(&stream).0);
    context.synchronize().unwrap();
    soft.clear_counts().unwrap();
    soft.set_traffic(true).unwrap();
    let copy = module.function("copy").unwrap();
    for _ in 0..3 {
        launch(&stream, copy, 8, 128, 0, args([&to, &from, &1000u32])).unwrap();
    }
    assert!(soft.kernels().unwrap().is_empty(), "what has not run does not count");
    context.synchronize().unwrap();
    let kernels = soft.kernels().unwrap();
    let [copy] = &kernels[..] else { panic!("{kernels:?}") };
    assert_eq!((&copy.name[..], copy.launches, copy.blocks), ("copy", 3, 24));
    assert!(copy.instructions > 3 * 8 * 4 * 5);
    let each = Moved { requested: 12_000, transferred: 12_000, distinct: 12_000 };
    assert_eq!(copy.traffic, Traffic { read: each, written: each });
    let once = Moved { distinct: 4000, ..each };
    assert_eq!(soft.traffic(from, 4000).unwrap(), Traffic { read: once, written: Moved::default() });
    assert_eq!(soft.traffic(to, 4000).unwrap().written, once);
    assert_eq!(soft.traffic(from + 320, 32).unwrap().read.requested, 96);
    drop(stream.clone_dtoh(&y).unwrap());
    assert_eq!(soft.copied().unwrap(), (4000, 0));
    soft.set_traffic(false).unwrap();
    soft.clear_counts().unwrap();
    assert_eq!(soft.traffic(from, 4000).unwrap(), Traffic::default());
    assert_eq!(soft.counts().unwrap(), (0, 0));
}
