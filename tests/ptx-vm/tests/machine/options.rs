//! What the options change: approximations at their worst, hardware sums, budgets, switched-off checks,
//! reproducible schedules.

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

/// Each approximate function with the error the manual allows it (PTX ISA 8.7, 9.7.3 and 9.7.4): its results
/// under both models are within it, and under the worst most are not the exact ones.
#[test]
fn approximations_err_as_documented_and_no_further() {
    type Function = fn(f64) -> f64;
    type Bound = fn(f64, f64) -> f64;
    let relative = |bits: f64| 2f64.powf(-bits);
    let single: &[(&str, f32, f32, Function, Bound)] = &[
        ("ex2.approx.f32", -20.0, 20.0, f64::exp2, |_, y| y.abs() * 2f64.powi(-22)),
        ("ex2.approx.ftz.f32", -20.0, 20.0, f64::exp2, |_, y| y.abs() * 2f64.powi(-22)),
        ("lg2.approx.f32", 0.01, 50.0, f64::log2, |x, y| {
            2f64.powi(-22) * if (0.5..2.0).contains(&x) { 1.0 } else { y.abs() }
        }),
        ("sin.approx.f32", -6.0, 6.0, f64::sin, |_, _| 2f64.powf(-20.5)),
        ("cos.approx.f32", -6.0, 6.0, f64::cos, |_, _| 2f64.powf(-20.5)),
        ("tanh.approx.f32", -4.0, 4.0, f64::tanh, |_, y| y.abs() * 2f64.powi(-11)),
        ("rcp.approx.f32", 0.1, 90.0, |x| 1.0 / x, |_, y| y * 2f64.powi(-23)),
        ("rsqrt.approx.f32", 0.1, 90.0, |x| 1.0 / x.sqrt(), |_, y| y * 2f64.powf(-22.9)),
        ("sqrt.approx.f32", 0.1, 90.0, f64::sqrt, |_, y| y * 2f64.powi(-23)),
    ];
    let run = |text: &str, class: &str, inputs: &[u32], approx| {
        let body = format!(
            ".visible .entry k(.param .u64 a) {{ .reg .b32 %r<4>; .reg .{class} %v<3>; .reg .b64 %rd<4>;
             ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
             ld.global.{class} %v1, [%rd1]; {text} %v2, %v1; st.global.{class} [%rd1], %v2; ret; }}"
        );
        let mut b = Bench::new(&module(&body));
        let a = b.upload(inputs);
        let launch = b.launch("k", [1, 1, 1], [256, 1, 1], &[Arg::U64(a)]);
        b.run("k", &launch, &Options { approx, ..Options::default() }).unwrap();
        b.download::<u32>(a, inputs.len())
    };
    let mut dice = crate::harness::Dice(5);
    for (text, low, high, function, bound) in single {
        let x: Vec<f32> = (0..256).map(|_| low + (high - low) * dice.unit()).collect();
        let bits: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
        let (exact, worst) =
            (run(text, "b32", &bits, Rounding::Exact), run(text, "b32", &bits, Rounding::Worst));
        for ((&x, e), w) in x.iter().zip(&exact).zip(&worst) {
            let want = function(x.into());
            assert_eq!(f32::from_bits(*e), want as f32, "{text} of {x}");
            let error = (f64::from(f32::from_bits(*w)) - want).abs();
            assert!(error <= bound(x.into(), want), "{text} of {x}: off by {error:e}");
        }
        let moved = exact.iter().zip(&worst).filter(|(e, w)| e != w).count();
        assert!(moved > 128, "{text}: {moved} of 256 results show that they are approximate");
    }
    use ptx_vm::number::half::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};
    type Half = (fn(f32) -> u16, fn(u16) -> f32);
    let (f16, bf16): (Half, Half) = ((f16_from_f32, f32_from_f16), (bf16_from_f32, f32_from_bf16));
    for (text, (narrow, widen), tanh, bound) in [
        ("ex2.approx.f16", f16, false, relative(9.9)),
        ("ex2.approx.f16x2", f16, false, relative(9.9)),
        ("ex2.approx.ftz.bf16", bf16, false, relative(7.0)),
        ("ex2.approx.ftz.bf16x2", bf16, false, relative(7.0)),
        ("tanh.approx.f16", f16, true, relative(10.987)),
        ("tanh.approx.f16x2", f16, true, relative(10.987)),
        ("tanh.approx.bf16", bf16, true, relative(8.0)),
        ("tanh.approx.bf16x2", bf16, true, relative(8.0)),
    ] {
        let pair = text.ends_with("x2");
        let halves: Vec<u16> = (0..512).map(|_| narrow(dice.real() * 3.0)).collect();
        let words: Vec<u32> = halves
            .chunks(2)
            .map(|h| u32::from(h[0]) | if pair { u32::from(h[1]) << 16 } else { 0 })
            .collect();
        let class = if pair { "b32" } else { "b16" };
        let (exact, worst) =
            (run(text, class, &words, Rounding::Exact), run(text, class, &words, Rounding::Worst));
        let mut moved = 0;
        for i in 0..if pair { 512 } else { 256 } {
            let (at, shift) = if pair { (i / 2, 16 * (i % 2)) } else { (i, 0) };
            let part = |v: &[u32]| (v[at] >> shift) as u16;
            let x = f64::from(widen(part(&words)));
            let want = if tanh { x.tanh() } else { x.exp2() };
            assert_eq!(part(&exact), narrow(want as f32), "{text} of {x}");
            let error = (f64::from(widen(part(&worst))) - want).abs();
            let limit = if tanh { bound } else { bound * want };
            assert!(error <= limit, "{text} of {x}: off by {error:e}, {limit:e} allowed");
            moved += usize::from(part(&exact) != part(&worst));
        }
        assert!(moved > 60, "{text}: {moved} results show that they are approximate");
    }
}

/// A kernel that takes the whole part of `ex2.approx` for a power of two lives on lucky bits; one that rounds
/// does not.
#[test]
fn lucky_bits_run_out() {
    let powers = |convert: &str, approx| {
        let body = format!(
            ".visible .entry k(.param .u64 a) {{ .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
             ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
             cvt.rn.f32.u32 %f1, %r1; ex2.approx.f32 %f2, %f1; cvt.{convert}.u32.f32 %r2, %f2; st.global.u32 [%rd1], %r2; ret; }}"
        );
        let mut b = Bench::new(&module(&body));
        let a = b.empty(80);
        let launch = b.launch("k", [1, 1, 1], [20, 1, 1], &[Arg::U64(a)]);
        b.run("k", &launch, &Options { approx, ..Options::default() }).unwrap();
        b.download::<u32>(a, 20).iter().enumerate().all(|(n, got)| *got == 1 << n)
    };
    assert!(powers("rzi", Rounding::Exact) && powers("rni", Rounding::Exact));
    assert!(!powers("rzi", Rounding::Worst), "the worst model finds the luck");
    assert!(powers("rni", Rounding::Worst), "and lets a careful kernel pass");
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

/// A long computation that is not waited for is no spin, in one warp or next to warps that have ended.
#[test]
fn long_loops_are_not_spins() {
    let body = "
.visible .entry k(.param .u64 a) { .reg .b32 %r<6>; .reg .b64 %rd<3>; .reg .pred %p<2>;
  ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1]; mov.u32 %r2, 0;
  L: ld.global.u32 %r3, [%rd1+4]; add.u32 %r1, %r1, %r3; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 2200000; @%p1 bra L;
  st.global.u32 [%rd1], %r1; ret; }";
    let mut b = Bench::new(&module(body));
    let a = b.upload(&[5u32, 3]);
    let launch = b.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
    assert!(b.run("k", &launch, &Options::default()).unwrap().instructions > 11_000_000);
    assert_eq!(b.download::<u32>(a, 1), [5 + 3 * 2_200_000]);
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

#[test]
fn lines_are_counted_by_warp_and_a_part_of_a_grid_runs_alone() {
    // Block i loops i + 1 times; its second warp leaves at once.
    let body = "
.visible .entry k(.param .u64 a) {
  .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, 32; @%p1 bra DONE;
  mov.u32 %r3, 0;
LOOP: add.u32 %r3, %r3, 1; setp.le.u32 %p2, %r3, %r1; @%p2 bra LOOP;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2; st.global.u32 [%rd2], %r3;
DONE: ret; }";
    let text = module(body);
    for (threads, schedule) in [(1, Schedule::Forward), (1, Schedule::Reverse), (4, Schedule::Random(3))] {
        let run = |blocks: Option<&[u32]>| {
            let mut b = Bench::new(&text);
            let a = b.upload(&[0u32; 64]);
            let launch = b.launch("k", [64, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
            let options = Options { count_lines: true, schedule, threads, ..Options::default() };
            let report = match blocks {
                None => b.run("k", &launch, &options),
                Some(blocks) => b.run_blocks("k", &launch, blocks, &options),
            };
            (report, b.download::<u32>(a, 64))
        };
        let loops = |report: &ptx_vm::Report| {
            let line = report.lines.iter().find(|line| line.text.starts_with("add.u32")).unwrap();
            (line.warps, report.longest_warp)
        };
        let (all, out) = run(None);
        let all = all.unwrap();
        assert_eq!(out, (1..=64).collect::<Vec<u32>>());
        assert_eq!((loops(&all), all.blocks), ((64 * 65 / 2, 6 + 3 * 64 + 4), 64));
        assert_eq!(all.lines.iter().map(|line| line.warps).sum::<u64>(), all.instructions);
        let (some, out) = run(Some(&[9, 0]));
        let some = some.unwrap();
        assert_eq!((loops(&some), some.blocks), ((11, 6 + 3 * 10 + 4), 2));
        assert_eq!((out[0], out[1], out[9], out.iter().filter(|v| **v > 0).count()), (1, 0, 10, 2));
        for (blocks, word) in [([3, 64], "block 64 is chosen; the grid has 64"), ([5, 5], "chosen twice")] {
            let fault = run(Some(&blocks)).0.unwrap_err();
            assert!(fault.kind == FaultKind::Launch && fault.to_string().contains(word), "{fault}");
        }
    }
    let mut b = Bench::new(&text);
    let a = b.upload(&[0u32; 64]);
    let launch = b.launch("k", [64, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
    assert!(b.run("k", &launch, &Options::default()).unwrap().lines.is_empty(), "only when it is asked for");
}
