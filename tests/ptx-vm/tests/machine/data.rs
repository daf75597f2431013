//! Loads, stores, moves, spaces, globals, bounds.

use crate::harness::{Arg, Bench, Case, check, module, schedules};
use ptx_vm::{FaultKind, Launch, Options};

#[test]
fn moves_pack_and_unpack() {
    let cases: &[Case<'_>] = &[
        ("mov.b64 %rd10, {%r0, %r1};", 'd', |a, b, _| (a & 0xffff_ffff) | b << 32),
        ("mov.b64 {%r3, %r10}, %rd0;", 'r', |a, _, _| a >> 32),
        ("mov.b64 {%r10, _}, %rd0;", 'r', |a, _, _| a & 0xffff_ffff),
        ("mov.b32 %r10, {%h0, %h1};", 'r', |a, b, _| (a & 0xffff) | (b & 0xffff) << 16),
        ("mov.b32 {%h3, %h10}, %r0;", 'h', |a, _, _| a >> 16 & 0xffff),
        ("mov.b64 %rd10, {%h0, %h1, %h2, %h0};", 'd', |a, b, c| {
            (a & 0xffff) | (b & 0xffff) << 16 | (c & 0xffff) << 32 | a << 48
        }),
        ("mov.b64 {%h3, %h4, %h10, %h5}, %rd0;", 'h', |a, _, _| a >> 32 & 0xffff),
        ("mov.b32 %r10, %f0;", 'r', |a, _, _| a & 0xffff_ffff),
        ("mov.b64 %rd10, %fd0;", 'd', |a, _, _| a),
        ("mov.b16 %h10, %h0;", 'h', |a, _, _| a & 0xffff),
        ("mov.f32 %f10, 0f3FC00000;", 'f', |_, _, _| 0x3fc0_0000),
        ("mov.f64 %fd10, 0d3FF8000000000000;", 'g', |_, _, _| 0x3ff8_0000_0000_0000),
        ("mov.u64 %rd10, 0xFFFFFFFFFF;", 'd', |_, _, _| 0xff_ffff_ffff),
        ("mov.u32 %r10, WARP_SZ;", 'r', |_, _, _| 32),
    ];
    check(cases);
}

/// Every width through every space: a thread writes its pattern, reads it back signed and unsigned.
#[test]
fn widths_spaces_and_vectors() {
    for (space, declare, base) in [
        (
            "shared",
            ".shared .align 16 .b8 buf[4096];",
            "mov.u64 %rd5, buf; mul.wide.u32 %rd6, %r1, 64; add.s64 %rd5, %rd5, %rd6;",
        ),
        ("local", ".local .align 16 .b8 buf[64];", "mov.u64 %rd5, buf;"),
        ("global", "", "ld.param.u64 %rd5, [scratch]; mul.wide.u32 %rd6, %r1, 64; add.s64 %rd5, %rd5, %rd6;"),
    ] {
        for generic in [false, true] {
            let suffix = if generic { String::new() } else { format!(".{space}") };
            let to_generic = if generic { format!("cvta.{space}.u64 %rd5, %rd5;") } else { String::new() };
            let body = format!(
                "
.visible .entry k(.param .u64 out, .param .u64 scratch) {{
  {declare}
  .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .f32 %f<9>; .reg .b64 %rd<20>;
  mov.u32 %r1, %tid.x; {base} {to_generic}
  mul.lo.s32 %r2, %r1, 0x9E3779B9; mul.lo.s32 %r3, %r2, 0x85EBCA6B; mov.b64 %rd1, {{%r2, %r3}};
  st{suffix}.v4.u32 [%rd5], {{%r2, %r3, %r1, %r2}};
  st{suffix}.u8 [%rd5+16], %r3; st{suffix}.u16 [%rd5+18], %r2; st{suffix}.v2.u64 [%rd5+32], {{%rd1, %rd1}};
  st{suffix}.v4.b8 [%rd5+20], {{%r2, %r3, %r2, %r3}}; st{suffix}.v2.b16 [%rd5+24], {{%r3, %r2}};
  ld.param.u64 %rd9, [out]; mul.wide.u32 %rd8, %r1, 64; add.s64 %rd9, %rd9, %rd8;
  ld{suffix}.s8 %r4, [%rd5+16]; ld{suffix}.u8 %h1, [%rd5+16]; cvt.u32.u16 %r5, %h1; ld{suffix}.s16 %r6, [%rd5+18]; ld{suffix}.u16 %h2, [%rd5+18]; cvt.u32.u16 %r7, %h2;
  st.global.v4.u32 [%rd9], {{%r4, %r5, %r6, %r7}};
  ld{suffix}.v2.u32 {{%r4, %r5}}, [%rd5+8]; ld{suffix}.s8 %rd2, [%rd5+16]; ld{suffix}.u32 %r6, [%rd5+20]; ld{suffix}.u32 %r7, [%rd5+24];
  st.global.v2.u32 [%rd9+16], {{%r4, %r5}}; st.global.u64 [%rd9+24], %rd2;
  st.global.v2.u32 [%rd9+32], {{%r6, %r7}}; ld{suffix}.u64 %rd3, [%rd5+40]; st.global.u64 [%rd9+40], %rd3;
  ld{suffix}.v4.f32 {{%f1, %f2, %f3, %f4}}, [%rd5]; st.global.v4.f32 [%rd9+48], {{%f4, %f3, %f2, %f1}};
  ret;
}}"
            );
            let mut b = Bench::new(&module(&body));
            let (out, scratch) = (b.empty(32 * 64), b.empty(32 * 64));
            let launch = b.launch("k", [1, 1, 1], [32, 1, 1], &[Arg::U64(out), Arg::U64(scratch)]);
            b.run("k", &launch, &Options::default()).unwrap_or_else(|e| panic!("{space} {generic}: {e}"));
            for (t, v) in b.download::<u32>(out, 32 * 16).chunks(16).enumerate() {
                let x = (t as u32).wrapping_mul(0x9E37_79B9);
                let y = x.wrapping_mul(0x85EB_CA6B);
                let want = [
                    y as u8 as i8 as u32,
                    y & 0xff,
                    x as u16 as i16 as u32,
                    x & 0xffff,
                    t as u32,
                    x,
                    y as u8 as i8 as u32,
                    (y as u8 as i8 as i64 >> 32) as u32,
                    (x & 0xff) | (y & 0xff) << 8 | (x & 0xff) << 16 | y << 24,
                    (y & 0xffff) | x << 16,
                    x,
                    y,
                    x,
                    t as u32,
                    y,
                    x,
                ];
                assert_eq!(v, want, "{space} generic {generic} thread {t}");
            }
        }
    }
}

#[test]
fn variables_hints_and_constants() {
    let body = "
.const .align 4 .u32 primes[6] = {2, 3, 5, 7, 11, 13};
.global .align 8 .u64 pointer = generic(counter)+4;
.global .align 4 .u32 counter[2] = {10, 20};
.global .align 2 .b8 text[4] = {1, 2, 3, 250};
.visible .entry k(.param .u64 out, .param .align 4 .b8 blob[12]) {
  .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [out];
  ld.const.u32 %r1, [primes+8]; mov.u64 %rd2, primes; cvta.const.u64 %rd3, %rd2; ld.u32 %r2, [%rd3+20];
  ld.global.u64 %rd4, [pointer]; ld.u32 %r3, [%rd4]; ld.global.cg.s8 %r4, [text+3];
  ld.param.u32 %r5, [blob+8]; mov.b64 %rd5, blob; cvta.param.u64 %rd6, %rd5; ld.u32 %r6, [%rd6+4];
  isspacep.global %p1, %rd4; isspacep.const %p2, %rd3; isspacep.shared %p3, %rd4;
  selp.u32 %r7, 1, 0, %p1; selp.u32 %r8, 1, 0, %p2; selp.u32 %r9, 1, 0, %p3;
  createpolicy.fractional.L2::evict_first.b64 %rd7; prefetch.global.L2 [%rd1];
  ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%r10, %r11}, [counter], %rd7;
  st.global.cs.v4.u32 [%rd1], {%r1, %r2, %r3, %r4}; st.global.wt.v4.u32 [%rd1+16], {%r5, %r6, %r7, %r8}; st.global.L1::no_allocate.v2.u32 [%rd1+32], {%r9, %r11};
  ret; }";
    let mut b = Bench::new(&module(body));
    let out = b.empty(40);
    let blob = [1u32, 77, 99].iter().flat_map(|x| x.to_le_bytes()).collect();
    let launch = b.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(out), Arg::Bytes(blob)]);
    b.run("k", &launch, &Options::default()).unwrap();
    assert_eq!(b.download::<u32>(out, 10), [5, 13, 20, -6i32 as u32, 99, 77, 1, 1, 0, 20]);
    let (at, bytes) = b.instance.symbol("counter").unwrap();
    assert_eq!((bytes, b.download::<u32>(at, 2)), (8, vec![10, 20]));
}

/// One access with a fault, and the kind it must have.
fn faulty(body: &str, kind: FaultKind) {
    let mut b = Bench::new(&module(&format!(
        ".const .u32 fixed = 3;\n.visible .entry k(.param .u64 a, .param .u64 b) {{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<5>;
         .shared .align 8 .b8 sm[64]; .local .align 8 .b8 lo[16];
         ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;
         {body}
         ret; }}"
    )));
    let a = b.upload(&[0u32; 32]);
    let gone = b.empty(64);
    b.memory.free(gone).unwrap();
    for options in schedules(1) {
        let launch = b.launch("k", [1, 1, 1], [32, 1, 1], &[Arg::U64(a), Arg::U64(gone)]);
        let fault = b.run("k", &launch, &options).expect_err(body);
        assert_eq!(fault.kind, kind, "{body}: {fault}");
        assert_eq!(fault.line, 9, "{fault}");
        assert_eq!(fault.kernel, "k");
    }
}

#[test]
fn bad_accesses_have_names() {
    use FaultKind::{Misaligned, OutOfBounds, ReadOnly, Uninitialised, UseAfterFree};
    faulty("ld.global.u32 %r2, [%rd4+4];", OutOfBounds);
    faulty("ld.u32 %r2, [%rd4+128];", OutOfBounds);
    faulty("st.global.u32 [%rd4+-4], %r1;", OutOfBounds);
    faulty("mov.u64 %rd5, 0; ld.u32 %r2, [%rd5];", OutOfBounds);
    faulty("ld.shared.u32 %r2, [sm+64];", OutOfBounds);
    faulty("mov.u64 %rd5, 0; st.shared.u32 [%rd5], %r1;", OutOfBounds);
    faulty("ld.local.u32 %r2, [lo+16];", OutOfBounds);
    faulty("ld.param.u32 %r2, [a+16];", OutOfBounds);
    faulty("ld.global.u32 %r2, [%rd1+2];", Misaligned);
    faulty("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8];", Misaligned);
    faulty("st.shared.u64 [sm+4], %rd1;", Misaligned);
    faulty("ld.local.u16 %r2, [lo+1];", Misaligned);
    faulty("ld.global.u32 %r2, [%rd2];", UseAfterFree);
    faulty("st.global.u32 [%rd2+60], %r1;", UseAfterFree);
    faulty("mov.u64 %rd5, fixed; st.global.u32 [%rd5], %r1;", ReadOnly);
    faulty("ld.shared.u32 %r2, [sm];", Uninitialised);
}

#[test]
fn what_nothing_wrote_is_a_fault_and_can_be_switched_off() {
    let body = "
.visible .entry k(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1+4]; ret; }";
    let mut b = Bench::new(&module(body));
    let a = b.empty(8);
    b.memory.write(a, &[1; 7]).unwrap();
    let launch = b.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
    assert_eq!(b.run("k", &launch, &Options::default()).unwrap_err().kind, FaultKind::Uninitialised);
    b.run("k", &launch, &Options { uninitialised: false, ..Options::default() }).unwrap();
    b.memory.write(a, &[1; 8]).unwrap();
    b.run("k", &launch, &Options::default()).unwrap();
}

#[test]
fn other_devices_unfinished_grids_and_impossible_launches() {
    let body = "
.visible .entry k(.param .u64 a) .reqntid 32, 1, 1 { .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1]; ret; }
.visible .entry waits(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; griddepcontrol.launch_dependents; griddepcontrol.wait; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1; ret; }
.visible .entry hasty(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1]; griddepcontrol.wait; ret; }";
    let mut b = Bench::new(&module(body));
    let a = b.upload(&[1u32; 256]);
    let far = b.memory.allocate(1, 64).unwrap();
    b.memory.fill(far, 64, &[0]).unwrap();
    let go = |b: &mut Bench, kernel: &str, at: u64, pending: Vec<std::ops::Range<u64>>| {
        let mut launch = b.launch(kernel, [1, 1, 1], [32, 1, 1], &[Arg::U64(at)]);
        launch.pending = pending;
        b.run(kernel, &launch, &Options { track_writes: true, global_races: false, ..Options::default() })
    };
    assert_eq!(go(&mut b, "k", far, vec![]).unwrap_err().kind, FaultKind::PeerAccess);
    b.memory.enable_peer(0, 1);
    go(&mut b, "k", far, vec![]).unwrap();
    let unfinished = vec![a..a + 256];
    assert_eq!(go(&mut b, "hasty", a, unfinished.clone()).unwrap_err().kind, FaultKind::GridDependency);
    let report = go(&mut b, "waits", a, unfinished).unwrap();
    assert_eq!(report.written, vec![a..a + 256]);
    let launch = |grid, block, params: usize| Launch::new(grid, block).with_params(vec![0; params]);
    for bad in [
        launch([1, 1, 1], [64, 1, 1], 8),
        launch([1, 1, 1], [32, 1, 1], 4),
        launch([0, 1, 1], [32, 1, 1], 8),
        Launch { dynamic_shared: 1 << 20, ..launch([1, 1, 1], [32, 1, 1], 8) },
        Launch { cluster: [3, 1, 1], ..launch([4, 1, 1], [32, 1, 1], 8) },
    ] {
        assert_eq!(b.run("k", &bad, &Options::default()).unwrap_err().kind, FaultKind::Launch);
    }
    assert_eq!(
        b.run("missing", &launch([1, 1, 1], [32, 1, 1], 8), &Options::default()).unwrap_err().kind,
        FaultKind::Launch
    );
}
