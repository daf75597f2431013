//! Grids whose blocks wait for each other, as `cooperative_groups` compiles.

use ptx_vm::{Fault, FaultKind, Options};

use crate::harness::{Arg, Bench, schedules};

const PTX: &str = include_str!("../nvcc/cooperative.ptx");
const NO_SYNC: &str = include_str!("../nvcc/cooperative.no_sync.ptx");
const THREADS: usize = 4 * 48;
const STEPS: u32 = 5;

fn steps(ptx: &str, cooperative: bool, options: &Options) -> Result<(Vec<u32>, u64), Fault> {
    let mut bench = Bench::new(ptx);
    let start: Vec<u32> = (0..THREADS as u32).map(|i| i * i).collect();
    let (a, b) = (bench.upload(&start), bench.empty(THREADS * 4));
    let mut launch =
        bench.launch("steps", [2, 2, 1], [48, 1, 1], &[Arg::U64(a), Arg::U64(b), Arg::U32(STEPS)]);
    launch.cooperative = cooperative;
    let used = bench.memory.used(0);
    let outcome = bench.run("steps", &launch, options);
    assert_eq!(bench.memory.used(0), used, "the workspace is released");
    outcome.map(|report| (bench.download(if STEPS % 2 == 1 { b } else { a }, THREADS), report.blocks))
}

#[test]
fn the_grid_waits_between_steps() {
    let mut wanted: Vec<u32> = (0..THREADS as u32).map(|i| i * i).collect();
    for _ in 0..STEPS {
        wanted = (0..THREADS).map(|i| wanted[i].wrapping_add(wanted[(i + 1) % THREADS])).collect();
    }
    for options in schedules(8) {
        assert_eq!(steps(PTX, true, &options).unwrap(), (wanted.clone(), 4), "{options:?}");
        let fault = steps(NO_SYNC, true, &options).unwrap_err();
        assert_eq!(fault.kind, FaultKind::GlobalRace, "{fault}");
        // In a plain launch there is nothing to wait in: the code of the toolkit traps.
        let fault = steps(PTX, false, &options).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Trap, "{fault}");
    }
}
