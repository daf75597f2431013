//! Blocks over threads: the same bits, reports and faults as on one thread, whatever the kernel does.

use ptx_vm::{Options, Report, Schedule};

use crate::harness::{Arg, Bench, module, schedules};
use crate::kernels;

/// A kernel of 40 blocks of 64 threads over `a[2560]`, zero at first; its outcome and what the memory then
/// holds.
fn run(body: &str, options: &Options) -> (Result<Report, String>, Vec<u32>) {
    let text = module(&format!(
        ".visible .entry k(.param .u64 a) {{ .reg .b32 %r<12>; .reg .b64 %rd<9>; .reg .pred %p<3>; .shared .align 4 .u32 sm[64];
         ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r3, %r2, 64, %r1;
         mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2; setp.eq.u32 %p1, %r1, 0; {body} ret; }}"
    ));
    let mut b = Bench::new(&text);
    let a = b.upload(&[0u32; 2560]);
    let launch = b.launch("k", [40, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
    let outcome = b.run("k", &launch, options).map_err(|f| f.to_string());
    (outcome, b.download::<u32>(a, 2560))
}

/// One thread and several agree under every schedule; the outcome of the last.
fn agree(body: &str, change: impl Fn(Options) -> Options) -> Result<Report, String> {
    let mut last = Err(String::new());
    for options in schedules(3) {
        let one = Options { track_writes: true, count_traffic: true, ..change(options) };
        let alone = run(body, &one);
        for threads in [2, 3, 64] {
            assert_eq!(
                run(body, &Options { threads, ..one }),
                alone,
                "{threads} threads, {:?}: {body}",
                one.schedule
            );
        }
        last = alone.0;
    }
    last
}

const MIX: &str = "mov.u32 %r4, 0; L: mad.lo.s32 %r3, %r3, 1664525, 1013904223; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 9; @%p2 bra L;
    st.shared.u32 [sm], %r1; bar.sync 0; ";

#[test]
fn independent_blocks_give_the_same_bits_and_reports() {
    let quiet = |o| o;
    let mixed = MIX.replace("st.shared.u32 [sm], %r1;", "@%p1 st.shared.u32 [sm], %r2;");
    let report = agree(
        &format!("{mixed} ld.shared.u32 %r5, [sm]; xor.b32 %r3, %r3, %r5; ld.global.u32 %r6, [%rd3]; add.u32 %r3, %r3, %r6; st.global.u32 [%rd3], %r3;"),
        quiet,
    )
    .unwrap();
    assert_eq!((report.blocks, report.traffic.read.requested), (40, 2560 * 4));
    // Blocks that end early, blocks that write nothing.
    agree("and.b32 %r5, %r2, 1; setp.eq.u32 %p2, %r5, 0; @%p2 bra E; st.global.u32 [%rd3], %r3; E:", quiet)
        .unwrap();
}

#[test]
fn faults_and_races_are_those_of_one_thread() {
    let quiet = |o| o;
    let race = agree("@%p1 st.global.u32 [%rd1], %r2;", quiet).unwrap_err();
    assert!(race.contains("GlobalRace"), "{race}");
    let race = agree("@%p1 st.global.u32 [%rd3], %r2; ld.global.u32 %r5, [%rd1+2304];", quiet).unwrap_err();
    assert!(race.contains("GlobalRace"), "{race}");
    let race = agree("st.shared.u32 [sm], %r2; st.global.u32 [%rd3], %r3;", quiet).unwrap_err();
    assert!(race.contains("SharedRace"), "{race}");
    let bounds = agree(
        "mul.lo.u32 %r5, %r2, 70; mul.wide.u32 %rd4, %r5, 4; add.s64 %rd4, %rd3, %rd4; @%p1 st.global.u32 [%rd4], %r2;",
        quiet,
    );
    assert!(bounds.unwrap_err().contains("OutOfBounds"));
    let spin = agree("L: add.u32 %r3, %r3, 1; bra L;", |o| Options { budget: 50_000, ..o });
    assert!(spin.unwrap_err().contains("Budget"));
}

#[test]
fn what_depends_on_the_order_follows_the_schedule() {
    let unchecked = |o| Options { global_races: false, ..o };
    // The last writer wins; a block reads what the one before it wrote.
    agree("@%p1 st.global.u32 [%rd1], %r2;", unchecked).unwrap();
    agree("ld.global.u32 %r5, [%rd3]; add.u32 %r5, %r5, %r2; max.u32 %r6, %r2, 1; sub.u32 %r6, %r6, 1; mul.wide.u32 %rd4, %r6, 256;
           add.s64 %rd4, %rd4, %rd1; ld.global.u32 %r7, [%rd4]; add.u32 %r5, %r5, %r7; st.global.u32 [%rd3], %r5;", unchecked).unwrap();
    // Atomics and clocks.
    agree("atom.global.add.u32 %r5, [%rd1], 1; st.global.u32 [%rd3], %r5;", unchecked).unwrap();
    agree("mov.u32 %r5, %clock; st.global.u32 [%rd3], %r5;", |o| o).unwrap();
}

#[test]
fn real_kernels() {
    for schedule in [Schedule::Forward, Schedule::Random(3)] {
        let options = Options { schedule, threads: 4, ..Options::default() };
        assert!(kernels::gemm(include_str!("../ptx/gemm.ptx"), (260, 270, 72), &options).unwrap());
        assert!(kernels::wgmma(include_str!("../ptx/wgmma.ptx"), (256, 256, 64), &options).unwrap());
    }
}
