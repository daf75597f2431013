//! Calls through pointers: tables, virtual methods, pointers from the host, and pointers that are none.

use ptx_vm::{Error, FaultKind, Module, Options};

use crate::harness::{Arg, Bench, module, schedules};

const PTX: &str = include_str!("../nvcc/pointers.ptx");
const LANES: usize = 70;

/// Runs a kernel of `(out, a, ...)` on numbers that are exact, and compares with a model of one thread.
fn check(kernel: &str, model: fn(usize, f32, f32) -> f32, more: impl Fn(u64) -> Vec<Arg>) {
    let (a, b): (Vec<f32>, Vec<f32>) = (0..LANES).map(|i| (i as f32, 3.0 + (i % 7) as f32)).unzip();
    for options in schedules(5) {
        let mut bench = Bench::new(PTX);
        let (out, x, y) = (bench.empty(LANES * 4), bench.upload(&a), bench.upload(&b));
        let args: Vec<Arg> = [Arg::U64(out), Arg::U64(x)].into_iter().chain(more(y)).collect();
        let launch = bench.launch(kernel, [1; 3], [LANES as u32, 1, 1], &args);
        bench.run(kernel, &launch, &options).unwrap();
        let wanted: Vec<f32> = (0..LANES).map(|i| model(i, a[i], b[i])).collect();
        assert_eq!(bench.download::<f32>(out, LANES), wanted, "{kernel} {options:?}");
    }
}

#[test]
fn lanes_go_where_their_pointers_say() {
    fn tables(i: usize, a: f32, b: f32) -> f32 {
        let first = if i & 1 == 0 { a + b } else { a * b };
        first + 100.0 * if i >> 1 & 1 == 1 { a + b } else { a * b }
    }
    check("tables", tables, |y| vec![Arg::U64(y)]);
    check("methods", |i, a, _| if i % 3 == 0 { a + 5.0 } else { a * a * 3.0 }, |_| vec![]);
    check("given", |_, a, _| a + 2.0, |_| vec![Arg::U32(0), Arg::U64(0)]);
    check("given", |_, a, _| a * 2.0, |_| vec![Arg::U32(1), Arg::U64(0)]);
}

/// The address of `add` (0) or of `half_of` (1), as the device knows it.
fn pointer(bench: &mut Bench, which: u32) -> u64 {
    let out = bench.empty(8);
    let launch = bench.launch("address", [1; 3], [1; 3], &[Arg::U64(out), Arg::U32(which)]);
    bench.run("address", &launch, &Options::default()).unwrap();
    bench.download::<u64>(out, 1)[0]
}

#[test]
fn a_pointer_from_the_host_is_called_if_it_is_one() {
    let mut bench = Bench::new(PTX);
    let (add, half) = (pointer(&mut bench, 0), pointer(&mut bench, 1));
    // The same text with a comment is another module: its functions are others.
    let foreign = pointer(&mut Bench::new(&format!("// another\n{PTX}")), 0);
    let (out, a) = (bench.empty(4), bench.upload(&[5f32]));
    let mut call = |to: u64| {
        let args = [Arg::U64(out), Arg::U64(a), Arg::U32(2), Arg::U64(to)];
        let launch = bench.launch("given", [1; 3], [1; 3], &args);
        bench.run("given", &launch, &Options::default())
    };
    assert!(call(add).is_ok());
    for (to, word) in [(0, "0x0"), (a, "0x3000"), (add + 4, "no function"), (foreign, "no function")] {
        let fault = call(to).unwrap_err();
        assert!(fault.kind == FaultKind::Call && fault.detail.contains(word), "{fault}");
        assert!(fault.text.starts_with("call"), "{fault}");
    }
    let fault = call(half).unwrap_err();
    assert!(fault.kind == FaultKind::Call && fault.detail.contains("half_of"), "{fault}");
    assert!(fault.detail.contains("(4) bytes") && fault.detail.contains("(4, 4) bytes"), "{fault}");
    assert_eq!(bench.download::<f32>(out, 1), [7.0]);
    // Functions are no data.
    let load = module(
        ".func f() { ret; } .visible .entry k() { .reg .b64 %rd<3>; mov.u64 %rd1, f; ld.u64 %rd2, [%rd1]; ret; }",
    );
    let mut bench = Bench::new(&load);
    let launch = bench.launch("k", [1; 3], [1; 3], &[]);
    assert_eq!(bench.run("k", &launch, &Options::default()).unwrap_err().kind, FaultKind::OutOfBounds);
}

const FUNCTIONS: &str = "
.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
.func (.param .b32 r) next(.param .b32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; add.u32 %r2, %r1, 1; st.param.b32 [r], %r2; ret; }
";

fn kernel(call: &str) -> String {
    module(&format!(
        "{FUNCTIONS}.visible .entry k(.param .u64 a) {{
         .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .pred %p<3>; .param .b32 x; .param .b32 r;
         ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
         mov.u64 %rd3, twice; mov.u64 %rd4, next; setp.lt.u32 %p1, %r1, 2; selp.b64 %rd5, %rd3, %rd4, %p1;
         setp.ne.u32 %p2, %r1, 3; st.param.b32 [x], %r1; st.param.b32 [r], 77;
         targets: .calltargets twice, next;
         two: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
         one: .callprototype (.param .b32 _) _ (.param .b32 _) .noreturn;
         {call}
         ld.param.b32 %r2, [r]; st.global.u32 [%rd1], %r2; ret; }}"
    ))
}

#[test]
fn call_targets_guards_and_what_is_refused() {
    for call in ["@%p2 call (r), %rd5, (x), targets;", "@%p2 call (r), %rd5, (x), one;"] {
        let mut bench = Bench::new(&kernel(call));
        let out = bench.empty(20);
        let launch = bench.launch("k", [1; 3], [5, 1, 1], &[Arg::U64(out)]);
        bench.run("k", &launch, &Options::default()).unwrap();
        assert_eq!(bench.download::<u32>(out, 5), [0, 2, 3, 77, 5], "{call}");
    }
    for (call, word) in [
        ("call (r), %rd5, (x), two;", "prototype `two`"),
        ("call (r), %rd5, (x);", "callprototype"),
        ("call (r), %rd5, (x), nothing;", "`nothing`"),
        ("call (r), %r1, (x), one;", "32 bits"),
    ] {
        let said = Module::parse(&kernel(call)).map(|_| ()).unwrap_err();
        assert!(matches!(said, Error::Unsupported { .. }) && said.to_string().contains(word), "{said}");
    }
}

#[test]
fn recursion_by_a_pointer_is_a_fault_when_it_happens() {
    let text = module(
        ".global .u64 p = again;
         .func again(.param .b32 x) { .reg .b64 %rd<2>; .param .b32 y; ld.global.u64 %rd1, [p];
           one: .callprototype _ (.param .b32 _); call %rd1, (y), one; ret; }
         .visible .entry k() { .param .b32 x; call again, (x); ret; }",
    );
    let mut bench = Bench::new(&text);
    let launch = bench.launch("k", [1; 3], [1; 3], &[]);
    let fault = bench.run("k", &launch, &Options::default()).unwrap_err();
    assert!(fault.kind == FaultKind::Call && fault.detail.contains("`again` is recursive"), "{fault}");
}
