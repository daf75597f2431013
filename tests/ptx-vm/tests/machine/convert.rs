//! `cvt`: against Rust's own conversions and plain arithmetic.

use crate::harness::{Case, Dice, bits, bits64, check, check_close, f, g};
use ptx_vm::number::half::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};

const M: u64 = 0xffff_ffff;

#[test]
fn integers() {
    let cases: &[Case<'_>] = &[
        ("cvt.s64.s32 %rd10, %r0;", 'd', |a, _, _| a as u32 as i32 as i64 as u64),
        ("cvt.u64.u32 %rd10, %r0;", 'd', |a, _, _| a & M),
        ("cvt.u32.u64 %r10, %rd0;", 'r', |a, _, _| a & M),
        ("cvt.s32.s64 %r10, %rd0;", 'r', |a, _, _| a & M),
        ("cvt.u32.u16 %r10, %h0;", 'r', |a, _, _| a & 0xffff),
        ("cvt.s32.s16 %r10, %h0;", 'r', |a, _, _| a as u16 as i16 as i32 as u32 as u64),
        ("cvt.u16.u32 %h10, %r0;", 'h', |a, _, _| a & 0xffff),
        ("cvt.s32.s8 %r10, %r0;", 'r', |a, _, _| a as u8 as i8 as i32 as u32 as u64),
        ("cvt.u32.u8 %r10, %r0;", 'r', |a, _, _| a & 0xff),
        ("cvt.s16.s8 %h10, %r0;", 'h', |a, _, _| a as u8 as i8 as i16 as u16 as u64),
        ("cvt.u16.u8 %h10, %h0;", 'h', |a, _, _| a & 0xff),
        ("cvt.u8.u32 %h10, %r0;", 'h', |a, _, _| a & 0xff),
        ("cvt.s64.s16 %rd10, %h0;", 'd', |a, _, _| a as u16 as i16 as i64 as u64),
        ("cvt.u64.u16 %rd10, %h0;", 'd', |a, _, _| a & 0xffff),
        ("cvt.s64.s8 %rd10, %r0;", 'd', |a, _, _| a as u8 as i8 as i64 as u64),
        ("cvt.sat.u8.s32 %r10, %r0;", 'r', |a, _, _| (a as u32 as i32).clamp(0, 255) as u64),
        ("cvt.sat.s8.s32 %r10, %r0;", 'r', |a, _, _| (a as u32 as i32).clamp(-128, 127) as u32 as u64),
        ("cvt.sat.s32.s64 %r10, %rd0;", 'r', |a, _, _| {
            (a as i64).clamp(i32::MIN.into(), i32::MAX.into()) as u32 as u64
        }),
        ("cvt.pack.sat.u8.s32.b32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            let k = |x: u64| (x as u32 as i32).clamp(0, 255) as u64;
            k(b) | k(a) << 8 | (c & 0xffff) << 16
        }),
        ("cvt.pack.sat.s16.s32 %r10, %r0, %r1;", 'r', |a, b, _| {
            let k = |x: u64| (x as u32 as i32).clamp(-32768, 32767) as u16 as u64;
            k(b) | k(a) << 16
        }),
    ];
    check(cases);
}

fn integral(x: f32, how: &str) -> f32 {
    match how {
        "n" => x.round_ties_even(),
        "z" => x.trunc(),
        "m" => x.floor(),
        _ => x.ceil(),
    }
}

#[test]
fn floats_and_integers() {
    let cases: &[Case<'_>] =
        &[
            ("cvt.rn.f32.s32 %f10, %r0;", 'f', |a, _, _| bits(a as u32 as i32 as f32)),
            ("cvt.rn.f32.u32 %f10, %r0;", 'f', |a, _, _| bits(a as u32 as f32)),
            ("cvt.rn.f32.s64 %f10, %rd0;", 'f', |a, _, _| bits(a as i64 as f32)),
            ("cvt.rn.f32.u64 %f10, %rd0;", 'f', |a, _, _| bits(a as f32)),
            ("cvt.rn.f32.u16 %f10, %h0;", 'f', |a, _, _| bits(a as u16 as f32)),
            ("cvt.rn.f32.s16 %f10, %h0;", 'f', |a, _, _| bits(a as u16 as i16 as f32)),
            ("cvt.rn.f32.s8 %f10, %r0;", 'f', |a, _, _| bits(a as u8 as i8 as f32)),
            ("cvt.rn.f32.u8 %f10, %h0;", 'f', |a, _, _| bits(a as u8 as f32)),
            ("cvt.rn.f64.s32 %fd10, %r0;", 'g', |a, _, _| bits64(a as u32 as i32 as f64)),
            ("cvt.rn.f64.u64 %fd10, %rd0;", 'g', |a, _, _| bits64(a as f64)),
            ("cvt.rzi.s32.f32 %r10, %f0;", 'r', |a, _, _| f(a) as i32 as u32 as u64),
            ("cvt.rzi.u32.f32 %r10, %f0;", 'r', |a, _, _| f(a) as u32 as u64),
            ("cvt.rni.s32.f32 %r10, %f0;", 'r', |a, _, _| integral(f(a), "n") as i32 as u32 as u64),
            ("cvt.rmi.s32.f32 %r10, %f0;", 'r', |a, _, _| integral(f(a), "m") as i32 as u32 as u64),
            ("cvt.rpi.s32.f32 %r10, %f0;", 'r', |a, _, _| integral(f(a), "p") as i32 as u32 as u64),
            ("cvt.rzi.s32.f64 %r10, %fd0;", 'r', |a, _, _| {
                if g(a).is_nan() { 1 << 31 } else { g(a) as i32 as u32 as u64 }
            }),
            ("cvt.rni.f32.f32 %f10, %f0;", 'f', |a, _, _| bits(integral(f(a), "n"))),
            ("cvt.rzi.f32.f32 %f10, %f0;", 'f', |a, _, _| bits(integral(f(a), "z"))),
            ("cvt.rmi.f32.f32 %f10, %f0;", 'f', |a, _, _| bits(integral(f(a), "m"))),
            ("cvt.rpi.f32.f32 %f10, %f0;", 'f', |a, _, _| bits(integral(f(a), "p"))),
            ("cvt.sat.f32.f32 %f10, %f0;", 'f', |a, _, _| {
                bits(if f(a).is_nan() || f(a) <= 0.0 { 0.0 } else { f(a).min(1.0) })
            }),
            ("cvt.f64.f32 %fd10, %f0;", 'g', |a, _, _| bits64(f64::from(f(a)))),
            ("cvt.rn.f32.f64 %f10, %fd0;", 'f', |a, _, _| bits(g(a) as f32)),
        ];
    check(cases);
}

#[test]
fn sixteen_and_eight_bits() {
    let cases: &[Case<'_>] = &[
        ("cvt.rn.f16.f32 %h10, %f0;", 'h', |a, _, _| f16_from_f32(f(a)).into()),
        ("cvt.rn.bf16.f32 %h10, %f0;", 'h', |a, _, _| bf16_from_f32(f(a)).into()),
        ("cvt.f32.f16 %f10, %h0;", 'f', |a, _, _| bits(f32_from_f16(a as u16))),
        ("cvt.rn.f16x2.f32 %r10, %f0, %f1;", 'r', |a, b, _| {
            u64::from(f16_from_f32(f(b))) | u64::from(f16_from_f32(f(a))) << 16
        }),
        ("cvt.rn.bf16x2.f32 %r10, %f0, %f1;", 'r', |a, b, _| {
            u64::from(bf16_from_f32(f(b))) | u64::from(bf16_from_f32(f(a))) << 16
        }),
        ("cvt.rn.relu.bf16x2.f32 %r10, %f0, %f1;", 'r', |a, b, _| {
            let k = |x: u64| {
                let h = bf16_from_f32(f(x));
                if h >> 15 != 0 { 0 } else { u64::from(h) }
            };
            k(b) | k(a) << 16
        }),
        ("cvt.rz.bf16.f32 %h10, %f0;", 'h', |a, _, _| if f(a).is_nan() { 0x7fff } else { a >> 16 & 0xffff }),
        ("cvt.rna.tf32.f32 %r10, %f0;", 'r', |a, _, _| {
            if f(a).is_nan() {
                0x7fff_ffff
            } else if f(a).is_infinite() {
                a & M
            } else {
                ((a & M) + 0x1000) & 0xffff_e000
            }
        }),
    ];
    check(cases);
    // bf16 widens by a shift; NaN keeps its bits.
    let mut dice = Dice(2);
    let operands: Vec<[u64; 3]> = (0..256).map(|_| [dice.next(), 0, 0]).collect();
    check_close("cvt.f32.bf16 %f10, %h0;", 'f', &operands, |got, [a, _, _]| {
        got == bits(f32_from_bf16(a as u16)) || f32_from_bf16(a as u16).is_nan() && f(got).is_nan()
    });
    // Every e4m3 and e5m2 code, from the definition of the formats.
    let codes: Vec<[u64; 3]> = (0..256).map(|i| [i | (255 - i) << 8, 0, 0]).collect();
    for (name, mantissa, bias) in [("e4m3x2", 3, 7), ("e5m2x2", 2, 15)] {
        let value = |c: u64| -> f64 {
            let (e, m) = (c >> mantissa & (0x7f >> mantissa), c & ((1 << mantissa) - 1));
            let scale = f64::from(1 << mantissa);
            let magnitude = if e == 0 {
                m as f64 / scale * 2f64.powi(1 - bias)
            } else {
                (1.0 + m as f64 / scale) * 2f64.powi(e as i32 - bias)
            };
            let special = if mantissa == 3 {
                if c & 0x7f == 0x7f { Some(f64::NAN) } else { None }
            } else if e == 31 {
                Some(if m == 0 { f64::INFINITY } else { f64::NAN })
            } else {
                None
            };
            let x = special.unwrap_or(magnitude);
            if c & 0x80 != 0 { -x } else { x }
        };
        check_close(&format!("cvt.rn.f16x2.{name} %r10, %h0;"), 'r', &codes, |got, [a, _, _]| {
            let same = |x: u64, c: u64| {
                let (x, y) = (f64::from(f32_from_f16(x as u16)), value(c & 0xff));
                x == y || x.is_nan() && y.is_nan()
            };
            same(got, a) && same(got >> 16, a >> 8)
        });
        // Back: the code nearest to each value, so every finite code comes back as itself.
        let finite: Vec<[u64; 3]> = codes
            .iter()
            .map(|c| [u64::from((value(c[0] & 0xff) as f32).to_bits()), c[0] & 0xff, 0])
            .collect();
        check_close(
            &format!("cvt.rn.satfinite.{name}.f32 %h10, %f0, %f0;"),
            'h',
            &finite,
            |got, [a, c, _]| !f(a).is_finite() || got == c | c << 8,
        );
    }
    let huge = [[u64::from(1e30f32.to_bits()), u64::from((-1e30f32).to_bits()), 0]; 32];
    check_close("cvt.rn.satfinite.e4m3x2.f32 %h10, %f0, %f1;", 'h', &huge, |got, _| got == 0x7e << 8 | 0xfe);
    check_close("cvt.rn.satfinite.e5m2x2.f32 %h10, %f0, %f1;", 'h', &huge, |got, _| got == 0x7b << 8 | 0xfb);
    check_close("cvt.rn.satfinite.e4m3x2.f16x2 %h10, %r0;", 'h', &[[0x3c00_c000, 0, 0]; 32], |got, _| {
        got == 0x38 << 8 | 0xc0
    });
}
