//! Launches that wait for each other, one step at a time.

use std::sync::Arc;

use ptx_vm::{
    Aside, Company, Fault, FaultKind, Instance, Launch, Memory, Module, Options, Schedule, Standing, Step,
};

/// Writes `a[i]`, raises a flag, waits for another one, and reads `b[i]` into `c[i]`.
const SWAP: &str = "
.version 8.7
.target sm_90
.address_size 64
.visible .entry swap(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 up, .param .u64 look)
{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [up]; ld.param.u64 %rd5, [look];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd6, %r1, 4; add.s64 %rd1, %rd1, %rd6; add.s64 %rd2, %rd2, %rd6; add.s64 %rd3, %rd3, %rd6;
  mul.lo.u32 %r2, %r1, 3; st.global.u32 [%rd1], %r2; bar.sync 0;
  setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
  mov.u32 %r3, 1; st.release.sys.global.u32 [%rd4], %r3;
L: ld.acquire.sys.global.u32 %r4, [%rd5]; setp.eq.u32 %p2, %r4, 0; @%p2 bra L;
DONE: bar.sync 0;
  ld.global.u32 %r5, [%rd2]; st.global.u32 [%rd3], %r5;
  ret; }
.visible .entry sum(.param .u64 a, .param .u64 c)
{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [c]; mov.u32 %r1, 0; mov.u32 %r2, 0;
L: ld.volatile.global.u32 %r3, [%rd1]; add.u32 %r2, %r2, %r3; add.s64 %rd1, %rd1, 4; add.u32 %r1, %r1, 1;
  setp.lt.u32 %p1, %r1, 2000; @%p1 bra L;
  st.global.u32 [%rd2], %r2; ret; }
.visible .entry patient(.param .u64 flag, .param .u64 c)
{ .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [flag]; ld.param.u64 %rd2, [c]; mov.u32 %r1, 0;
L: ld.volatile.global.u32 %r2, [%rd1]; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;
  mov.u32 %r3, 0;
PAUSE: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 7000; @%p2 bra PAUSE;
  add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 40; @%p3 bra L;
DONE: st.global.u32 [%rd2], %r1; ret; }";

struct Bench {
    memory: Memory,
    instances: [Arc<Instance>; 2],
    company: Company,
    /// Of each device: what it writes, what it reads into, its flag.
    places: [[u64; 3]; 2],
    operations: u64,
    /// An allocation before all others.
    early: u64,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let module = Arc::new(Module::parse(text).unwrap());
        let mut memory = Memory::new();
        let early = memory.allocate(1, 64).unwrap();
        let instances = [0, 1].map(|d| Arc::new(Instance::load(module.clone(), &mut memory, d).unwrap()));
        let places = [0, 1].map(|device| {
            [0; 3].map(|_| {
                let at = memory.allocate(device, 256).unwrap();
                memory.fill(at, 256, &[0]).unwrap();
                at
            })
        });
        memory.enable_peer(0, 1);
        memory.enable_peer(1, 0);
        Bench { memory, instances, company: Company::default(), places, operations: 0, early }
    }

    fn begin(&mut self, device: usize, schedule: Schedule) -> Step {
        let ([mine, into, flag], [theirs, _, up]) = (self.places[device], self.places[1 - device]);
        let module = self.instances[device].module();
        let params = [mine, theirs, into, up, flag].map(u64::to_le_bytes);
        let params = module.kernel("swap").unwrap().pack(&params.each_ref().map(|p| &p[..])).unwrap();
        let mut launch = Launch::new([1, 1, 1], [64, 1, 1]).with_params(params);
        launch.device = device as u32;
        // A chain of operations for each device.
        self.operations += 2;
        let (chain, at) = (device as u64 + 1, self.operations);
        let standing = Standing { chain, at, clock: [(chain, at)].into(), ..Standing::default() };
        let options = Options { schedule, ..Options::default() };
        self.company.begin(&self.instances[device], "swap", launch, standing, &mut self.memory, &options)
    }

    fn read(&self, device: usize) -> Vec<u32> {
        let mut bytes = [0; 256];
        self.memory.read(self.places[device][1], &mut bytes).unwrap();
        bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

fn waits(step: Step) -> Box<Aside> {
    match step {
        Step::Aside(aside) => aside,
        Step::Ended { outcome, .. } => panic!("it has ended: {outcome:?}"),
    }
}

fn faults(step: Step) -> Vec<Fault> {
    match step {
        Step::Ended { outcome, .. } => outcome.err().unwrap_or_default(),
        Step::Aside(aside) => panic!("it waits: {aside:?}"),
    }
}

const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Reverse, Schedule::Random(3)];

#[test]
fn a_launch_that_waits_goes_on_when_another_one_has_run() {
    for schedule in SCHEDULES {
        let mut bench = Bench::new(SWAP);
        let first = waits(bench.begin(0, schedule));
        // It has raised its flag, so it moved; looking again it does not.
        assert!(first.moved());
        let first = waits(bench.company.resume(first, &mut bench.memory));
        assert!(!first.moved());
        let why = first.why().unwrap().to_string();
        assert!(why.starts_with("Deadlock in kernel `swap`, line "), "{why}");
        assert!(why.contains(&format!("looking at {:#x}", bench.places[0][2])), "{why}");
        // Allocations come and go meanwhile, before and behind its own.
        let gone = bench.memory.allocate(1, 64).unwrap();
        let Step::Ended { outcome, learned, company, .. } = bench.begin(1, schedule) else {
            panic!("it waits")
        };
        assert!(outcome.is_ok(), "{outcome:?}");
        assert!(company.is_some(), "it ran while another one waited");
        // What the first has released counts as the odd number below its own.
        assert_eq!(learned.get(&1), Some(&1));
        bench.memory.free(gone).unwrap();
        let seen = faults(bench.company.resume(first, &mut bench.memory));
        assert!(seen.is_empty(), "{seen:?}");
        let want: Vec<u32> = (0..64).map(|i| 3 * i).collect();
        assert_eq!([bench.read(0), bench.read(1)], [want.clone(), want]);
    }
}

#[test]
fn scopes_and_releases_count_between_launches() {
    let bugs = [
        ("st.release.sys", "st.release.gpu"),
        ("st.release.sys", "st.release.cta"),
        ("st.release.sys", "st.relaxed.sys"),
        ("st.release.sys", "membar.gl; st.volatile"),
        ("ld.acquire.sys", "ld.acquire.gpu"),
        ("ld.acquire.sys", "ld.acquire.cta"),
    ];
    for (right, wrong) in bugs {
        for schedule in SCHEDULES {
            let mut bench = Bench::new(&SWAP.replace(right, wrong));
            let first = waits(bench.begin(0, schedule));
            // What it has touched stays known, wherever it stands in the list of allocations now.
            bench.memory.free(bench.early).unwrap();
            let second = bench.begin(1, schedule);
            let seen = match second {
                Step::Aside(_) => panic!("{wrong}: the flag is up"),
                Step::Ended { .. } => faults(second),
            };
            assert_eq!(seen.first().map(|f| f.kind), Some(FaultKind::GlobalRace), "{wrong}");
            let text = seen[0].to_string();
            assert!(text.contains("between devices 0 and 1") && text.contains("of kernel `swap`"), "{text}");
            bench.company.abandon(first, &mut bench.memory);
        }
    }
    // Order by a fence.
    for right in ["fence.acq_rel.sys; st.relaxed.sys", "membar.sys; st.volatile"] {
        let mut bench =
            Bench::new(&SWAP.replace("st.release.sys", right).replace("ld.acquire.sys", "ld.volatile"));
        let first = waits(bench.begin(0, Schedule::Forward));
        let seen = faults(bench.begin(1, Schedule::Forward));
        assert!(seen.is_empty(), "{right}: {seen:?}");
        bench.company.abandon(first, &mut bench.memory);
    }
}

/// Whoever reads on learns something: it is not waiting, however long it takes.
#[test]
fn a_kernel_that_reads_much_is_not_one_that_waits() {
    let mut bench = Bench::new(SWAP);
    let from = bench.memory.allocate(0, 8000).unwrap();
    bench.memory.fill(from, 8000, &[1, 0, 0, 0]).unwrap();
    let params = [from.to_le_bytes(), bench.places[0][1].to_le_bytes()].concat();
    let launch = Launch::new([1, 1, 1], [1, 1, 1]).with_params(params);
    let (instance, standing) = (bench.instances[0].clone(), Standing::default());
    let options = Options::default();
    let step = bench.company.begin(&instance, "sum", launch, standing, &mut bench.memory, &options);
    assert!(faults(step).is_empty());
    assert_eq!(bench.read(0)[0], 2000);
}

/// A poll with 21,000 instructions between its looks is one that waits; one that gives up in the end has its
/// time when it insists.
#[test]
fn long_pauses_between_looks_are_no_progress() {
    for schedule in SCHEDULES {
        let mut bench = Bench::new(SWAP);
        let [_, into, flag] = bench.places[0];
        let params = [flag.to_le_bytes(), into.to_le_bytes()].concat();
        let launch = Launch::new([1, 1, 1], [1, 1, 1]).with_params(params);
        let (instance, standing) = (bench.instances[0].clone(), Standing::default());
        let options = Options { schedule, ..Options::default() };
        let step = bench.company.begin(&instance, "patient", launch, standing, &mut bench.memory, &options);
        let aside = waits(step);
        let aside = waits(bench.company.resume(aside, &mut bench.memory));
        assert!(!aside.moved() && bench.read(0)[0] == 0);
        // Less than a turn in vain: it waits as soon as it may.
        let aside = waits(bench.company.insist(aside, &mut bench.memory, 1));
        assert!(!aside.moved());
        assert!(faults(bench.company.insist(aside, &mut bench.memory, ptx_vm::QUIET)).is_empty());
        assert_eq!(bench.read(0)[0], 40);
    }
}
