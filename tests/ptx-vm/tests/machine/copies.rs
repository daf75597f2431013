//! cp.async, mbarriers, bulk copies, clusters, named barriers: the ways data and order travel, used
//! correctly.

use crate::harness::{Arg, Bench, module, schedules};
use ptx_vm::Launch;

/// Runs a text over 64 input words (their own index times 3) in one block of 64 threads, and gives 64 output
/// words.
fn run(text: &str, cluster: u32) -> Vec<Vec<u32>> {
    let ptx = module(&format!(
        ".visible .entry k(.param .u64 in, .param .u64 out) {{
           .reg .b16 %h<4>; .reg .b32 %r<30>; .reg .b64 %rd<20>; .reg .pred %p<9>;
           .shared .align 128 .b8 sm[2048]; .shared .align 8 .b8 mb[32];
           ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
           mad.lo.s32 %r0, %r2, 64, %r1; mul.wide.u32 %rd3, %r0, 4; mul.wide.u32 %rd9, %r1, 4; add.s64 %rd4, %rd1, %rd9; add.s64 %rd5, %rd2, %rd3;
           mov.u32 %r3, sm; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4; mov.u32 %r6, mb;
           mov.u32 %r7, 63; sub.s32 %r7, %r7, %r1; shl.b32 %r7, %r7, 2; add.s32 %r7, %r7, %r3;
           setp.eq.u32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 32; mov.u32 %r20, 0;
           {text}
           st.global.u32 [%rd5], %r20; ret; }}"
    ));
    let mut all = Vec::new();
    for options in schedules(4) {
        let mut b = Bench::new(&ptx);
        let data: Vec<u32> = (0..64).map(|i| i * 3).collect();
        let (from, to) = (b.upload(&data), b.empty(256 * cluster as usize));
        let launch = Launch {
            cluster: [cluster, 1, 1],
            ..b.launch("k", [cluster, 1, 1], [64, 1, 1], &[Arg::U64(from), Arg::U64(to)])
        };
        b.run("k", &launch, &options).unwrap_or_else(|e| panic!("{text}\n{e}"));
        all.push(b.download(to, 64 * cluster as usize));
    }
    all
}

fn each(text: &str, want: impl Fn(u32) -> u32) {
    for got in run(text, 1) {
        assert_eq!(got, (0..64).map(&want).collect::<Vec<_>>(), "{text}");
    }
}

const WAIT: &str = "L: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], 0; @!%p3 bra L;";

#[test]
fn cp_async_in_its_variants() {
    let back = "bar.sync 0; ld.shared.u32 %r20, [%r7];";
    let reversed = |t: u32| (63 - t) * 3;
    each(
        &format!(
            "cp.async.ca.shared.global [%r5], [%rd4], 4; cp.async.commit_group; cp.async.wait_group 0; {back}"
        ),
        reversed,
    );
    each(
        &format!("cp.async.ca.shared::cta.global.L2::128B [%r5], [%rd4], 4; cp.async.wait_all; {back}"),
        reversed,
    );
    each(
        "cp.async.ca.shared.global [%r5], [%rd4], 4, 0; cp.async.wait_all; ld.shared.u32 %r20, [%r5];",
        |_| 0,
    );
    each(
        "cp.async.ca.shared.global [%r5], [%rd4], 4, %p1; cp.async.wait_all; ld.shared.u32 %r20, [%r5];",
        |t| if t == 0 { 0 } else { t * 3 },
    );
    each("shl.b32 %r8, %r1, 4; add.s32 %r8, %r8, %r3; and.b32 %r9, %r1, 15; mul.wide.u32 %rd6, %r9, 16; add.s64 %rd6, %rd1, %rd6;
          cp.async.cg.shared.global [%r8], [%rd6], 16, 8; cp.async.wait_all; ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r8]; add.s32 %r20, %r11, %r13;",
        |t| (t % 16 * 4 + 1) * 3);
    // Two groups: the older is there after wait_group 1.
    each("cp.async.ca.shared.global [%r5], [%rd4], 4; cp.async.commit_group; cp.async.ca.shared.global [%r5+1024], [%rd4], 4; cp.async.commit_group;
          cp.async.wait_group 1; ld.shared.u32 %r10, [%r5]; cp.async.wait_group 0; ld.shared.u32 %r11, [%r5+1024]; add.s32 %r20, %r10, %r11;", |t| t * 6);
    // Completion through an mbarrier, with and without an arrival of its own.
    each(
        &format!(
            "@%p1 mbarrier.init.shared.b64 [%r6], 64; bar.sync 0; cp.async.ca.shared.global [%r5], [%rd4], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r6]; {WAIT} ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
    each(
        &format!(
            "@%p1 mbarrier.init.shared.b64 [%r6], 64; bar.sync 0; cp.async.ca.shared.global [%r5], [%rd4], 4; cp.async.mbarrier.arrive.shared.b64 [%r6]; mbarrier.arrive.shared.b64 _, [%r6]; {WAIT} ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
}

#[test]
fn mbarrier_variants() {
    let reversed = |t: u32| 63 - t;
    let start = "@%p1 mbarrier.init.shared::cta.b64 [%r6], 64; bar.sync 0; st.shared.u32 [%r5], %r1;";
    each(
        &format!(
            "{start} mbarrier.arrive.shared::cta.b64 %rd6, [%r6]; L: mbarrier.test_wait.shared::cta.b64 %p3, [%r6], %rd6; @!%p3 bra L; ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
    each(
        &format!(
            "{start} mbarrier.arrive.release.cta.shared::cta.b64 %rd6, [%r6]; L: mbarrier.try_wait.acquire.cta.shared::cta.b64 %p3, [%r6], %rd6, 1000; @!%p3 bra L; ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
    each(
        &format!(
            "{start} mbarrier.arrive.shared.b64 _, [%r6], 1; L: mbarrier.test_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L; ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
    each(
        &format!(
            "{start} cvta.shared.u64 %rd7, %rd6; mov.u64 %rd6, mb; cvta.shared.u64 %rd7, %rd6; mbarrier.arrive.b64 _, [%rd7]; {WAIT} ld.shared.u32 %r20, [%r7];"
        ),
        reversed,
    );
    // Half of the threads drop out: the second phase needs 32 arrivals.
    each(&format!("{start} @%p2 mbarrier.arrive_drop.shared.b64 _, [%r6]; @!%p2 mbarrier.arrive.shared.b64 _, [%r6]; {WAIT} bar.sync 0;
          @!%p2 mbarrier.arrive.shared.b64 _, [%r6]; M: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 1; @!%p3 bra M;
          ld.shared.u32 %r20, [%r7]; bar.sync 0; @%p1 mbarrier.inval.shared.b64 [%r6];"), reversed);
    each(
        "@%p1 mbarrier.init.shared.b64 [%r6], 2; bar.sync 0; @%p1 mbarrier.arrive.noComplete.shared.b64 %rd6, [%r6], 1; @%p1 mbarrier.pending_count.b64 %r20, %rd6; bar.sync 0;",
        |t| if t == 0 { 2 } else { 0 },
    );
    each("@%p1 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0; @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r6], 64; @%p1 mbarrier.arrive.shared.b64 _, [%r6];
          @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r6], 64; L: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra L; mov.u32 %r20, 1;", |_| 1);
}

#[test]
fn bulk_copies_both_ways() {
    let load = format!("@%p1 mbarrier.init.shared.b64 [%r6], 1; fence.mbarrier_init.release.cluster; bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256;
      @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 256, [%r6]; {WAIT}");
    each(&format!("{load} ld.shared.u32 %r20, [%r7];"), |t| (63 - t) * 3);
    let two = "@%p1 mbarrier.init.shared.b64 [%r6], 1; fence.proxy.async.shared::cta; bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256;
      @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 128, [%r6];
      @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r3+128], [%rd1+128], 128, [%r6], %rd9;";
    each(&format!("{two} {WAIT} ld.shared.u32 %r20, [%r7];"), |t| (63 - t) * 3);
    // Out by a bulk store, read back by the same thread after the full wait.
    each("st.shared.u32 [%r5], %r1; fence.proxy.async.shared::cta; bar.sync 0;
      @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r3], 256; @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; bar.sync 0; ld.global.u32 %r20, [%rd5]; add.s32 %r20, %r20, 1; bar.sync 0;",
      |t| t + 1);
    // The reducing store adds to what is there.
    each("st.global.u32 [%rd5], %r1; st.shared.u32 [%r5], 1000; fence.proxy.async; bar.sync 0;
      @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd2], [%r3], 256; @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group.read 0; @%p1 cp.async.bulk.wait_group 0; bar.sync 0; ld.global.u32 %r20, [%rd5]; bar.sync 0;",
      |t| t + 1000);
}

#[test]
fn named_barriers_and_reductions() {
    // Warp 0 produces, warp 1 consumes; then the other way, with bar.arrive.
    each("@!%p2 bra C; st.shared.u32 [%r5], %r1; bar.arrive 1, 64; bar.sync 2, 64; ld.shared.u32 %r20, [%r7]; bra D;
          C: st.shared.u32 [%r5], %r1; bar.arrive 2, 64; bar.sync 1, 64; ld.shared.u32 %r20, [%r7]; D: bar.sync 0;", |t| 63 - t);
    each(
        "barrier.sync 3; barrier.cta.sync 4, 64; setp.lt.u32 %p4, %r1, 40; bar.red.popc.u32 %r20, 0, %p4;",
        |_| 40,
    );
    each(
        "setp.lt.u32 %p4, %r1, 40; barrier.cta.red.and.aligned.pred %p5, 0, %p4; barrier.red.or.pred %p6, 1, 64, %p4; selp.u32 %r20, 1, 0, %p5; selp.u32 %r21, 2, 0, %p6; add.s32 %r20, %r20, %r21;",
        |_| 2,
    );
}

#[test]
fn clusters_share_memory() {
    let sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let other = "mov.u32 %r8, %cluster_ctarank; xor.b32 %r9, %r8, 1;";
    // Read the other block's words; write, add, and arrive remotely.
    let read = format!(
        "st.shared.u32 [%r5], %r0; {sync} {other} mapa.shared::cluster.u32 %r10, %r7, %r9; ld.shared::cluster.u32 %r20, [%r10]; {sync}"
    );
    for got in run(&read, 2) {
        assert_eq!(got, (0..128u32).map(|t| (1 - t / 64) * 64 + 63 - t % 64).collect::<Vec<_>>());
    }
    let generic = format!(
        "st.shared.u32 [%r5], %r0; {sync} {other} cvt.u64.u32 %rd6, %r7; cvta.shared.u64 %rd6, %rd6; mapa.u64 %rd7, %rd6, %r9; ld.u32 %r20, [%rd7]; getctarank.u64 %r11, %rd7; add.s32 %r20, %r20, %r11; {sync}"
    );
    for got in run(&generic, 2) {
        assert_eq!(
            got,
            (0..128u32).map(|t| (1 - t / 64) * 64 + 63 - t % 64 + 1 - t / 64).collect::<Vec<_>>()
        );
    }
    let remote = format!("st.shared.u32 [%r5], 5; @%p1 mbarrier.init.shared.b64 [%r6], 64; {sync} {other}
      mapa.shared::cluster.u32 %r10, %r5, %r9; mapa.shared::cluster.u32 %r12, %r6, %r9; atom.shared::cluster.add.u32 %r11, [%r10], %r0;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12]; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r6], 0; @!%p3 bra L; ld.shared.u32 %r20, [%r5]; {sync}");
    for got in run(&remote, 2) {
        assert_eq!(got, (0..128u32).map(|t| 5 + (1 - t / 64) * 64 + t % 64).collect::<Vec<_>>());
    }
    // One block loads for both.
    let multicast = format!("@%p1 mbarrier.init.shared.b64 [%r6], 1; fence.mbarrier_init.release.cluster; {sync} @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256; {sync} {other}
      setp.eq.u32 %p5, %r0, 0; mov.u16 %h1, 3; @%p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%rd1], 256, [%r6], %h1;
      {WAIT} ld.shared.u32 %r20, [%r7]; {sync}");
    for got in run(&multicast, 2) {
        assert_eq!(got, (0..128u32).map(|t| (63 - t % 64) * 3).collect::<Vec<_>>());
    }
    // From shared memory to shared memory.
    let across = format!("st.shared.u32 [%r5], %r0; @%p1 mbarrier.init.shared.b64 [%r6], 1; fence.proxy.async; {sync} {other} @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 256; {sync}
      add.s32 %r13, %r3, 1024; mapa.shared::cluster.u32 %r10, %r13, %r9; mapa.shared::cluster.u32 %r12, %r6, %r9;
      @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10], [%r3], 256, [%r12]; {WAIT} ld.shared.u32 %r20, [%r5+1024]; {sync}");
    for got in run(&across, 2) {
        assert_eq!(got, (0..128u32).map(|t| (1 - t / 64) * 64 + t % 64).collect::<Vec<_>>());
    }
}
