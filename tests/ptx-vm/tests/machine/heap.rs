//! `malloc` and `free` in kernels: blocks, their limit and their life, and every way to misuse them.

use ptx_vm::{Fault, FaultKind, Module, Options, Touched};

use crate::harness::{Arg, Bench, module, schedules};

/// As `nvcc` declares them.
const DECLARED: &str = "
.extern .func  (.param .b64 func_retval0) malloc
(
	.param .b64 malloc_param_0
)
;
.extern .func free
(
	.param .b64 free_param_0
)
;
";

fn malloc(to: &str, bytes: &str) -> String {
    format!(
        "{{ .param .b64 param0; st.param.b64 [param0+0], {bytes}; .param .b64 retval0;
         call.uni (retval0), malloc, (param0); ld.param.b64 {to}, [retval0+0]; }}"
    )
}

fn free(pointer: &str) -> String {
    format!("{{ .param .b64 param0; st.param.b64 [param0+0], {pointer}; call.uni free, (param0); }}")
}

/// Kernels `name(out, bytes)`: `%rd1` is the place of the thread's own number of 64 bits in `out`, `%rd2` the
/// bytes, `%r1` the thread in the grid, `%r2` the thread in the block.
fn text(kernels: &[(&str, &str)]) -> String {
    let one = |(name, body): &(&str, &str)| {
        format!(
            ".visible .entry {name}(.param .u64 out, .param .u64 bytes) {{
             .reg .b64 %rd<20>; .reg .b32 %r<20>; .reg .pred %p<8>; .shared .align 8 .b64 handed;
             ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [bytes]; mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x;
             mov.u32 %r4, %ntid.x; mad.lo.u32 %r1, %r3, %r4, %r2; mul.wide.u32 %rd3, %r1, 8;
             add.s64 %rd1, %rd1, %rd3; {body} ret; }}\n"
        )
    };
    module(&format!("{DECLARED}{}", kernels.iter().map(one).collect::<String>()))
}

fn run(
    bench: &mut Bench,
    kernel: &str,
    out: u64,
    bytes: u64,
    blocks: u32,
    options: &Options,
) -> Result<(), Fault> {
    let launch = bench.launch(kernel, [blocks, 1, 1], [64, 1, 1], &[Arg::U64(out), Arg::U64(bytes)]);
    bench.run(kernel, &launch, options).map(|_| ())
}

#[test]
fn blocks_live_from_launch_to_launch_until_they_are_freed() {
    let make = format!(
        "{} st.u64 [%rd4], %rd1; st.global.u32 [%rd4+8], %r1; st.global.u64 [%rd1], %rd4;",
        malloc("%rd4", "%rd2")
    );
    let take = format!(
        "ld.global.u64 %rd4, [%rd1]; ld.global.u32 %r5, [%rd4+8]; ld.u64 %rd5, [%rd4]; setp.ne.u64 %p1, %rd5, %rd1;
         @%p1 trap; {} mul.wide.u32 %rd5, %r5, 3; st.global.u64 [%rd1], %rd5;",
        free("%rd4")
    );
    for (options, threads) in schedules(3).into_iter().flat_map(|o| [(o, 1), (o, 4)]) {
        let options = Options { threads, ..options };
        let mut bench = Bench::new(&text(&[("make", &make), ("take", &take)]));
        let out = bench.empty(8 * 192);
        run(&mut bench, "make", out, 20, 3, &options).unwrap();
        let mut pointers = bench.download::<u64>(out, 192);
        pointers.sort_unstable();
        assert!(pointers.windows(2).all(|p| p[1] - p[0] >= 32) && pointers.iter().all(|p| p % 32 == 16));
        assert_eq!(bench.memory.heap_used(0, 0), 192 * 32);
        assert!(bench.memory.in_heap(pointers[0] + 19) && !bench.memory.in_heap(out));
        let launch = bench.launch("take", [3, 1, 1], [64, 1, 1], &[Arg::U64(out), Arg::U64(0)]);
        let report = bench.run("take", &launch, &Options { track_accesses: true, ..options }).unwrap();
        // A block that is freed is written to its end, as others see it.
        let freed = |pointer: &u64| {
            let by = |a: &Touched| a.by.as_ref().is_some_and(|by| by.text.starts_with("call.uni free"));
            report.accesses.iter().any(|a| a.write && a.range == (*pointer..*pointer + 20) && by(a))
        };
        assert!(pointers.iter().all(freed), "{:?}", report.accesses);
        let wanted: Vec<u64> = (0..192).map(|i| 3 * i).collect();
        assert_eq!(bench.download::<u64>(out, 192), wanted);
        assert_eq!(bench.memory.heap_used(0, 0), 0);
    }
}

#[test]
fn beyond_the_limit_malloc_gives_zero() {
    let body = format!("{} st.global.u64 [%rd1], %rd4;", malloc("%rd4", "%rd2"));
    let both = format!(
        "{}{}{} st.global.u64 [%rd1], %rd5;",
        malloc("%rd4", "%rd2"),
        free("%rd4"),
        malloc("%rd5", "%rd2")
    );
    let mut bench = Bench::new(&text(&[("k", &body), ("both", &both)]));
    let out = bench.empty(8 * 64);
    let given = |bench: &Bench| bench.download::<u64>(out, 64).iter().filter(|p| **p != 0).count();
    let few = Options { heap_bytes: 5 * 112, ..Options::default() };
    run(&mut bench, "k", out, 100, 1, &few).unwrap();
    assert_eq!((given(&bench), bench.memory.heap_used(0, 0)), (5, 5 * 112));
    assert_eq!(bench.memory.drop_heap(0, 0), 5);
    // What has been freed is there again.
    run(&mut bench, "both", out, 100, 1, &Options { heap_bytes: 96 * 112, ..few }).unwrap();
    assert_eq!((given(&bench), bench.memory.drop_heap(0, 0)), (64, 64));
    // 8 MiB if nothing else is said.
    run(&mut bench, "k", out, 1 << 20, 1, &Options::default()).unwrap();
    assert_eq!((given(&bench), bench.memory.drop_heap(0, 0)), (8, 8));
    run(&mut bench, "k", out, u64::MAX, 1, &Options { heap_bytes: u64::MAX, ..few }).unwrap();
    assert_eq!(given(&bench), 0);
}

#[test]
fn every_misuse_is_named_with_its_places() {
    let give = malloc("%rd4", "%rd2");
    let back = free("%rd4");
    let (line, at) = ("call.uni (retval0), malloc, (param0);", "block (0,0,0), thread (");
    for (body, kind, words) in [
        (
            format!("{give} st.u64 [%rd4+16], %rd1;"),
            FaultKind::OutOfBounds,
            &["16 bytes behind", "20 bytes", line, at][..],
        ),
        (format!("{give} ld.u32 %r5, [%rd4+16];"), FaultKind::Uninitialised, &["never written", "20 bytes"]),
        (
            format!("{give} st.u64 [%rd4], %rd1; {back} ld.u64 %rd5, [%rd4];"),
            FaultKind::UseAfterFree,
            &["freed at", "call.uni free", at],
        ),
        (format!("{give} {back} {back}"), FaultKind::Heap, &["freed already at", "call.uni free", at]),
        (format!("{give} add.s64 %rd4, %rd4, 4; {back}"), FaultKind::Heap, &["4 bytes behind", line, at]),
        (format!("mov.u64 %rd4, %rd1; {back}"), FaultKind::Heap, &["no `malloc` of a kernel gave"]),
        (format!("mov.u64 %rd4, 4096; {back}"), FaultKind::Heap, &["0x1000, which no `malloc` gave"]),
    ] {
        let mut bench = Bench::new(&text(&[("k", &body)]));
        let out = bench.empty(8 * 64);
        let fault = run(&mut bench, "k", out, 20, 1, &Options::default()).unwrap_err();
        assert!(fault.kind == kind && words.iter().all(|word| fault.to_string().contains(word)), "{fault}");
    }
    // The null pointer is none of them, and lanes whose guard does not hold call nothing.
    let body = format!(
        "mov.u64 %rd4, 0; {back} setp.eq.u64 %p1, %rd2, 0; mov.u64 %rd4, 7; @%p1 bra end; {back} end:"
    );
    let mut bench = Bench::new(&text(&[("k", &body)]));
    let out = bench.empty(8 * 64);
    run(&mut bench, "k", out, 0, 1, &Options::default()).unwrap();
    assert!(run(&mut bench, "k", out, 1, 1, &Options::default()).is_err());
}

/// A block that one warp frees while another one may still read it.
#[test]
fn a_free_that_nothing_orders_behind_the_last_use_is_a_race() {
    let body = |wait: &str| {
        format!(
            "setp.ne.u32 %p1, %r2, 0; @%p1 bra given; {} st.u64 [%rd4], %rd1; st.shared.u64 [handed], %rd4;
             given: bar.sync 0; ld.shared.u64 %rd6, [handed]; ld.u64 %rd7, [%rd6]; st.global.u64 [%rd1], %rd7; {wait}
             setp.ne.u32 %p2, %r2, 63; @%p2 bra end; {} end:",
            malloc("%rd4", "%rd2"),
            free("%rd6")
        )
    };
    for (wait, race) in [("bar.sync 0;", false), ("", true)] {
        for options in schedules(5) {
            let mut bench = Bench::new(&text(&[("k", &body(wait))]));
            let out = bench.empty(8 * 64);
            let outcome = run(&mut bench, "k", out, 32, 1, &options);
            match outcome {
                Ok(()) => assert!(!race, "{options:?}"),
                // Under some schedules the other warp comes too late.
                Err(fault) => {
                    let late = fault.kind == FaultKind::UseAfterFree;
                    assert!(race && (late || fault.kind == FaultKind::GlobalRace), "{fault}");
                    assert!(late || fault.text.starts_with("call.uni free"), "{fault}");
                }
            }
        }
    }
}

#[test]
fn functions_of_other_shapes_and_of_the_text_itself() {
    let entry =
        ".visible .entry k(.param .u64 out) { .param .b32 p; .param .b64 r; call (r), malloc, (p); ret; }";
    let narrow = module(&format!(".extern .func (.param .b64 r) malloc(.param .b32 n); {entry}"));
    let said = Module::parse(&narrow).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("`malloc` is declared with parameters of (4) bytes"), "{said}");
    let said = Module::parse(&module(entry)).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("no function `malloc`"), "{said}");
    let own = "
        .func (.param .b64 r) malloc(.param .b64 n) {
          .reg .b64 %rd<3>; ld.param.u64 %rd1, [n]; add.u64 %rd2, %rd1, 5; st.param.b64 [r], %rd2; ret; }
        .visible .entry k(.param .u64 out) {
          .reg .b64 %rd<3>; .param .b64 n; .param .b64 r; ld.param.u64 %rd1, [out]; st.param.b64 [n], 7;
          call (r), malloc, (n); ld.param.u64 %rd2, [r]; st.global.u64 [%rd1], %rd2; ret; }";
    let mut bench = Bench::new(&module(own));
    assert!(!bench.instance.module().kernel("k").unwrap().uses_heap);
    let out = bench.empty(8);
    let launch = bench.launch("k", [1; 3], [1; 3], &[Arg::U64(out)]);
    bench.run("k", &launch, &Options::default()).unwrap();
    assert_eq!(bench.download::<u64>(out, 1), [12]);
}
