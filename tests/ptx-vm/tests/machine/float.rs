//! f32, f64, f16 and bf16 arithmetic and the approximate functions.

use crate::harness::{Case, Dice, bits, bits64, check, check_close, f, g};
use ptx_vm::number::half::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_f16};

#[test]
fn single_and_double() {
    let cases: &[Case<'_>] = &[
        ("add.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(f(a) + f(b))),
        ("add.rn.f32 %f10, %f0, 0f3F800000;", 'f', |a, _, _| bits(f(a) + 1.0)),
        ("sub.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(f(a) - f(b))),
        ("mul.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(f(a) * f(b))),
        ("div.rn.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(f(a) / f(b))),
        ("fma.rn.f32 %f10, %f0, %f1, %f2;", 'f', |a, b, c| bits(f(a).mul_add(f(b), f(c)))),
        ("mad.rn.f32 %f10, %f0, %f1, %f2;", 'f', |a, b, c| bits(f(a).mul_add(f(b), f(c)))),
        ("sqrt.rn.f32 %f10, %f0;", 'f', |a, _, _| bits(f(a).sqrt())),
        ("rcp.rn.f32 %f10, %f0;", 'f', |a, _, _| bits(1.0 / f(a))),
        ("neg.f32 %f10, %f0;", 'f', |a, _, _| bits(-f(a))),
        ("abs.f32 %f10, %f0;", 'f', |a, _, _| bits(f(a).abs())),
        ("copysign.f32 %f10, %f0, %f1;", 'f', |a, b, _| u64::from(f(b).copysign(f(a)).to_bits())),
        ("min.f32 %f10, %f0, %f1;", 'f', |a, b, _| least(a, b, false)),
        ("max.f32 %f10, %f0, %f1;", 'f', |a, b, _| least(a, b, true)),
        ("max.NaN.f32 %f10, %f0, %f1;", 'f', |a, b, _| {
            if f(a).is_nan() || f(b).is_nan() { 0x7fff_ffff } else { least(a, b, true) }
        }),
        ("min.NaN.f32 %f10, %f0, %f1;", 'f', |a, b, _| {
            if f(a).is_nan() || f(b).is_nan() { 0x7fff_ffff } else { least(a, b, false) }
        }),
        ("add.f64 %fd10, %fd0, %fd1;", 'g', |a, b, _| bits64(g(a) + g(b))),
        ("sub.f64 %fd10, %fd0, %fd1;", 'g', |a, b, _| bits64(g(a) - g(b))),
        ("mul.f64 %fd10, %fd0, %fd1;", 'g', |a, b, _| bits64(g(a) * g(b))),
        ("div.rn.f64 %fd10, %fd0, %fd1;", 'g', |a, b, _| bits64(g(a) / g(b))),
        ("fma.rn.f64 %fd10, %fd0, %fd1, %fd2;", 'g', |a, b, c| bits64(g(a).mul_add(g(b), g(c)))),
        ("sqrt.rn.f64 %fd10, %fd0;", 'g', |a, _, _| bits64(g(a).sqrt())),
        ("rcp.rn.f64 %fd10, %fd0;", 'g', |a, _, _| bits64(1.0 / g(a))),
        ("neg.f64 %fd10, %fd0;", 'g', |a, _, _| bits64(-g(a))),
        ("abs.f64 %fd10, %fd0;", 'g', |a, _, _| bits64(g(a).abs())),
    ];
    check(cases);
}

fn least(a: u64, b: u64, max: bool) -> u64 {
    let (x, y) = (f(a), f(b));
    if x.is_nan() {
        return bits(y);
    }
    if y.is_nan() {
        return bits(x);
    }
    let first = if x == y { x.is_sign_negative() != max } else { (x < y) != max };
    bits(if first { x } else { y })
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

fn saturated(x: f32) -> f32 {
    if x.is_nan() || x <= 0.0 { 0.0 } else { x.min(1.0) }
}

/// A sum of two f32 is exact in f64 unless the exponents are far apart; then the error of the two-sum says
/// where it lies.
fn directed(a: f32, b: f32, up: bool) -> f32 {
    let (x, y) = (f64::from(a), f64::from(b));
    let sum = x + y;
    let part = sum - x;
    let error = (x - (sum - part)) + (y - part);
    let near = sum as f32;
    let over = f64::from(near) - sum;
    let signed = if over != 0.0 { over } else { -error };
    if near.is_nan() || near.is_infinite() && (a.is_infinite() || b.is_infinite()) || signed == 0.0 {
        return if near == 0.0 && !up && (a != 0.0 || b != 0.0) { -0.0 } else { near };
    }
    match (up, signed > 0.0) {
        (true, false) => near.next_up(),
        (false, true) => near.next_down(),
        _ => near,
    }
}

#[test]
fn flushing_saturation_and_directed_rounding() {
    let cases: &[Case<'_>] = &[
        ("add.ftz.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(flush(flush(f(a)) + flush(f(b))))),
        ("mul.ftz.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(flush(flush(f(a)) * flush(f(b))))),
        ("fma.rn.ftz.f32 %f10, %f0, %f1, %f2;", 'f', |a, b, c| {
            bits(flush(flush(f(a)).mul_add(flush(f(b)), flush(f(c)))))
        }),
        ("add.sat.f32 %f10, %f0, %f1;", 'f', |a, b, _| bits(saturated(f(a) + f(b)))),
        ("fma.rn.sat.f32 %f10, %f0, %f1, %f2;", 'f', |a, b, c| bits(saturated(f(a).mul_add(f(b), f(c))))),
        ("neg.ftz.f32 %f10, %f0;", 'f', |a, _, _| bits(-flush(f(a)))),
    ];
    check(cases);
    for (text, up) in [("add.rp.f32 %f10, %f0, %f1;", true), ("add.rm.f32 %f10, %f0, %f1;", false)] {
        let mut dice = Dice(5);
        let operands: Vec<[u64; 3]> = (0..512)
            .map(|_| [dice.real(), dice.real() * 1e-3, 0.0].map(|x: f32| u64::from(x.to_bits())))
            .collect();
        check_close(text, 'f', &operands, |got, [a, b, _]| got == bits(directed(f(a), f(b), up)));
    }
    // x / 3 rounded to zero is never above the exact quotient.
    let operands: Vec<[u64; 3]> =
        (1..=64).map(|i| [u64::from((i as f32).to_bits()), u64::from(3f32.to_bits()), 0]).collect();
    check_close("div.rz.f32 %f10, %f0, %f1;", 'f', &operands, |got, [a, _, _]| {
        let (q, exact) = (f64::from(f(got)), f64::from(f(a)) / 3.0);
        q <= exact && f64::from(f(got).next_up()) > exact
    });
    check_close("sqrt.rp.f32 %f10, %f0;", 'f', &operands, |got, [a, _, _]| {
        let (r, x) = (f64::from(f(got)), f64::from(f(a)));
        r * r >= x && f64::from(f(got).next_down()).powi(2) < x
    });
}

fn h16(x: f32) -> u64 {
    f16_from_f32(x).into()
}
fn w16(x: u64) -> f32 {
    f32_from_f16(x as u16)
}
fn hb(x: f32) -> u64 {
    bf16_from_f32(x).into()
}
fn wb(x: u64) -> f32 {
    f32_from_bf16(x as u16)
}

#[test]
fn half_precision() {
    let cases: &[Case<'_>] = &[
        ("add.f16 %h10, %h0, %h1;", 'h', |a, b, _| h16(w16(a) + w16(b))),
        ("sub.rn.f16 %h10, %h0, %h1;", 'h', |a, b, _| h16(w16(a) - w16(b))),
        ("mul.f16 %h10, %h0, %h1;", 'h', |a, b, _| h16(w16(a) * w16(b))),
        ("add.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            h16(w16(a) + w16(b)) | h16(w16(a >> 16) + w16(b >> 16)) << 16
        }),
        ("mul.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            h16(w16(a) * w16(b)) | h16(w16(a >> 16) * w16(b >> 16)) << 16
        }),
        ("sub.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            h16(w16(a) - w16(b)) | h16(w16(a >> 16) - w16(b >> 16)) << 16
        }),
        ("add.rn.bf16 %h10, %h0, %h1;", 'h', |a, b, _| hb(wb(a) + wb(b))),
        ("sub.rn.bf16 %h10, %h0, %h1;", 'h', |a, b, _| hb(wb(a) - wb(b))),
        ("add.rn.bf16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            hb(wb(a) + wb(b)) | hb(wb(a >> 16) + wb(b >> 16)) << 16
        }),
        ("sub.rn.bf16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            hb(wb(a) - wb(b)) | hb(wb(a >> 16) - wb(b >> 16)) << 16
        }),
        ("neg.f16 %h10, %h0;", 'h', |a, _, _| if w16(a).is_nan() { 0x7fff } else { (a ^ 0x8000) & 0xffff }),
        ("abs.bf16 %h10, %h0;", 'h', |a, _, _| if wb(a).is_nan() { 0x7fff } else { a & 0x7fff }),
        ("max.f16 %h10, %h0, %h1;", 'h', |a, b, _| extreme(a, b, w16, true)),
        ("min.bf16 %h10, %h0, %h1;", 'h', |a, b, _| extreme(a, b, wb, false)),
        ("max.bf16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            extreme(a, b, wb, true) | extreme(a >> 16, b >> 16, wb, true) << 16
        }),
        ("min.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            extreme(a, b, w16, false) | extreme(a >> 16, b >> 16, w16, false) << 16
        }),
        ("neg.bf16x2 %r10, %r0;", 'r', |a, _, _| neg(a, wb) | neg(a >> 16, wb) << 16),
        ("abs.f16x2 %r10, %r0;", 'r', |a, _, _| (neg(a, w16) & 0x7fff) | (neg(a >> 16, w16) & 0x7fff) << 16),
        ("add.sat.f16 %h10, %h0, %h1;", 'h', |a, b, _| h16(saturated(w16(h16(w16(a) + w16(b)))))),
    ];
    check(cases);
}

fn neg(a: u64, wide: fn(u64) -> f32) -> u64 {
    if wide(a).is_nan() { 0x7fff } else { (a ^ 0x8000) & 0xffff }
}

fn extreme(a: u64, b: u64, wide: fn(u64) -> f32, max: bool) -> u64 {
    let (x, y) = (wide(a), wide(b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fff,
        (true, false) => b & 0xffff,
        (false, true) => a & 0xffff,
        _ => (if (x < y || x == y && x.is_sign_negative()) != max { a } else { b }) & 0xffff,
    }
}

#[test]
fn fused_half_multiplies_round_once() {
    // Numbers with few bits, for which f64 is exact.
    let mut dice = Dice(11);
    let operands: Vec<[u64; 3]> = (0..512)
        .map(|_| [dice.real() * 4.0, dice.real(), dice.real()].map(|x: f32| h16(x) | h16(-x) << 16))
        .collect();
    let once = |a: u64, b: u64, c: u64| {
        let exact = f64::from(w16(a)) * f64::from(w16(b)) + f64::from(w16(c));
        // f64 to f16 through the nearest candidates.
        let near = h16(exact as f32);
        [near.wrapping_sub(1), near, near + 1]
            .into_iter()
            .filter(|x| !w16(*x).is_nan())
            .min_by(|x, y| {
                let d = |v: u64| (f64::from(w16(v)) - exact).abs();
                d(*x).total_cmp(&d(*y)).then((*x & 1).cmp(&(*y & 1)))
            })
            .unwrap()
    };
    check_close("fma.rn.f16 %h10, %h0, %h1, %h2;", 'h', &operands, |got, [a, b, c]| {
        w16(got) == w16(once(a, b, c))
    });
    check_close("fma.rn.f16x2 %r10, %r0, %r1, %r2;", 'r', &operands, |got, [a, b, c]| {
        w16(got) == w16(once(a, b, c)) && w16(got >> 16) == w16(once(a >> 16, b >> 16, c >> 16))
    });
    check_close("fma.rn.relu.f16 %h10, %h0, %h1, %h2;", 'h', &operands, |got, [a, b, c]| {
        w16(got) == w16(once(a, b, c)).max(0.0)
    });
    let wide: Vec<[u64; 3]> =
        operands.iter().map(|o| o.map(|x| hb(w16(x)) | hb(w16(x >> 16)) << 16)).collect();
    let near = |a: u64, b: u64, c: u64| hb((f64::from(wb(a)) * f64::from(wb(b)) + f64::from(wb(c))) as f32);
    let ulp = |x: u64, y: u64| (x as i64 & 0xffff).abs_diff(y as i64 & 0xffff) <= 1;
    check_close("fma.rn.bf16 %h10, %h0, %h1, %h2;", 'h', &wide, |got, [a, b, c]| ulp(got, near(a, b, c)));
    check_close("fma.rn.bf16x2 %r10, %r0, %r1, %r2;", 'r', &wide, |got, [a, b, c]| {
        ulp(got, near(a, b, c)) && ulp(got >> 16, near(a >> 16, b >> 16, c >> 16))
    });
    check_close("mul.rn.bf16x2 %r10, %r0, %r1;", 'r', &wide, |got, [a, b, _]| {
        got & 0xffff == hb(wb(a) * wb(b))
    });
}

#[test]
fn approximations_are_within_an_ulp_of_f64() {
    let mut dice = Dice(3);
    let operands: Vec<[u64; 3]> = (0..512)
        .map(|_| [dice.real() * 20.0, dice.real() * 9.0 + 0.01, 0.0].map(|x: f32| u64::from(x.to_bits())))
        .collect();
    let near = |got: u64, exact: f64| {
        let want = exact as f32;
        (f(got).is_nan() && want.is_nan())
            || (f64::from(f(got)) - exact).abs() <= f64::from(want.abs() * 1.2e-7).max(1e-37)
    };
    type Model = fn(f64) -> f64;
    let functions: [(&str, Model); 9] = [
        ("ex2.approx.f32", f64::exp2),
        ("ex2.approx.ftz.f32", f64::exp2),
        ("lg2.approx.f32", f64::log2),
        ("sin.approx.f32", f64::sin),
        ("cos.approx.f32", f64::cos),
        ("tanh.approx.f32", f64::tanh),
        ("rcp.approx.ftz.f32", |x| 1.0 / x),
        ("rsqrt.approx.f32", |x| 1.0 / x.sqrt()),
        ("sqrt.approx.f32", f64::sqrt),
    ];
    for (name, model) in functions {
        check_close(&format!("{name} %f10, %f0;"), 'f', &operands, |got, [a, _, _]| {
            near(got, model(f64::from(f(a))))
        });
    }
    for name in ["div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32"] {
        check_close(&format!("{name} %f10, %f0, %f1;"), 'f', &operands, |got, [a, b, _]| {
            near(got, f64::from(f(a)) / f64::from(f(b)))
        });
    }
    let huge = [[u64::from(3f32.to_bits()), u64::from(2f32.powi(127).to_bits()), 0]; 32];
    check_close("div.approx.f32 %f10, %f0, %f1;", 'f', &huge, |got, _| got == 0);
    check_close("ex2.approx.ftz.f16 %h10, %h0;", 'h', &[[0x3c00, 0, 0]; 32], |got, _| got == 0x4000);
    check_close("tanh.approx.bf16x2 %r10, %r0;", 'r', &[[0x3f80_0000, 0, 0]; 32], |got, _| {
        got == u64::from(bf16_from_f32(0.76159)) << 16
    });
    check_close("rcp.approx.ftz.f64 %fd10, %fd0;", 'g', &[[bits64(4.0), 0, 0]; 32], |got, _| g(got) == 0.25);
    check_close("rsqrt.approx.f64 %fd10, %fd0;", 'g', &[[bits64(4.0), 0, 0]; 32], |got, _| g(got) == 0.5);
}
