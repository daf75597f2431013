//! Polls with a barrier of the block in each turn: they let others run, are found where nothing comes, and
//! are no fault where they end.

use std::sync::Arc;

use ptx_vm::{Company, FaultKind, Options, Standing, Step};

use crate::harness::{Arg, Bench, module, schedules};

/// Kernels `name(word, out)`: `%rd1` is a word, `%rd2` the place of the block's own number, `%r1` the thread,
/// `%r2` the block; `%p1` holds for thread 0.
fn text(name: &str, body: &str) -> String {
    module(&format!(
        ".visible .entry {name}(.param .u64 word, .param .u64 out) {{
         .reg .pred %p<6>; .reg .b32 %r<10>; .reg .b64 %rd<4>; .shared .align 4 .b32 seen;
         ld.param.u64 %rd1, [word]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
         mul.wide.u32 %rd3, %r2, 4; add.s64 %rd2, %rd2, %rd3; setp.eq.u32 %p1, %r1, 0; mov.u32 %r3, 0;
         {body} ret; }}"
    ))
}

fn bench(text: &str, blocks: u32) -> (Bench, u64, u64) {
    let mut bench = Bench::new(text);
    let (word, out) = (bench.upload(&[0u32]), bench.upload(&vec![0u32; blocks as usize]));
    (bench, word, out)
}

/// How a loop waits until `%r3` is the number of the block, which is what `word` has to hold.
const POLLS: [(&str, &str); 3] = [
    // Thread 0 looks, and all of the block vote.
    (
        "vote",
        "mov.u32 %r3, %r2;
         L: @%p1 ld.acquire.gpu.global.u32 %r3, [%rd1]; setp.ne.u32 %p2, %r3, %r2; bar.red.or.pred %p3, 0, %p2;
         bar.sync 0; @%p3 bra L;",
    ),
    // Thread 0 looks and leaves what it has found in shared memory.
    (
        "shared",
        "L: @!%p1 bra M; ld.acquire.gpu.global.u32 %r3, [%rd1]; st.shared.u32 [seen], %r3;
         M: bar.sync 0; ld.shared.u32 %r3, [seen]; bar.sync 0; setp.ne.u32 %p2, %r3, %r2; @%p2 bra L;",
    ),
    // The same, at a barrier of the cluster.
    (
        "cluster",
        "L: @!%p1 bra M; ld.acquire.gpu.global.u32 %r3, [%rd1]; st.shared.u32 [seen], %r3;
         M: barrier.cluster.arrive; barrier.cluster.wait; ld.shared.u32 %r3, [seen];
         barrier.cluster.arrive; barrier.cluster.wait; setp.ne.u32 %p2, %r3, %r2; @%p2 bra L;",
    ),
];

/// A semaphore that lets blocks pass one after the other, whichever of them the schedule begins with.
#[test]
fn blocks_that_wait_for_blocks_which_have_not_begun_let_them_begin() {
    for (name, poll) in POLLS {
        let body = format!(
            "{poll} @!%p1 bra END; st.global.u32 [%rd2], %r2; add.u32 %r4, %r2, 1;
             st.release.gpu.global.u32 [%rd1], %r4; END:"
        );
        for options in schedules(3) {
            let (mut bench, word, out) = bench(&text(name, &body), 5);
            let launch = bench.launch(name, [5, 1, 1], [96, 1, 1], &[Arg::U64(word), Arg::U64(out)]);
            let options = Options { budget: 1_000_000, ..options };
            bench.run(name, &launch, &options).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert_eq!(bench.download::<u32>(out, 5), [0, 1, 2, 3, 4], "{name}");
        }
    }
}

/// The poll for a number that is not that of the first block: it waits until somebody writes 7.
fn for_seven(poll: &str) -> String {
    let body = poll.replace("mov.u32 %r3, %r2;", "mov.u32 %r3, 7;");
    format!("{} @%p1 st.global.u32 [%rd2], %r3;", body.replace("%r3, %r2", "%r3, 7"))
}

#[test]
fn a_flag_that_nothing_raises_is_found_long_before_the_budget() {
    // With a pause, so that the limit comes soon.
    let pause =
        "mov.u32 %r5, 0; N: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 1000; @%p2 bra N; setp.ne.u32 %p2";
    let body = for_seven(POLLS[0].1).replace("setp.ne.u32 %p2", pause);
    let (mut bench, word, out) = bench(&text("vain", &body), 1);
    let launch = bench.launch("vain", [1; 3], [64, 1, 1], &[Arg::U64(word), Arg::U64(out)]);
    let fault = bench.run("vain", &launch, &Options::default()).unwrap_err();
    assert!(fault.kind == FaultKind::Budget && fault.to_string().contains("that never comes"), "{fault}");
}

/// In a company the launch waits, and goes on when the flag is there.
#[test]
fn a_launch_that_polls_between_barriers_waits_for_another_one() {
    for (name, poll) in POLLS {
        for options in schedules(2) {
            let (bench, word, out) = bench(&text(name, &for_seven(poll)), 1);
            let launch = bench.launch(name, [1; 3], [96, 1, 1], &[Arg::U64(word), Arg::U64(out)]);
            let (mut company, standing) = (Company::default(), Standing::default());
            let Bench { mut memory, instance } = bench;
            let waits = |step: Step| match step {
                Step::Aside(aside) => aside,
                Step::Ended { outcome, .. } => panic!("{name} does not wait: {outcome:?}"),
            };
            let instance = Arc::new(instance);
            let aside = waits(company.begin(&instance, name, launch, standing, &mut memory, &options));
            let aside = waits(company.resume(aside, &mut memory));
            let why = aside.why().unwrap().to_string();
            assert!(!aside.moved() && why.starts_with("Deadlock in kernel"), "{name}: {why}");
            assert!(why.contains(&format!("looking at {word:#x}")), "{name}: {why}");
            memory.write(word, &[7]).unwrap();
            let Step::Ended { outcome, .. } = company.resume(aside, &mut memory) else { panic!("{name}") };
            outcome.unwrap();
            let mut seven = [0; 4];
            memory.read(out, &mut seven).unwrap();
            assert_eq!(seven, [7, 0, 0, 0], "{name}");
        }
    }
}

/// Looks in vain with barriers between them, and then 12 million instructions with barriers and no look.
#[test]
fn what_ends_by_itself_is_no_fault() {
    let body = "
         L: @%p1 ld.volatile.global.u32 %r4, [%rd1]; bar.sync 0; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 5000;
         @%p2 bra L; mov.u32 %r3, 0;
         M: mov.u32 %r5, 0; bar.sync 0;
         N: add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 2000; @%p2 bra N;
         add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 1000; @%p2 bra M;
         @%p1 st.global.u32 [%rd2], %r3;";
    let (mut bench, word, out) = bench(&text("ends", body), 1);
    let launch = bench.launch("ends", [1; 3], [64, 1, 1], &[Arg::U64(word), Arg::U64(out)]);
    let report = bench.run("ends", &launch, &Options::default()).unwrap();
    assert!(report.instructions > ptx_vm::QUIET);
    assert_eq!(bench.download::<u32>(out, 1), [1000]);
}
