//! What the options change: approximations at their worst, hardware sums, budgets, switched-off checks, reproducible schedules.

use ptx_vm::{Error, FaultKind, Module, Options, Rounding, Schedule};

use crate::harness::{Arg, Bench, module, schedules};
use crate::kernels;

#[test]
fn the_worst_approximations_differ_but_stay_within_their_bounds() {
    let body = "
.visible .entry k(.param .u64 a) {
  .reg .b32 %r<4>; .reg .f32 %f<12>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 32; add.s64 %rd1, %rd1, %rd2;
  cvt.rn.f32.u32 %f1, %r1; fma.rn.f32 %f1, %f1, 0f3DCCCCCD, 0f3F000000;
  ex2.approx.f32 %f2, %f1; lg2.approx.f32 %f3, %f1; sin.approx.f32 %f4, %f1; tanh.approx.f32 %f5, %f1;
  rcp.approx.f32 %f6, %f1; rsqrt.approx.f32 %f7, %f1; sqrt.approx.f32 %f8, %f1; div.full.f32 %f9, %f1, %f2;
  st.global.v4.f32 [%rd1], {%f2, %f3, %f4, %f5}; st.global.v4.f32 [%rd1+16], {%f6, %f7, %f8, %f9}; ret; }";
    let run = |approx| {
        let mut b = Bench::new(&module(body));
        let a = b.empty(32 * 32);
        let launch = b.launch("k", [1, 1, 1], [32, 1, 1], &[Arg::U64(a)]);
        b.run("k", &launch, &Options { approx, ..Options::default() }).unwrap();
        b.download::<f32>(a, 256)
    };
    let (exact, worst) = (run(Rounding::Exact), run(Rounding::Worst));
    for (i, (e, w)) in exact.iter().zip(&worst).enumerate() {
        let bound = if i % 8 == 3 { 6e-4 } else { 1e-6 };
        assert!((e - w).abs() <= bound * e.abs() + 1e-6, "function {} of lane {}: {e} {w}", i % 8, i / 8);
    }
    // tanh has the widest bound: every lane shows it.
    assert!((0..32).all(|l| exact[l * 8 + 3] != worst[l * 8 + 3]));
    assert!(exact.iter().zip(&worst).filter(|(e, w)| e != w).count() > 100);
}

#[test]
fn hardware_sums_stay_close() {
    let options = Options { tensor_core_sums: true, ..Options::default() };
    assert!(kernels::gemm(include_str!("../ptx/gemm.ptx"), (64, 64, 96), &options).unwrap());
}

#[test]
fn budgets_and_switched_off_checks() {
    let body = "
.visible .entry spin(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [a]; L: ld.global.u32 %r1, [%rd1]; add.s32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; bra L; }
.visible .entry race(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; st.global.u32 [%rd1], %r1; ret; }";
    let mut b = Bench::new(&module(body));
    let a = b.upload(&[0u32]);
    let launch = b.launch("spin", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
    let options = Options { budget: 20_000, ..Options::default() };
    assert_eq!(b.run("spin", &launch, &options).unwrap_err().kind, FaultKind::Budget);
    let launch = b.launch("race", [1, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
    assert_eq!(b.run("race", &launch, &Options::default()).unwrap_err().kind, FaultKind::GlobalRace);
    // Unchecked, the last writer of the schedule wins.
    let off = Options { global_races: false, ..Options::default() };
    b.run("race", &launch, &off).unwrap();
    assert_eq!(b.download::<u32>(a, 1), [63]);
    b.run("race", &launch, &Options { schedule: Schedule::Reverse, ..off }).unwrap();
    assert_eq!(b.download::<u32>(a, 1), [31]);
}

#[test]
fn a_seed_is_a_schedule() {
    let text = include_str!("../ptx/grid.ptx");
    let count = |options: &Options| {
        let mut b = Bench::new(text);
        let (a, c, counter) = (b.upload(&[1f32; 200]), b.upload(&[0f32; 200]), b.upload(&[0u32]));
        let args = [Arg::U64(a), Arg::U64(c), Arg::U64(counter), Arg::U32(200), Arg::U32(3)];
        let launch = b.launch("stencil", [4, 1, 1], [64, 1, 1], &args);
        b.run("stencil", &launch, options).unwrap().instructions
    };
    for options in schedules(2) {
        assert_eq!(count(&options), count(&options));
    }
}

#[test]
fn listings_name_every_refusal() {
    let text = module(
        ".visible .entry k() { .reg .b32 %r<3>; add.u32 %r1, %r2, 1;\n frob.u32 %r1, %r2;\n add.u32 %r1, %r2, 1;\n nope;\n ret; }",
    );
    let lines: Vec<u32> = Module::refusals(&text)
        .unwrap()
        .iter()
        .map(|e| match e {
            Error::Unsupported { line, .. } => *line,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(lines, [6, 8]);
    assert_eq!(Module::opcodes(&text).unwrap()["add.u32"], 2);
    assert!(Module::refusals(include_str!("../ptx/layers.ptx")).unwrap().is_empty());
}
