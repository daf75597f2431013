//! `atom` and `red` of every operation and type in global and shared memory, and the order fences make.

use crate::harness::{Arg, Bench, Dice, module, schedules};
use ptx_vm::number::half::{bf16_from_f32, f16_from_f32};

/// Starts from `start`, lets 64 threads of 2 blocks apply the operation with their operand, and gives the
/// final value and the sum of old values seen (mod 2^64). The instruction is `atom`, or `red`, which sees
/// none.
fn apply(base: &str, space: &str, op: &str, ty: &str, start: u64, operands: &[u64]) -> (u64, u64) {
    let wide = ty.ends_with("64");
    let (class, reg) = match ty {
        "f16" | "bf16" => ("b16", "%h"),
        "f32" => ("f32", "%f"),
        "f64" => ("f64", "%fd"),
        _ if wide => ("b64", "%rd"),
        _ => ("b32", "%r"),
    };
    let bytes = match class {
        "b16" => 2,
        "b32" | "f32" => 4,
        _ => 8,
    };
    let to = if base == "red" { String::new() } else { format!("{reg}12, ") };
    let store = if base == "red" { String::new() } else { format!("st.global.{} [%rd7], {reg}12;", class) };
    let access = if class == "b16" { "b16" } else { class };
    let (place, before, after) = match space {
        "global" => ("[%rd5]", String::new(), String::new()),
        _ => (
            "[cell]",
            format!(
                "@%p1 ld.global.{access} {reg}9, [%rd5]; @%p1 st.shared.{access} [cell], {reg}9; bar.sync 0;"
            ),
            format!(
                "bar.sync 0; @%p1 ld.shared.{access} {reg}9, [cell]; @%p1 st.global.{access} [%rd5], {reg}9;"
            ),
        ),
    };
    let extra = if op == "cas" { format!(", {reg}10") } else { String::new() };
    let body = format!(
        ".visible .entry k(.param .u64 cell0, .param .u64 operands, .param .u64 old) {{
        .reg .b16 %h<20>; .reg .b32 %r<20>; .reg .f32 %f<20>; .reg .f64 %fd<20>; .reg .b64 %rd<20>; .reg .pred %p<4>;
        .shared .align 8 .b8 cell[8];
        ld.param.u64 %rd5, [cell0]; ld.param.u64 %rd6, [operands]; ld.param.u64 %rd7, [old];
        mov.u32 %r15, %tid.x; mov.u32 %r16, %ctaid.x; mad.lo.s32 %r17, %r16, 32, %r15; setp.eq.u32 %p1, %r15, 0;
        mul.wide.u32 %rd16, %r17, 16; add.s64 %rd6, %rd6, %rd16; mul.wide.u32 %rd17, %r17, 8; add.s64 %rd7, %rd7, %rd17;
        ld.global.{access} {reg}11, [%rd6]; ld.global.{access} {reg}10, [%rd6+8]; mov.u64 %rd18, 0; st.global.u64 [%rd7], %rd18;
        {before}
        {base}.{space}.{op}{}.{ty} {to}{place}, {reg}11{extra};
        {store}
        {after} ret; }}",
        if matches!(ty, "f16" | "bf16" | "f16x2" | "bf16x2") { ".noftz" } else { "" }
    );
    let mut b = Bench::new(&module(&body));
    let cell = b.upload(&start.to_le_bytes());
    let words: Vec<u64> = operands.iter().flat_map(|x| [*x, x.wrapping_add(1)]).collect();
    let (ops, old) = (b.upload(&words), b.empty(operands.len() * 8));
    let blocks = if space == "global" { operands.len() as u32 / 32 } else { 1 };
    let launch = b.launch("k", [blocks, 1, 1], [32, 1, 1], &[Arg::U64(cell), Arg::U64(ops), Arg::U64(old)]);
    b.run("k", &launch, &schedules(0)[0]).unwrap_or_else(|e| panic!("{base} {space} {op} {ty}: {e}"));
    let used = blocks as usize * 32;
    let sum = b.download::<u64>(old, used).into_iter().fold(0u64, |s, x| s.wrapping_add(x));
    let mask = if bytes == 8 { !0 } else { (1u64 << (8 * bytes)) - 1 };
    (b.download::<u64>(cell, 1)[0] & mask, sum)
}

#[test]
fn every_operation_and_type() {
    type Model = fn(u64, u64) -> u64;
    const M: u64 = 0xffff_ffff;
    let cases: &[(&str, &str, Model)] = &[
        ("add", "u32", |a, b| (a + b) & M),
        ("add", "s32", |a, b| (a + b) & M),
        ("add", "u64", |a, b| a.wrapping_add(b)),
        ("min", "u32", |a, b| a.min(b)),
        ("max", "u32", |a, b| a.max(b)),
        ("min", "s32", |a, b| (a as u32 as i32).min(b as u32 as i32) as u32 as u64),
        ("max", "s32", |a, b| (a as u32 as i32).max(b as u32 as i32) as u32 as u64),
        ("min", "s64", |a, b| (a as i64).min(b as i64) as u64),
        ("max", "u64", |a, b| a.max(b)),
        ("and", "b32", |a, b| a & b),
        ("or", "b32", |a, b| a | b),
        ("xor", "b32", |a, b| a ^ b),
        ("or", "b64", |a, b| a | b),
        ("and", "b64", |a, b| a & b),
        ("min", "u64", |a, b| a.min(b)),
        ("max", "s64", |a, b| (a as i64).max(b as i64) as u64),
        ("cas", "b16", |a, b| if a == b { (b + 1) & 0xffff } else { a }),
        ("xor", "b64", |a, b| a ^ b),
        ("exch", "b32", |_, b| b),
        ("exch", "b64", |_, b| b),
        ("inc", "u32", |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec", "u32", |a, b| if a == 0 || a > b { b } else { a - 1 }),
        ("cas", "b32", |a, b| if a == b { (b + 1) & M } else { a }),
        ("cas", "b64", |a, b| if a == b { b.wrapping_add(1) } else { a }),
    ];
    for space in ["global", "shared"] {
        for (op, ty, model) in cases {
            let wide = ty.ends_with("64");
            let mut dice = Dice(op.len() as u64);
            let truncated = |x: u64| {
                if wide {
                    x
                } else if *ty == "b16" {
                    x & 0xffff
                } else {
                    x & M
                }
            };
            // Operands near the start, so that compare and swap meets its match and the counters wrap.
            let count = if space == "global" { 64 } else { 32 };
            let operands: Vec<u64> = (0..count)
                .map(|i| {
                    truncated(if *op == "cas" {
                        100 + i / 2
                    } else if i % 3 == 0 {
                        dice.next()
                    } else {
                        100 + i
                    })
                })
                .collect();
            let (mut value, mut sum) = (100u64, 0u64);
            for b in &operands {
                sum = sum.wrapping_add(value);
                value = model(value, *b);
            }
            assert_eq!(apply("atom", space, op, ty, 100, &operands), (value, sum), "{space} {op} {ty}");
            if !matches!(*op, "cas" | "exch") {
                assert_eq!(apply("red", space, op, ty, 100, &operands), (value, 0), "red {space} {op} {ty}");
            }
        }
    }
}

/// A small whole number in a floating-point type, twice in the packed ones (the second with its sign turned).
fn number(ty: &str, x: f32) -> u64 {
    let (f, b) = (|x| u64::from(f16_from_f32(x)), |x| u64::from(bf16_from_f32(x)));
    match ty {
        "f16" => f(x),
        "bf16" => b(x),
        "f16x2" => f(x) | f(-x) << 16,
        "bf16x2" => b(x) | b(-x) << 16,
        "f32" => x.to_bits().into(),
        _ => f64::from(x).to_bits(),
    }
}

#[test]
fn floating_point_sums() {
    // Whole numbers up to 128: exact in every type, whatever the order.
    let values: Vec<f32> = (0..32).map(|i| ((i * 7) % 13) as f32 - 4.0).collect();
    let sum = 1.0 + values.iter().sum::<f32>();
    for ty in ["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"] {
        let operands: Vec<u64> = values.iter().map(|x| number(ty, *x)).collect();
        for (base, space) in [("atom", "global"), ("atom", "shared"), ("red", "global"), ("red", "shared")] {
            let got = apply(base, space, "add", ty, number(ty, 1.0), &operands).0;
            assert_eq!(got, number(ty, sum), "{base} {space} {ty}");
        }
    }
}

/// Vectors exist in global memory only: add for f32, add, min and max for the 16-bit types.
#[test]
fn vectors_of_every_length() {
    let variants: [(&str, &[usize], &str, usize); 5] = [
        ("f32", &[2, 4], "f32", 4),
        ("f16", &[2, 4, 8], "b16", 2),
        ("bf16", &[2, 4, 8], "b16", 2),
        ("f16x2", &[2, 4], "b32", 4),
        ("bf16x2", &[2, 4], "b32", 4),
    ];
    for (ty, lengths, class, bytes) in variants {
        type Model = fn(f32, f32) -> f32;
        let operations: &[(&str, Model)] = &[("add", |a, b| a + b), ("min", f32::min), ("max", f32::max)];
        for (op, model) in &operations[..if ty == "f32" { 1 } else { 3 }] {
            for &n in lengths {
                let old: Vec<f32> = (0..n).map(|i| i as f32 * 3.0 - 5.0).collect();
                let operand: Vec<f32> = (0..n).map(|i| 4.0 - i as f32).collect();
                let pack = |v: &[f32]| -> Vec<u8> {
                    v.iter().flat_map(|x| number(ty, *x).to_le_bytes()[..bytes].to_vec()).collect()
                };
                let list =
                    |reg: u32| (0..n).map(|i| format!("%v{}", reg + i as u32)).collect::<Vec<_>>().join(", ");
                let each = |text: &dyn Fn(usize) -> String| (0..n).map(text).collect::<Vec<_>>().join(" ");
                let noftz = if ty == "f32" { "" } else { ".noftz" };
                let body = format!(
                    ".visible .entry k(.param .u64 a) {{ .reg .{class} %v<40>; .reg .b64 %rd<3>; ld.param.u64 %rd1, [a];
                     {} atom.global.{op}{noftz}.v{n}.{ty} {{{}}}, [%rd1], {{{}}}; {}
                     red.relaxed.sys.global.{op}{noftz}.v{n}.{ty} [%rd1+64], {{{}}}; ret; }}",
                    each(&|i| format!("ld.global.{class} %v{i}, [%rd1+{}];", 128 + i * bytes)),
                    list(20),
                    list(0),
                    each(&|i| format!("st.global.{class} [%rd1+{}], %v{};", 192 + i * bytes, 20 + i)),
                    list(0),
                );
                let mut b = Bench::new(&module(&body));
                let mut start = vec![0u8; 256];
                for (at, values) in [(0, &old), (64, &old), (128, &operand)] {
                    start[at..at + n * bytes].copy_from_slice(&pack(values));
                }
                let a = b.upload(&start);
                let launch = b.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
                b.run("k", &launch, &schedules(0)[0]).unwrap_or_else(|e| panic!("{op} v{n} {ty}: {e}"));
                let got = b.download::<u8>(a, 256);
                // In the packed types the upper half has the signs turned, and with them smaller and larger.
                let upper = |x: f32, y: f32| match *op {
                    "min" => x.max(y),
                    "max" => x.min(y),
                    _ => x + y,
                };
                let want: Vec<u8> = old
                    .iter()
                    .zip(&operand)
                    .flat_map(|(&x, &y)| {
                        let (low, high) = (number(ty, model(x, y)), number(ty, upper(x, y)));
                        let high = if ty.ends_with("x2") { high >> 16 << 16 | low & 0xffff } else { low };
                        // `min(-x, -y)` is `-max(x, y)`.
                        high.to_le_bytes()[..bytes].to_vec()
                    })
                    .collect();
                assert_eq!(got[..n * bytes], want, "atom {op} v{n} {ty}");
                assert_eq!(got[64..64 + n * bytes], want, "red {op} v{n} {ty}");
                assert_eq!(got[192..192 + n * bytes], pack(&old), "old values of {op} v{n} {ty}");
            }
        }
    }
}

/// Every order and scope is the same addition.
#[test]
fn orders_and_scopes() {
    for (i, order) in ["", ".relaxed", ".acquire", ".release", ".acq_rel"].into_iter().enumerate() {
        for scope in ["", ".cta", ".cluster", ".gpu", ".sys"] {
            for space in ["", ".global", ".shared", ".shared::cta", ".shared::cluster"] {
                let place = if space.starts_with(".shared") { "[cell]" } else { "[%rd1]" };
                let red = if i == 0 || order == ".relaxed" || order == ".release" {
                    format!("red{order}{scope}{space}.add.u32 {place}, 4;")
                } else {
                    format!("atom{order}{scope}{space}.add.u32 %r3, {place}, 4;")
                };
                let body = format!(
                    ".visible .entry k(.param .u64 a) {{ .reg .b32 %r<9>; .reg .b64 %rd<3>; .shared .align 4 .u32 cell;
                     ld.param.u64 %rd1, [a]; mov.u32 %r1, 10; st.shared.u32 [cell], %r1;
                     atom{order}{scope}{space}.add.u32 %r2, {place}, 3; {red}
                     ld.shared.u32 %r4, [cell]; st.global.u32 [%rd1+4], %r2; st.global.u32 [%rd1+8], %r4; ret; }}"
                );
                let mut b = Bench::new(&module(&body));
                let a = b.upload(&[10u32, 0, 0]);
                let launch = b.launch("k", [1, 1, 1], [1, 1, 1], &[Arg::U64(a)]);
                b.run("k", &launch, &schedules(0)[0])
                    .unwrap_or_else(|e| panic!("{order}{scope}{space}: {e}"));
                let shared = space.starts_with(".shared");
                let want = if shared { [10, 10, 17] } else { [17, 10, 10] };
                assert_eq!(b.download::<u32>(a, 3), want, "{order}{scope}{space}");
            }
        }
    }
}

#[test]
fn reductions_vectors_and_generic_addresses() {
    let body = "
.visible .entry k(.param .u64 a) {
  .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; .shared .align 4 .u32 s[1];
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
  @%p1 st.shared.u32 [s], 5; bar.sync 0; mov.u64 %rd2, s; cvta.shared.u64 %rd3, %rd2;
  red.shared.add.u32 [s], 1; atom.add.u32 %r2, [%rd3], 2; red.add.s32 [%rd3], -1;
  red.global.max.s32 [%rd1], %r1; red.relaxed.gpu.global.add.u64 [%rd1+8], 3; atom.acq_rel.gpu.global.add.u32 %r3, [%rd1+4], 2;
  red.global.add.noftz.f16x2 [%rd1+32], 0x3C003C00;
  mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; red.global.add.v4.f32 [%rd1+16], {%f1, %f2, %f1, %f2};
  bar.sync 0; @%p1 ld.shared.u32 %r4, [s]; @%p1 st.global.u32 [%rd1+36], %r4;
  ret; }";
    for options in schedules(2) {
        let mut b = Bench::new(&module(body));
        let a = b.upload(&[0u32; 10]);
        let launch = b.launch("k", [1, 1, 1], [64, 1, 1], &[Arg::U64(a)]);
        b.run("k", &launch, &options).unwrap();
        let f = f32::to_bits;
        let h = u32::from(f16_from_f32(64.0));
        assert_eq!(
            b.download::<u32>(a, 10),
            [63, 128, 192, 0, f(64.0), f(128.0), f(64.0), f(128.0), h | h << 16, 5 + 64 * 2]
        );
    }
}
