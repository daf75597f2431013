//! What is told of a fault: both instructions of a race, source lines, every distinct one; and what counts as
//! one.

use ptx_vm::fault::demangled;
use ptx_vm::{Barriers, Fault, FaultKind, Launch, Options, Touched, launch_all};

use crate::harness::{Arg, Bench, module, schedules};

/// A kernel of one buffer of 256 zeroed words: `%r1` is the thread, `%rd3` its word, `%r5` its shared word,
/// `%r6` that of the thread 32 further on (around), `%p1` thread 0.
fn kernel(body: &str) -> Bench {
    Bench::new(&text(body))
}

fn text(body: &str) -> String {
    module(&format!(
        ".file 1 \"/home/somebody/sum.cu\"\n.file 2 \"lib.cuh\"\n.visible .entry _Z3sumPj(.param .u64 a) {{
           .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>; .shared .align 16 .b8 sm[1024];
           ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
           mov.u64 %rd4, sm; cvt.u32.u64 %r3, %rd4; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4;
           xor.b32 %r6, %r4, 128; add.s32 %r6, %r6, %r3; setp.eq.u32 %p1, %r1, 0;
           {body}
           ret; }}"
    ))
}

fn prepared(body: &str, threads: u32) -> (Bench, Launch) {
    let mut bench = kernel(body);
    let a = bench.upload(&[0u32; 256]);
    let launch = bench.launch("_Z3sumPj", [1, 1, 1], [threads, 1, 1], &[Arg::U64(a)]);
    (bench, launch)
}

fn first(body: &str, threads: u32, options: &Options) -> Option<Fault> {
    let (mut bench, launch) = prepared(body, threads);
    bench.run("_Z3sumPj", &launch, options).err()
}

fn all(body: &str, threads: u32, options: &Options) -> Vec<Fault> {
    let (mut bench, launch) = prepared(body, threads);
    launch_all(&bench.instance, "_Z3sumPj", &launch, &mut bench.memory, options).err().unwrap_or_default()
}

#[test]
fn a_barrier_that_lanes_of_a_warp_miss() {
    // `if (t < 20) __syncthreads();`, as compilers write it.
    let some = "setp.ge.u32 %p2, %r1, 20; @%p2 bra X; bar.sync 0; X:";
    let early = "setp.ge.u32 %p2, %r1, 20; @%p2 ret; bar.sync 0; st.global.u32 [%rd3], %r1;";
    for options in schedules(3) {
        for body in [some, early, "setp.ge.u32 %p2, %r1, 20; @%p2 ret; barrier.sync.aligned 0;"] {
            let fault = first(body, 64, &options).expect(body);
            assert_eq!(fault.kind, FaultKind::Divergence, "{fault}");
            assert!(fault.detail.contains("lanes 0xfff00000") && fault.text.contains("0;"), "{fault}");
            assert_eq!(first(body, 64, &Options { barriers: Barriers::Ended, ..options }), None);
        }
        // Whole warps may be gone, lanes may be without `.aligned`, and a block need not fill its last warp.
        let gone = "setp.ge.u32 %p2, %r1, 32; @%p2 ret; bar.sync 0;";
        assert_eq!(first(gone, 64, &options), None);
        assert_eq!(first("setp.ge.u32 %p2, %r1, 20; @%p2 ret; barrier.sync 0;", 64, &options), None);
        assert_eq!(first("bar.sync 0;", 40, &options), None);
        let strict = Options { barriers: Barriers::NoLane, ..options };
        let fault = first(gone, 64, &strict).expect("a warp is missed");
        assert!(fault.kind == FaultKind::Divergence && fault.detail.contains("1 of 2 warps"), "{fault}");
        assert_eq!(first("bar.sync 0; bar.sync 0;", 40, &strict), None);
    }
    let cluster = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let first_half =
        "setp.ge.u32 %p2, %r1, 20; @%p2 bra X; barrier.cluster.arrive; barrier.cluster.wait.aligned; X:";
    for body in [&format!("setp.ge.u32 %p2, %r1, 20; @%p2 bra X; {cluster} X:"), first_half] {
        let fault = first(body, 64, &Options::default()).expect(body);
        assert!(fault.kind == FaultKind::Divergence && fault.text.starts_with("barrier.cluster"), "{fault}");
        assert!(fault.detail.contains("lanes 0xfff00000"), "{fault}");
        let ended = Options { barriers: Barriers::Ended, ..Options::default() };
        assert_eq!(first(&body.replace(".aligned", ""), 64, &Options::default()), None);
        assert_eq!(first(body, 64, &ended), None);
    }
    assert_eq!(first(cluster, 40, &Options::default()), None);
    let matmul = "setp.ge.u32 %p2, %r1, 20; @%p2 ret;
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r8,%r9,%r10,%r11}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1,%r1,%r1};";
    let fault = first(matmul, 32, &Options::default()).expect("a matmul by 20 lanes");
    assert!(fault.kind == FaultKind::Divergence && fault.detail.contains("have ended"), "{fault}");
}

#[test]
fn a_read_too_early_is_a_missing_barrier_and_names_the_write() {
    for options in schedules(4) {
        let fault =
            first("st.shared.u32 [%r5], %r1; ld.shared.u32 %r7, [%r6];", 64, &options).expect("a race");
        assert_eq!(fault.kind, FaultKind::SharedRace, "{fault}");
        let other = fault.other.as_ref().expect("both instructions");
        let texts = [&fault.text[..], &other.text[..]];
        assert!(texts.contains(&"st.shared.u32 [%r5], %r1;") && texts.contains(&"ld.shared.u32 %r7, [%r6];"));
    }
    let fault = first("st.shared.u32 [%r5], %r1; ld.shared.u32 %r7, [%r6];", 64, &Options::default());
    let fault = fault.expect("a race");
    assert_eq!(fault.text, "ld.shared.u32 %r7, [%r6];");
    assert!(fault.detail.contains("was never written") && fault.detail.contains("a barrier"), "{fault}");
    // NoLane writes it, or the reader itself does, later: that is no race.
    for body in ["ld.shared.u32 %r7, [%r6];", "ld.shared.u32 %r7, [%r5]; st.shared.u32 [%r5], %r7;"] {
        let fault = first(body, 64, &Options::default()).expect("unwritten");
        assert_eq!((fault.kind, fault.other.clone()), (FaultKind::Uninitialised, None), "{fault}");
    }
    // The same between the warps of a block in global memory.
    let mut bench = kernel(
        "st.global.u32 [%rd3], %r1; xor.b32 %r8, %r1, 32; mul.wide.u32 %rd5, %r8, 4; add.s64 %rd5, %rd1, %rd5;
         ld.global.u32 %r7, [%rd5];",
    );
    let empty = bench.empty(1024);
    let launch = bench.launch("_Z3sumPj", [1, 1, 1], [64, 1, 1], &[Arg::U64(empty)]);
    let fault = bench.run("_Z3sumPj", &launch, &Options::default()).expect_err("a race");
    assert_eq!(fault.kind, FaultKind::GlobalRace, "{fault}");
    assert_eq!(fault.other.expect("the store").text, "st.global.u32 [%rd3], %r1;".into());
}

/// LLVM counts the lines of inline assembly up from that of the statement, which no line of a Python source
/// is.
#[test]
fn inline_assembly_of_python_has_the_line_of_its_statement() {
    let body = "// begin inline asm\n .loc 1 7 3\n mov.u32 %r7, 0;\n .loc 1 8 3\n ld.global.u32 %r7, [%rd3+4096];\n// end inline asm\n
        // begin inline asm\n .loc 1 9 3\n mov.u32 %r8, 0;\n// end inline asm\n .loc 1 11 3\n \
        st.global.u32 [%rd3+4096], %r8;";
    let sources = |name: &str| {
        let mut bench = Bench::new(&text(body).replace("sum.cu", name));
        let a = bench.upload(&[0u32; 256]);
        let launch = bench.launch("_Z3sumPj", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
        let options = Options { faults: 5, ..Options::default() };
        let faults = launch_all(&bench.instance, "_Z3sumPj", &launch, &mut bench.memory, &options);
        let faults = faults.err().unwrap_or_default();
        faults.into_iter().filter_map(|f| f.source.map(|s| s.to_string())).collect::<Vec<String>>()
    };
    assert_eq!(sources("k.py"), ["k.py:7", "k.py:11"]);
    assert_eq!(sources("k.cu"), ["k.cu:8", "k.cu:11"]);
}

#[test]
fn races_name_both_instructions_with_their_source_lines() {
    let body = ".loc 1 7 3\n st.shared.u32 [%r5], %r1;\n .loc 2 40 9, function_name $L__info, inlined_at 1 8 5\n @%p1 ld.shared.u32 %r7, [%r6];\n bar.sync 0;";
    for options in schedules(3) {
        let fault = first(body, 64, &options).expect("a race");
        let other = fault.other.clone().expect("both instructions");
        let mut sources =
            [fault.source.as_deref().expect("a line"), other.source.as_deref().expect("a line")];
        sources.sort_unstable();
        assert_eq!(sources, ["lib.cuh:40, inlined at sum.cu:8", "sum.cu:7"], "{fault}");
        let text = fault.to_string();
        assert!(
            text.contains("in kernel `sum(unsigned int*)`") && text.contains("the other access is line"),
            "{text}"
        );
    }
    // Readers that a cell lists, and the lanes of one warp.
    let many = "st.shared.u32 [%r5], %r1; bar.sync 0; ld.shared.u32 %r7, [sm]; @%p1 st.shared.u32 [sm], %r7;";
    let lanes = "st.shared.u32 [%r5], %r1; xor.b32 %r8, %r5, 4; ld.shared.u32 %r7, [%r8];";
    for (body, earlier) in [(many, "ld.shared.u32 %r7, [sm];"), (lanes, "st.shared.u32 [%r5], %r1;")] {
        let fault = first(body, 128, &Options::default()).expect("a race");
        assert_eq!(fault.other.expect("both").text, earlier.into());
    }
}

/// numba's tags say how it has compiled a function; tags of C++ are a part of the name.
#[test]
fn names_are_shown_without_the_tags_of_numba() {
    let long = "cw51cXTLSUwv1sDUaKthqaNgoKmjgMVuW1AiA8rAEg2UjxRKtuAIAMYDWpKAqkSkPiQB1BQFk0DyoW21Oizc1a0UoPGnDpQE8oxrNQE_3d";
    let tagged = format!("_ZN8__main__5scaleB2v1B{}{long}E5ArrayIfLi1E1C7mutable7alignedEx", long.len());
    assert_eq!(demangled(&tagged), "__main__::scale(Array<float, 1, C, mutable, aligned>, long long)");
    assert_eq!(demangled("_Z4nameB5cxx11i"), "name[abi:cxx11](int)");
    assert_eq!(demangled("_Z1fB2v1i"), "f[abi:v1](int)");
    assert_eq!(demangled("plain"), "plain");
}

#[test]
fn equal_stores_can_be_let_pass() {
    let flag = "mov.u32 %r7, 1; st.global.u32 [%rd1], %r7; st.shared.u32 [sm], %r7;";
    let mixed = "shr.u32 %r7, %r1, 5; st.global.u32 [%rd1], %r7;";
    let quiet = Options { equal_stores: false, ..Options::default() };
    assert_eq!(first(flag, 64, &Options::default()).map(|f| f.kind), Some(FaultKind::GlobalRace));
    assert_eq!(first(flag, 64, &quiet), None);
    assert_eq!(first(mixed, 64, &quiet).map(|f| f.kind), Some(FaultKind::GlobalRace));
    // Two warps that store one tile.
    let tile = "mov.b32 %r7, 0x3c003c00; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {%r7};";
    let tile = format!("and.b32 %r8, %r1, 7; shl.b32 %r8, %r8, 4; add.s32 %r8, %r8, %r3; {tile}");
    assert_eq!(first(&tile, 64, &Options::default()).map(|f| f.kind), Some(FaultKind::SharedRace));
    assert_eq!(first(&tile, 64, &quiet), None);
    // A reader in another warp races with a store all the same.
    let read = "setp.ge.u32 %p2, %r1, 32; @%p2 bra X; mov.u32 %r7, 1; st.global.u32 [%rd1], %r7; ret; X: ld.global.u32 %r7, [%rd1];";
    assert_eq!(first(read, 64, &quiet).map(|f| f.kind), Some(FaultKind::GlobalRace));
}

#[test]
fn a_launch_goes_on_and_reports_every_distinct_fault() {
    let body = "ld.global.u32 %r7, [%rd3+4096]; st.global.u32 [%rd3+4096], %r1; ld.global.u32 %r8, [%rd1+2];
        ld.shared.u32 %r9, [%r6]; shr.u32 %r10, %r1, 5; st.global.u32 [%rd1], %r10; bar.sync 0; st.global.u32 [%rd3+512], %r7; @%p1 trap;";
    let many = Options { faults: 100, ..Options::default() };
    let faults = all(body, 64, &many);
    let kinds: Vec<FaultKind> = faults.iter().map(|f| f.kind).collect();
    use FaultKind::*;
    assert_eq!(kinds, [OutOfBounds, OutOfBounds, Misaligned, Uninitialised, GlobalRace, Trap], "{faults:?}");
    assert_eq!(all(body, 64, &Options { faults: 2, ..many }).len(), 2);
    assert_eq!(all(body, 64, &Options { faults: 1, ..many }).len(), 1);
    // What a bad address gives is zero, and what is right takes place.
    let (mut bench, launch) =
        prepared("ld.global.u32 %r7, [%rd3+4096]; add.u32 %r7, %r7, 5; st.global.u32 [%rd3], %r7;", 64);
    let outcome = launch_all(&bench.instance, "_Z3sumPj", &launch, &mut bench.memory, &many);
    assert_eq!(outcome.expect_err("out of bounds").len(), 1, "one instruction, one fault");
    let a = u64::from_le_bytes(launch.params[..8].try_into().expect("an address"));
    assert_eq!(bench.download::<u32>(a, 64), [5; 64]);
}

#[test]
fn what_a_launch_touched_is_reported_with_its_instructions() {
    let body =
        "ld.global.u32 %r7, [%rd3]; @%p1 red.global.add.u32 [%rd1+1000], 1; st.global.u32 [%rd3+512], %r7;";
    for threads in [1, 4] {
        let (mut bench, launch) = prepared(body, 64);
        let options = Options { track_accesses: true, threads, ..Options::default() };
        let report = bench.run("_Z3sumPj", &launch, &options).expect("no fault");
        let a = u64::from_le_bytes(launch.params[..8].try_into().expect("an address"));
        let got: Vec<(u64, u64, bool, bool, &str)> = report
            .accesses
            .iter()
            .map(|Touched { range, write, strong, by, late }| {
                assert!(*late, "the launch releases nothing");
                (range.start - a, range.end - a, *write, *strong, &by.as_ref().expect("known").text[..])
            })
            .collect();
        assert_eq!(
            got,
            [
                (0, 256, false, false, "ld.global.u32 %r7, [%rd3];"),
                (512, 768, true, false, "st.global.u32 [%rd3+512], %r7;"),
                (1000, 1004, true, true, "@%p1 red.global.add.u32 [%rd1+1000], 1;"),
            ]
        );
    }
}

#[test]
fn what_ptxas_accepts() {
    let mut bench = Bench::new(&module(
        ".visible.entry k(.param.u64 a) { .reg.b32 %r<3>; .reg.b64 %rd<3>; .shared.align 4 .b8 s[4];
         ld.param.b64 {%rd1}, [a]; ld.global.b32 {%r1}, [%rd1]; add.s32 %r1, %r1, 1; st.shared.b32 [s], {%r1};
         ld.shared.b32 { %r2 }, [s]; st.global.b32 [%rd1], {%r2}; ret; }",
    ));
    let a = bench.upload(&[41u32]);
    let launch = bench.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
    bench.run("k", &launch, &Options::default()).expect("right");
    assert_eq!(bench.download::<u32>(a, 1), [42]);
}
