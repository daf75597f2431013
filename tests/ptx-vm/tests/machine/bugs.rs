//! Planted bugs: each must be reported under every schedule, and by its name.

use ptx_vm::{Fault, FaultKind, Options};

use crate::harness::{Arg, Bench, module, schedules};
use crate::kernels;

macro_rules! ptx {
    ($name:literal) => {
        include_str!(concat!("../ptx/", $name, ".ptx"))
    };
}

/// Runs under forward, reverse and random schedules; each must fail with one of the kinds.
fn caught(what: &str, kinds: &[FaultKind], run: impl Fn(&Options) -> Result<(), Fault>) {
    for options in schedules(4) {
        match run(&options) {
            Ok(()) => panic!("{what} was not found under {:?}", options.schedule),
            Err(fault) => {
                assert!(kinds.contains(&fault.kind), "{what} under {:?}: {fault}", options.schedule);
                assert!(fault.line > 0, "{what}: {fault}");
            }
        }
    }
}

/// A run whose numbers are wrong counts as found; its fault would be none.
fn wrong(what: &str, run: impl Fn(&Options) -> Result<bool, Fault>) {
    for options in schedules(2) {
        match run(&options) {
            Ok(right) => assert!(!right, "{what} gives right numbers under {:?}", options.schedule),
            Err(fault) => panic!("{what} under {:?}: {fault}", options.schedule),
        }
    }
}

const RACE: &[FaultKind] = &[FaultKind::SharedRace, FaultKind::Uninitialised, FaultKind::MissingWait];

#[test]
fn the_thirteen_of_the_feasibility_study() {
    let shape = (64, 64, 128);
    let gemm = |text: &'static str| move |o: &Options| kernels::gemm(text, shape, o).map(|_| ());
    caught("gemm without the trailing barrier", RACE, gemm(ptx!("gemm.no_barrier_after")));
    caught("gemm without the barrier before ldmatrix", RACE, gemm(ptx!("gemm.no_barrier_before")));
    caught("cp.async.wait_group too weak", &[FaultKind::MissingWait], gemm(ptx!("gemm.weak_wait")));
    caught("gemm without a row guard", &[FaultKind::OutOfBounds], |o| {
        kernels::gemm(ptx!("gemm.no_guard"), (60, 64, 64), o).map(|_| ())
    });
    wrong("swapped halves of the B fragment", |o| kernels::gemm(ptx!("gemm.swapped"), shape, o));
    caught("rmsnorm without its first barrier", RACE, |o| kernels::rmsnorm(ptx!("rmsnorm.no_barrier"), o));
    caught("a loop that runs one too far", &[FaultKind::OutOfBounds], |o| {
        kernels::rmsnorm(ptx!("rmsnorm.off_by_one"), o)
    });
    caught("a shuffle under a divergent branch", &[FaultKind::Divergence], |o| {
        kernels::rmsnorm(ptx!("rmsnorm.divergent"), o)
    });
    let shape = (64, 64, 256);
    let wgmma = |text: &'static str| move |o: &Options| kernels::wgmma(text, shape, o).map(|_| ());
    caught(
        "expect_tx too small",
        &[FaultKind::Uninitialised, FaultKind::MissingWait, FaultKind::Deadlock, FaultKind::Barrier],
        wgmma(ptx!("wgmma.short_expect")),
    );
    caught(
        "the wrong mbarrier phase",
        &[FaultKind::Uninitialised, FaultKind::Deadlock, FaultKind::MissingWait, FaultKind::SharedRace],
        wgmma(ptx!("wgmma.wrong_parity")),
    );
    caught(
        "no wait for the mbarrier",
        &[FaultKind::Uninitialised, FaultKind::MissingWait, FaultKind::SharedRace],
        wgmma(ptx!("wgmma.no_wait")),
    );
    caught("no wait for wgmma", &[FaultKind::MissingWait], wgmma(ptx!("wgmma.no_wgmma_wait")));
    wrong("a wrong descriptor step", |o| kernels::wgmma(ptx!("wgmma.wrong_step"), shape, o));
}

#[test]
fn between_blocks_and_in_clusters() {
    caught("a stencil without a grid barrier", &[FaultKind::GlobalRace], |o| {
        kernels::stencil(ptx!("grid.no_grid_sync"), o, true)
    });
    caught("a grid barrier without a fence", &[FaultKind::GlobalRace], |o| {
        kernels::stencil(ptx!("grid.no_fence"), o, true)
    });
    caught("a last block without a fence", &[FaultKind::GlobalRace], |o| {
        kernels::last_block(ptx!("grid.no_fence"), o)
    });
    caught(
        "a block that leaves before others have read its memory",
        &[FaultKind::OutOfBounds, FaultKind::SharedRace],
        |o| kernels::cluster_sum(ptx!("cluster.no_last_sync"), o),
    );
    caught(
        "a producer that does not wait for free stages",
        &[FaultKind::Barrier, FaultKind::MissingWait, FaultKind::SharedRace],
        |o| kernels::pipeline(ptx!("cluster.no_free_wait"), o),
    );
}

/// A text with a mistake, in blocks of 64 threads over 64 words of memory.
fn text(body: &str, kinds: &[FaultKind]) {
    caught(body, kinds, |options| run_text(body, options));
}

fn run_text(body: &str, options: &Options) -> Result<(), Fault> {
    let ptx = module(&format!(
        ".visible .entry k(.param .u64 a) {{
           .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>; .reg .f32 %f<9>;
           .shared .align 128 .b8 sm[2048]; .shared .align 8 .b8 mb[16];
           ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
           mov.u64 %rd4, sm; cvt.u32.u64 %r3, %rd4; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4; mov.u64 %rd5, mb; cvt.u32.u64 %r6, %rd5;
           setp.eq.u32 %p1, %r1, 0; mov.u32 %r10, %laneid; setp.eq.u32 %p2, %r10, 0; mov.u32 %r7, 63; sub.s32 %r7, %r7, %r1; shl.b32 %r7, %r7, 2; add.s32 %r7, %r7, %r3;
           {body}
           ret; }}"
    ));
    let mut b = Bench::new(&ptx);
    let a = b.upload(&[0u32; 1024]);
    let launch = b.launch("k", [2, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
    // The budget ends the one case that spins.
    b.run("k", &launch, &Options { budget: 300_000, ..*options }).map(|_| ())
}

/// The same without a mistake.
fn right(body: &str) {
    for options in schedules(4) {
        run_text(body, &options).unwrap_or_else(|fault| panic!("{body}\n{fault}"));
    }
}

#[test]
fn small_mistakes() {
    use FaultKind::*;
    let race: &[FaultKind] = &[SharedRace, Uninitialised];
    // Shared memory.
    text("st.shared.u32 [%r5], %r1; ld.shared.u32 %r2, [%r7];", race);
    text("st.shared.u32 [%r5], %r1; bar.warp.sync -1; ld.shared.u32 %r2, [%r7];", race);
    text(
        "st.shared.u32 [%r5], %r1; bar.sync 0; ld.shared.u32 %r2, [%r7]; st.shared.u32 [%r5], %r2;",
        &[SharedRace],
    );
    text("@%p2 st.shared.u32 [sm], %r1;", &[SharedRace]);
    text(
        "@%p1 st.shared.u32 [sm], %r1; bar.sync 0; atom.shared.add.u32 %r2, [sm], 1; ld.shared.u32 %r2, [sm];",
        &[SharedRace],
    );
    // A warp that reads its neighbour lane's word without __syncwarp.
    text("st.shared.u32 [%r5], %r1; xor.b32 %r8, %r5, 4; ld.shared.u32 %r2, [%r8];", race);
    // ldmatrix right after the lanes' stores.
    text(
        "shl.b32 %r8, %r1, 4; add.s32 %r8, %r8, %r3; st.shared.v4.u32 [%r8], {%r1, %r1, %r1, %r1}; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r11, %r12, %r13, %r14}, [%r8];",
        race,
    );
    // Global memory.
    text("st.global.u32 [%rd3], %r1;", &[GlobalRace]);
    text("@%p1 st.global.u32 [%rd1], %r1;", &[GlobalRace]);
    text("ld.global.u32 %r2, [%rd1]; @%p1 st.global.u32 [%rd1], %r1;", &[GlobalRace]);
    text("@%p1 red.global.add.u32 [%rd1], 1; ld.global.u32 %r2, [%rd1];", &[GlobalRace]);
    // cp.async.
    text(
        "cp.async.ca.shared.global [%r5], [%rd3], 4; cp.async.commit_group; ld.shared.u32 %r2, [%r5];",
        &[MissingWait],
    );
    text(
        "cp.async.ca.shared.global [%r5], [%rd3], 4; cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r2, [%r5];",
        &[MissingWait],
    );
    text(
        "cp.async.ca.shared.global [%r5], [%rd3], 4; cp.async.commit_group; cp.async.wait_group 0; ld.shared.u32 %r2, [%r7];",
        &[SharedRace, MissingWait, Uninitialised],
    );
    text(
        "cp.async.ca.shared.global [%r5], [%rd3], 4; cp.async.wait_group 0; ld.shared.u32 %r2, [%r5];",
        &[MissingWait],
    );
    text("cp.async.cg.shared.global [%r5], [%rd3], 16;", &[Misaligned]);
    text("cp.async.ca.shared.global [%r5], [%rd3+8192], 4;", &[OutOfBounds]);
    // mbarriers.
    text("@%p1 mbarrier.arrive.shared.b64 _, [%r6];", &[Barrier, Uninitialised]);
    text("@%p1 mbarrier.init.shared.b64 [%r6], 0;", &[Barrier]);
    text(
        "@%p1 mbarrier.init.shared.b64 [%r6], 64; mbarrier.arrive.shared.b64 _, [%r6];",
        &[SharedRace, Barrier],
    );
    text(
        "@%p1 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0; L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L;",
        &[Deadlock],
    );
    text(
        "@%p1 mbarrier.init.shared.b64 [%r6], 65; bar.sync 0; mbarrier.arrive.shared.b64 _, [%r6]; L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L;",
        &[Deadlock],
    );
    text("@%p1 mbarrier.init.shared.b64 [%r6], 64; bar.sync 0; @%p1 st.shared.u64 [mb], %rd1;", &[Barrier]);
    // Bulk copies.
    let init = "@%p1 mbarrier.init.shared.b64 [%r6], 1; fence.mbarrier_init.release.cluster;";
    let bulk = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 256, [%r6];";
    text(
        &format!(
            "{init} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256; @%p1 {bulk} bar.sync 0; ld.shared.u32 %r2, [%r5];"
        ),
        &[MissingWait],
    );
    text(
        &format!(
            "{init} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 128; @%p1 {bulk} L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L; ld.shared.u32 %r2, [%r5];"
        ),
        &[MissingWait, Deadlock],
    );
    text(
        &format!(
            "{init} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 512; @%p1 {bulk} L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L;"
        ),
        &[Deadlock],
    );
    text(
        &format!("{init} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256; @%p1 {bulk}"),
        &[MissingWait],
    );
    text(
        "st.shared.u32 [%r5], %r1; fence.proxy.async.shared::cta; bar.sync 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 256; @%p1 cp.async.bulk.commit_group;",
        &[MissingWait],
    );
    text(
        "st.shared.u32 [%r5], %r1; fence.proxy.async.shared::cta; bar.sync 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r3], 256; @%p1 cp.async.bulk.commit_group; bar.sync 0; st.shared.u32 [%r5], %r1;",
        &[MissingWait],
    );
    // Barriers.
    text("setp.lt.u32 %p3, %r1, 32; @%p3 bra X; bar.sync 1, 64; X: bar.sync 0;", &[Deadlock]);
    text("setp.lt.u32 %p3, %r1, 32; @%p3 bra X; bar.sync 1; bra Y; X: bar.sync 2; Y:", &[Deadlock]);
    text("bar.sync 1, 33;", &[Barrier]);
    text("mov.u32 %r8, %laneid; shr.u32 %r8, %r8, 4; bar.sync %r8;", &[Divergence]);
    // Ends.
    text("trap;", &[Trap]);
    text("L: ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p3, %r2, 0; @%p3 bra L;", &[Budget]);
}

/// Bulk copies of what plain stores wrote, and to mbarriers, each without the fence that shows it to them.
#[test]
fn fences_between_proxies_and_bulk_copies() {
    use FaultKind::MissingFence;
    let init = "@%p1 mbarrier.init.shared.b64 [%r6], 1;";
    let own = "mov.u32 %r8, %ctaid.x; mul.wide.u32 %rd6, %r8, 1024; add.s64 %rd3, %rd3, %rd6; add.s64 %rd7, %rd1, %rd6;";
    let load = "bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256;
       @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd7], 256, [%r6];
       L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L;";
    let done = "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;";
    let store =
        format!("bar.sync 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd7], [%r3], 256; {done}");
    let add = format!(
        "bar.sync 0; @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd7], [%r3], 256; {done}"
    );
    // An mbarrier that was initialised.
    for fence in
        ["fence.mbarrier_init.release.cluster;", "fence.proxy.async.shared::cta;", "fence.proxy.async;"]
    {
        right(&format!("{own} {init} {fence} {load}"));
    }
    for fence in ["", "fence.proxy.async.global;", "fence.acq_rel.gpu;"] {
        text(&format!("{own} {init} {fence} {load}"), &[MissingFence]);
    }
    // Another warp's fence of this kind is about its own.
    let other = "setp.ge.u32 %p4, %r1, 32; @%p4 fence.mbarrier_init.release.cluster;";
    text(&format!("{own} {init} {other} {load}"), &[MissingFence]);
    // Shared memory that is stored by a bulk copy.
    right(&format!("{own} st.shared.u32 [%r5], %r1; fence.proxy.async.shared::cta; {store}"));
    for fence in ["", "fence.proxy.async.global;", "fence.mbarrier_init.release.cluster;"] {
        text(&format!("{own} st.shared.u32 [%r5], %r1; {fence} {store}"), &[MissingFence]);
    }
    // Global memory that is loaded, or added to, by one.
    let init =
        format!("{own} {init} fence.mbarrier_init.release.cluster; st.shared.u32 [%r5], %r1; bar.sync 0;");
    for fence in ["fence.proxy.async;", "fence.proxy.async.global;"] {
        right(&format!("{init} st.global.u32 [%rd3], %r1; {fence} {load}"));
        right(&format!("{init} st.global.u32 [%rd3], %r1; fence.proxy.async.shared::cta; {fence} {add}"));
    }
    for fence in ["", "fence.proxy.async.shared::cta;", "membar.gl;"] {
        text(&format!("{init} st.global.u32 [%rd3], %r1; {fence} {load}"), &[MissingFence]);
    }
    text(&format!("{init} st.global.u32 [%rd3], %r1; fence.proxy.async.shared::cta; {add}"), &[MissingFence]);
    // Bulk copies see each other.
    right(&format!("{init} fence.proxy.async.shared::cta; {store} fence.proxy.async; bar.sync 0; {load}"));
    right(&format!("{init} fence.proxy.async.shared::cta; {store} {load}"));
}

/// A matmul of a warpgroup: ones that threads stored, times ones; every sum is 16.
fn stored_mma(after_store: &str, after_barrier: &str, before_mma: &str) -> String {
    module(&format!(
        ".visible .entry k(.param .u64 a) {{
           .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .pred %p<3>; .reg .f32 %f<9>;
           .shared .align 128 .b8 sm[1024];
           ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
           mov.u64 %rd4, sm; cvt.u32.u64 %r3, %rd4; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4;
           mov.b32 %r6, 0x3f803f80; mov.b32 %r7, %r6; mov.b32 %r8, %r6; mov.b32 %r9, %r6;
           mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
           setp.ne.b32 %p1, %r6, 0;
           st.shared.u32 [%r5], %r6;
           {after_store}
           bar.sync 0;
           {after_barrier}
           cvt.u64.u32 %rd5, %r3; shr.u64 %rd5, %rd5, 4; or.b64 %rd5, %rd5, 0x1000080000;
           wgmma.fence.sync.aligned;
           {before_mma}
           wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f1,%f2,%f3,%f4}}, {{%r6,%r7,%r8,%r9}}, %rd5, %p1, 1, 1, 0;
           wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
           st.global.f32 [%rd3], %f1;
           ret; }}"
    ))
}

#[test]
fn fences_between_proxies_and_before_mma() {
    let fence = "fence.proxy.async.shared::cta;";
    let run = |text: &str, o: &Options| {
        let mut bench = Bench::new(text);
        let a = bench.upload(&[0f32; 128]);
        let launch = bench.launch("k", [1, 1, 1], [128, 1, 1], &[Arg::U64(a)]);
        bench.run("k", &launch, o)?;
        Ok(bench.download::<f32>(a, 128).iter().all(|v| *v == 16.0))
    };
    // By the writers before the barrier, or by the readers behind it.
    for text in [stored_mma(fence, "", ""), stored_mma("", fence, "")] {
        for options in schedules(4) {
            assert!(run(&text, &options).unwrap_or_else(|fault| panic!("{fault}")));
        }
    }
    let planted = [
        ("stores that a wgmma reads without a fence", stored_mma("", "", "")),
        ("a fence of another kind", stored_mma("fence.mbarrier_init.release.cluster;", "", "")),
        ("sums that are written behind the fence", stored_mma(fence, "", "mov.f32 %f2, 0f3f800000;")),
        ("an operand that is written behind the fence", stored_mma(fence, "", "add.s32 %r8, %r8, 0;")),
        ("no fence before the wgmma", stored_mma(fence, "", "").replace("wgmma.fence.sync.aligned;", "")),
        ("stores behind the fence", stored_mma(fence, "st.shared.u32 [%r5], %r6; bar.sync 0;", "")),
    ];
    for (what, text) in &planted {
        caught(what, &[FaultKind::MissingFence], |o| run(text, o).map(|_: bool| ()));
    }
    let gemm = |o: &Options| {
        let text = ptx!("wgmma").replace("wgmma.fence.sync.aligned;", "");
        kernels::wgmma(&text, (64, 64, 256), o).map(|_| ())
    };
    caught("a gemm without its wgmma.fence", &[FaultKind::MissingFence], gemm);
}
