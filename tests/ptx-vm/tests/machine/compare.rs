//! `setp`, `set`, `selp`, `slct`, predicate logic, `testp`.

use crate::harness::{Case, check, f, g};
use ptx_vm::number::half::{f32_from_bf16, f32_from_f16};

const M: u64 = 0xffff_ffff;

fn s(x: u64) -> i32 {
    x as u32 as i32
}

/// 1 in each half of a pair for which a comparison holds.
fn halves(a: u64, b: u64, holds: fn(u16, u16) -> bool) -> u64 {
    u64::from(holds(a as u16, b as u16)) | u64::from(holds((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[test]
fn integers() {
    let cases: &[Case<'_>] = &[
        ("setp.eq.s32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M == b & M)),
        ("setp.ne.b32 %p1, %r0, 5;", 'p', |a, _, _| u64::from(a & M != 5)),
        ("setp.lt.s32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(s(a) < s(b))),
        ("setp.le.s32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(s(a) <= s(b))),
        ("setp.gt.s32 %p1, %r0, -1;", 'p', |a, _, _| u64::from(s(a) > -1)),
        ("setp.ge.s32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(s(a) >= s(b))),
        ("setp.lt.u32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M < b & M)),
        ("setp.lo.u32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M < b & M)),
        ("setp.ls.u32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M <= b & M)),
        ("setp.hi.u32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M > b & M)),
        ("setp.hs.u32 %p1, %r0, %r1;", 'p', |a, b, _| u64::from(a & M >= b & M)),
        ("setp.gt.u64 %p1, %rd0, %rd1;", 'p', |a, b, _| u64::from(a > b)),
        ("setp.lt.s64 %p1, %rd0, %rd1;", 'p', |a, b, _| u64::from((a as i64) < b as i64)),
        ("setp.eq.b64 %p1, %rd0, %rd1;", 'p', |a, b, _| u64::from(a == b)),
        ("setp.le.s16 %p1, %h0, %h1;", 'p', |a, b, _| u64::from(a as u16 as i16 <= b as u16 as i16)),
        ("setp.gt.u16 %p1, %h0, %h1;", 'p', |a, b, _| u64::from(a as u16 > b as u16)),
        ("setp.eq.b16 %p1, %h0, %h1;", 'p', |a, b, _| u64::from(a as u16 == b as u16)),
        ("setp.lt.and.s32 %p1, %r0, %r1, %p0;", 'p', |a, b, c| u64::from(s(a) < s(b) && c & M != 0)),
        ("setp.lt.or.s32 %p1, %r0, %r1, !%p0;", 'p', |a, b, c| u64::from(s(a) < s(b) || c & M == 0)),
        ("setp.lt.xor.s32 %p1, %r0, %r1, %p0;", 'p', |a, b, c| u64::from((s(a) < s(b)) != (c & M != 0))),
        ("setp.lt.s32 %p2|%p1, %r0, %r1;", 'p', |a, b, _| u64::from(s(a) >= s(b))),
        ("setp.lt.and.s32 %p2|%p1, %r0, %r1, %p0;", 'p', |a, b, c| u64::from(s(a) >= s(b) && c & M != 0)),
        ("set.gt.u32.s32 %r10, %r0, %r1;", 'r', |a, b, _| if s(a) > s(b) { M } else { 0 }),
        ("set.lt.f32.f32 %f10, %f0, %f1;", 'f', |a, b, _| if f(a) < f(b) { 0x3f80_0000 } else { 0 }),
    ];
    check(cases);
}

#[test]
fn floats_with_nan() {
    let cases: &[Case<'_>] = &[
        ("setp.eq.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) == f(b))),
        ("setp.ne.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) < f(b) || f(a) > f(b))),
        ("setp.lt.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) < f(b))),
        ("setp.le.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) <= f(b))),
        ("setp.gt.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) > f(b))),
        ("setp.ge.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) >= f(b))),
        ("setp.equ.f32 %p1, %f0, %f1;", 'p', |a, b, _| {
            u64::from(f(a) == f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        ("setp.neu.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a) != f(b))),
        ("setp.ltu.f32 %p1, %f0, %f1;", 'p', |a, b, _| {
            u64::from(f(a) < f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        ("setp.leu.f32 %p1, %f0, %f1;", 'p', |a, b, _| {
            u64::from(f(a) <= f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        ("setp.gtu.f32 %p1, %f0, %f1;", 'p', |a, b, _| {
            u64::from(f(a) > f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        ("setp.geu.f32 %p1, %f0, %f1;", 'p', |a, b, _| {
            u64::from(f(a) >= f(b) || f(a).is_nan() || f(b).is_nan())
        }),
        ("setp.num.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(!f(a).is_nan() && !f(b).is_nan())),
        ("setp.nan.f32 %p1, %f0, %f1;", 'p', |a, b, _| u64::from(f(a).is_nan() || f(b).is_nan())),
        ("setp.eq.ftz.f32 %p1, %f0, 0f00000000;", 'p', |a, _, _| {
            u64::from(f(a) == 0.0 || f(a).is_subnormal())
        }),
        ("setp.gt.f64 %p1, %fd0, %fd1;", 'p', |a, b, _| u64::from(g(a) > g(b))),
        ("setp.gt.f16 %p1, %h0, %h1;", 'p', |a, b, _| {
            u64::from(f32_from_f16(a as u16) > f32_from_f16(b as u16))
        }),
        ("setp.lt.bf16 %p1, %h0, %h1;", 'p', |a, b, _| {
            u64::from(f32_from_bf16(a as u16) < f32_from_bf16(b as u16))
        }),
        ("setp.gt.f16x2 %p2|%p1, %r0, %r1;", 'p', |a, b, _| {
            u64::from(f32_from_f16((a >> 16) as u16) > f32_from_f16((b >> 16) as u16))
        }),
        ("set.le.f16.f16 %h10, %h0, %h1;", 'h', |a, b, _| {
            if f32_from_f16(a as u16) <= f32_from_f16(b as u16) { 0x3c00 } else { 0 }
        }),
        ("set.gt.and.f16.f16 %h10, %h0, %h1, %p0;", 'h', |a, b, c| {
            if f32_from_f16(a as u16) > f32_from_f16(b as u16) && c & M != 0 { 0x3c00 } else { 0 }
        }),
        ("set.lt.bf16.bf16 %h10, %h0, %h1;", 'h', |a, b, _| {
            if f32_from_bf16(a as u16) < f32_from_bf16(b as u16) { 0x3f80 } else { 0 }
        }),
        ("set.gtu.u16.f16 %h10, %h0, %h1;", 'h', |a, b, _| {
            if f32_from_f16(a as u16) <= f32_from_f16(b as u16) { 0 } else { 0xffff }
        }),
        ("set.gt.s32.bf16 %r10, %h0, %h1;", 'r', |a, b, _| {
            if f32_from_bf16(a as u16) > f32_from_bf16(b as u16) { M } else { 0 }
        }),
        ("set.gt.f16x2.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            halves(a, b, |a, b| f32_from_f16(a) > f32_from_f16(b)) * 0x3c00
        }),
        ("set.lt.bf16x2.bf16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            halves(a, b, |a, b| f32_from_bf16(a) < f32_from_bf16(b)) * 0x3f80
        }),
        ("set.lt.u32.f16x2 %r10, %r0, %r1;", 'r', |a, b, _| {
            halves(a, b, |a, b| f32_from_f16(a) < f32_from_f16(b)) * 0xffff
        }),
        ("set.lt.xor.u32.f16x2 %r10, %r0, %r1, %p0;", 'r', |a, b, c| {
            let held = halves(a, b, |a, b| f32_from_f16(a) < f32_from_f16(b));
            (if c & M != 0 { held ^ 0x1_0001 } else { held }) * 0xffff
        }),
        ("testp.finite.f32 %p1, %f0;", 'p', |a, _, _| u64::from(f(a).is_finite())),
        ("testp.infinite.f32 %p1, %f0;", 'p', |a, _, _| u64::from(f(a).is_infinite())),
        ("testp.number.f32 %p1, %f0;", 'p', |a, _, _| u64::from(!f(a).is_nan())),
        ("testp.notanumber.f64 %p1, %fd0;", 'p', |a, _, _| u64::from(g(a).is_nan())),
        ("testp.subnormal.f32 %p1, %f0;", 'p', |a, _, _| u64::from(f(a).is_subnormal())),
        ("testp.normal.f32 %p1, %f0;", 'p', |a, _, _| u64::from(f(a).is_normal() || f(a) == 0.0)),
    ];
    check(cases);
}

#[test]
fn selection_and_logic() {
    let cases: &[Case<'_>] = &[
        ("selp.b32 %r10, %r0, %r1, %p0;", 'r', |a, b, c| (if c & M != 0 { a } else { b }) & M),
        ("selp.f32 %f10, %f0, %f1, %p0;", 'f', |a, b, c| (if c & M != 0 { a } else { b }) & M),
        ("selp.b64 %rd10, %rd0, %rd1, %p0;", 'd', |a, b, c| if c & M != 0 { a } else { b }),
        ("selp.b16 %h10, %h0, %h1, %p0;", 'h', |a, b, c| (if c & M != 0 { a } else { b }) & 0xffff),
        ("slct.b32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| (if s(c) >= 0 { a } else { b }) & M),
        ("slct.f32.f32 %f10, %f0, %f1, %f2;", 'f', |a, b, c| (if f(c) >= 0.0 { a } else { b }) & M),
        ("setp.lt.s32 %p2, %r0, 0; and.pred %p1, %p0, %p2;", 'p', |a, _, c| {
            u64::from(c & M != 0 && s(a) < 0)
        }),
        ("setp.lt.s32 %p2, %r0, 0; or.pred %p1, %p0, %p2;", 'p', |a, _, c| u64::from(c & M != 0 || s(a) < 0)),
        ("setp.lt.s32 %p2, %r0, 0; xor.pred %p1, %p0, %p2;", 'p', |a, _, c| {
            u64::from((c & M != 0) != (s(a) < 0))
        }),
        ("not.pred %p1, %p0;", 'p', |_, _, c| u64::from(c & M == 0)),
        ("mov.pred %p1, %p0;", 'p', |_, _, c| u64::from(c & M != 0)),
        ("mov.pred %p1, 1;", 'p', |_, _, _| 1),
        ("mov.u32 %r10, 7; @%p0 mov.u32 %r10, %r0;", 'r', |a, _, c| if c & M != 0 { a & M } else { 7 }),
        (
            "mov.u32 %r10, 7; @!%p0 add.s32 %r10, %r0, 1;",
            'r',
            |a, _, c| if c & M == 0 { (a + 1) & M } else { 7 },
        ),
    ];
    check(cases);
}
