//! Integer arithmetic, logic, shifts, bit fields and permutations.

use crate::harness::{Case, check};

const M: u64 = 0xffff_ffff;

fn s(x: u64) -> i64 {
    i64::from(x as u32 as i32)
}
fn u(x: i64) -> u64 {
    x as u64 & M
}
fn h(x: u64) -> i64 {
    i64::from(x as u16 as i16)
}

#[test]
fn add_sub_mul() {
    let cases: &[Case<'_>] = &[
        ("add.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a) + s(b))),
        ("add.u32 %r10, %r0, -5;", 'r', |a, _, _| u(s(a) - 5)),
        ("sub.u32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a) - s(b))),
        ("add.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.wrapping_add(b)),
        ("sub.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.wrapping_sub(b)),
        ("add.u16 %h10, %h0, %h1;", 'h', |a, b, _| a.wrapping_add(b) & 0xffff),
        ("sub.s16 %h10, %h0, %h1;", 'h', |a, b, _| (h(a) - h(b)) as u64 & 0xffff),
        ("add.sat.s32 %r10, %r0, %r1;", 'r', |a, b, _| {
            u((s(a) + s(b)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)))
        }),
        ("sub.sat.s32 %r10, %r0, %r1;", 'r', |a, b, _| {
            u((s(a) - s(b)).clamp(i64::from(i32::MIN), i64::from(i32::MAX)))
        }),
        ("mul.lo.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a).wrapping_mul(s(b)))),
        ("mul.lo.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M).wrapping_mul(b & M) & M),
        ("mul.hi.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a) * s(b) >> 32)),
        ("mul.hi.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M) * (b & M) >> 32),
        ("mul.lo.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| {
            (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64
        }),
        ("mul.hi.u64 %rd10, %rd0, %rd1;", 'd', |a, b, _| (u128::from(a) * u128::from(b) >> 64) as u64),
        ("mul.lo.u16 %h10, %h0, %h1;", 'h', |a, b, _| (a & 0xffff) * (b & 0xffff) & 0xffff),
        ("mul.hi.s16 %h10, %h0, %h1;", 'h', |a, b, _| (h(a) * h(b) >> 16) as u64 & 0xffff),
        ("mul.hi.u16 %h10, %h0, %h1;", 'h', |a, b, _| (a & 0xffff) * (b & 0xffff) >> 16),
        ("mul.wide.s32 %rd10, %r0, %r1;", 'd', |a, b, _| (s(a) * s(b)) as u64),
        ("mul.wide.u32 %rd10, %r0, %r1;", 'd', |a, b, _| (a & M) * (b & M)),
        ("mul.wide.s16 %r10, %h0, %h1;", 'r', |a, b, _| u(h(a) * h(b))),
        ("mul.wide.u16 %r10, %h0, %h1;", 'r', |a, b, _| (a & 0xffff) * (b & 0xffff)),
        ("mad.lo.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| u(s(a).wrapping_mul(s(b)).wrapping_add(s(c)))),
        ("mad.lo.s64 %rd10, %rd0, %rd1, %rd2;", 'd', |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.lo.u16 %h10, %h0, %h1, %h2;", 'h', |a, b, c| {
            ((a & 0xffff) * (b & 0xffff) + (c & 0xffff)) & 0xffff
        }),
        ("mad.hi.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| u((s(a) * s(b) >> 32) + s(c))),
        ("mad.hi.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| (((a & M) * (b & M) >> 32) + (c & M)) & M),
        ("mad.hi.s64 %rd10, %rd0, %rd1, %rd2;", 'd', |a, b, c| {
            ((i128::from(a as i64) * i128::from(b as i64) >> 64) as u64).wrapping_add(c)
        }),
        ("mad.hi.u64 %rd10, %rd0, %rd1, %rd2;", 'd', |a, b, c| {
            ((u128::from(a) * u128::from(b) >> 64) as u64).wrapping_add(c)
        }),
        ("mad.wide.s32 %rd10, %r0, %r1, %rd2;", 'd', |a, b, c| ((s(a) * s(b)) as u64).wrapping_add(c)),
        ("mad.wide.u32 %rd10, %r0, %r1, %rd2;", 'd', |a, b, c| ((a & M) * (b & M)).wrapping_add(c)),
        ("mad.wide.s16 %r10, %h0, %h1, %r2;", 'r', |a, b, c| u(h(a) * h(b) + s(c))),
        ("mad.wide.u16 %r10, %h0, %h1, %r2;", 'r', |a, b, c| ((a & 0xffff) * (b & 0xffff) + (c & M)) & M),
        ("mul24.lo.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & 0xff_ffff) * (b & 0xff_ffff) & M),
        ("mul24.hi.u32 %r10, %r0, %r1;", 'r', |a, b, _| ((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16 & M),
        ("mul24.lo.s32 %r10, %r0, %r1;", 'r', |a, b, _| u((s(a << 8) >> 8) * (s(b << 8) >> 8))),
        ("mul24.hi.s32 %r10, %r0, %r1;", 'r', |a, b, _| u((s(a << 8) >> 8) * (s(b << 8) >> 8) >> 16)),
        ("sad.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| ((c & M) + (a & M).abs_diff(b & M)) & M),
        ("sad.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| (c & M).wrapping_add(s(a).abs_diff(s(b))) & M),
    ];
    check(cases);
}

/// Of each half of two words, the upper one first.
fn halves(a: u64, b: u64, f: impl Fn(u64, u64) -> i64) -> u64 {
    [16, 0].iter().fold(0, |out, at| out << 16 | f(a >> at & 0xffff, b >> at & 0xffff) as u64 & 0xffff)
}

#[test]
fn pairs_of_halves() {
    let cases: &[Case<'_>] = &[
        ("add.u16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| (a + b) as i64)),
        ("add.s16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| h(a) + h(b))),
        ("min.u16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| a.min(b) as i64)),
        ("max.u16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| a.max(b) as i64)),
        ("min.s16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| h(a).min(h(b)))),
        ("max.s16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| h(a).max(h(b)))),
        ("min.s16x2.relu %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| h(a).min(h(b)).max(0))),
        ("max.relu.s16x2 %r10, %r0, %r1;", 'r', |a, b, _| halves(a, b, |a, b| h(a).max(h(b)).max(0))),
        ("min.relu.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a).min(s(b)).max(0))),
        ("max.s32.relu %r10, %r0, %r1;", 'r', |a, b, _| u(s(a).max(s(b)).max(0))),
    ];
    check(cases);
}

#[test]
fn division_signs_and_extremes() {
    let cases: &[Case<'_>] = &[
        ("div.s32 %r10, %r0, %r1;", 'r', |a, b, _| if b & M == 0 { M } else { u(s(a) / s(b)) }),
        ("div.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M).checked_div(b & M).unwrap_or(M)),
        ("div.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| {
            if b == 0 { !0 } else { (a as i64).wrapping_div(b as i64) as u64 }
        }),
        ("div.u64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.checked_div(b).unwrap_or(!0)),
        ("div.s16 %h10, %h0, %h1;", 'h', |a, b, _| {
            if b & 0xffff == 0 { 0xffff } else { (h(a) / h(b)) as u64 & 0xffff }
        }),
        ("div.u16 %h10, %h0, %h1;", 'h', |a, b, _| (a & 0xffff).checked_div(b & 0xffff).unwrap_or(0xffff)),
        ("rem.s32 %r10, %r0, %r1;", 'r', |a, b, _| if b & M == 0 { a & M } else { u(s(a) % s(b)) }),
        ("rem.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M).checked_rem(b & M).unwrap_or(a & M)),
        ("rem.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| {
            if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
        }),
        ("rem.u64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.checked_rem(b).unwrap_or(a)),
        ("min.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a).min(s(b)))),
        ("max.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a).max(s(b)))),
        ("min.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M).min(b & M)),
        ("max.u32 %r10, %r0, %r1;", 'r', |a, b, _| (a & M).max(b & M)),
        ("min.s64 %rd10, %rd0, %rd1;", 'd', |a, b, _| (a as i64).min(b as i64) as u64),
        ("max.u64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a.max(b)),
        ("min.s16 %h10, %h0, %h1;", 'h', |a, b, _| h(a).min(h(b)) as u64 & 0xffff),
        ("max.u16 %h10, %h0, %h1;", 'h', |a, b, _| (a & 0xffff).max(b & 0xffff)),
        ("neg.s32 %r10, %r0;", 'r', |a, _, _| u(-s(a))),
        ("neg.s64 %rd10, %rd0;", 'd', |a, _, _| a.wrapping_neg()),
        ("neg.s16 %h10, %h0;", 'h', |a, _, _| a.wrapping_neg() & 0xffff),
        ("abs.s32 %r10, %r0;", 'r', |a, _, _| u(s(a).abs())),
        ("abs.s64 %rd10, %rd0;", 'd', |a, _, _| (a as i64).unsigned_abs()),
        ("abs.s16 %h10, %h0;", 'h', |a, _, _| h(a).unsigned_abs() & 0xffff),
    ];
    check(cases);
}

#[test]
fn logic_and_shifts() {
    let cases: &[Case<'_>] = &[
        ("and.b32 %r10, %r0, %r1;", 'r', |a, b, _| a & b & M),
        ("or.b32 %r10, %r0, %r1;", 'r', |a, b, _| (a | b) & M),
        ("xor.b32 %r10, %r0, %r1;", 'r', |a, b, _| (a ^ b) & M),
        ("and.b64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a & b),
        ("or.b64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a | b),
        ("xor.b64 %rd10, %rd0, %rd1;", 'd', |a, b, _| a ^ b),
        ("and.b16 %h10, %h0, %h1;", 'h', |a, b, _| a & b & 0xffff),
        ("or.b16 %h10, %h0, %h1;", 'h', |a, b, _| (a | b) & 0xffff),
        ("xor.b16 %h10, %h0, %h1;", 'h', |a, b, _| (a ^ b) & 0xffff),
        ("not.b32 %r10, %r0;", 'r', |a, _, _| !a & M),
        ("not.b64 %rd10, %rd0;", 'd', |a, _, _| !a),
        ("not.b16 %h10, %h0;", 'h', |a, _, _| !a & 0xffff),
        ("cnot.b32 %r10, %r0;", 'r', |a, _, _| u64::from(a & M == 0)),
        ("cnot.b64 %rd10, %rd0;", 'd', |a, _, _| u64::from(a == 0)),
        ("cnot.b16 %h10, %h0;", 'h', |a, _, _| u64::from(a & 0xffff == 0)),
        ("shl.b32 %r10, %r0, %r1;", 'r', |a, b, _| if b & M > 31 { 0 } else { a << (b & 31) & M }),
        ("shl.b64 %rd10, %rd0, %r1;", 'd', |a, b, _| if b & M > 63 { 0 } else { a << (b & 63) }),
        ("shl.b16 %h10, %h0, %r1;", 'h', |a, b, _| if b & M > 15 { 0 } else { a << (b & 15) & 0xffff }),
        ("shr.u32 %r10, %r0, %r1;", 'r', |a, b, _| if b & M > 31 { 0 } else { (a & M) >> (b & 31) }),
        ("shr.b32 %r10, %r0, %r1;", 'r', |a, b, _| if b & M > 31 { 0 } else { (a & M) >> (b & 31) }),
        ("shr.u64 %rd10, %rd0, %r1;", 'd', |a, b, _| if b & M > 63 { 0 } else { a >> (b & 63) }),
        ("shr.u16 %h10, %h0, %r1;", 'h', |a, b, _| if b & M > 15 { 0 } else { (a & 0xffff) >> (b & 15) }),
        ("shr.s32 %r10, %r0, %r1;", 'r', |a, b, _| u(s(a) >> (b & M).min(31))),
        ("shr.s64 %rd10, %rd0, %r1;", 'd', |a, b, _| ((a as i64) >> (b & M).min(63)) as u64),
        ("shr.s16 %h10, %h0, %r1;", 'h', |a, b, _| (h(a) >> (b & M).min(15)) as u64 & 0xffff),
        ("shf.l.wrap.b32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            let n = c & 31;
            if n == 0 { b & M } else { (b << n | (a & M) >> (32 - n)) & M }
        }),
        ("shf.r.wrap.b32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            let n = c & 31;
            if n == 0 { a & M } else { (b << (32 - n) | (a & M) >> n) & M }
        }),
        ("shf.l.clamp.b32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| match (c & M).min(32) {
            0 => b & M,
            n => ((b & M) << n | (a & M) >> (32 - n)) & M,
        }),
        ("shf.r.clamp.b32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| match (c & M).min(32) {
            0 => a & M,
            n => ((b & M) << (32 - n) | (a & M) >> n) & M,
        }),
        ("lop3.b32 %r10, %r0, %r1, %r2, 0x96;", 'r', |a, b, c| (a ^ b ^ c) & M),
        ("lop3.b32 %r10, %r0, %r1, %r2, 0xEA;", 'r', |a, b, c| (a & b | c) & M),
        ("lop3.b32 %r10, %r0, %r1, %r2, 0xE2;", 'r', |a, b, c| table(0xE2, a, b, c)),
        ("lop3.b32 %r0, %r0, %r1, %r0, 0x1B; mov.b32 %r10, %r0;", 'r', |a, b, _| table(0x1B, a, b, a)),
    ];
    check(cases);
}

/// The table's bit for each triple of bits.
fn table(t: u64, a: u64, b: u64, c: u64) -> u64 {
    (0..32).fold(0, |out, i| out | (t >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i)
}

/// `bfe` as the manual's pseudo code has it.
fn bfe(a: u64, b: u64, c: u64, msb: u64, signed: bool) -> u64 {
    let (pos, len) = (b & 0xff, c & 0xff);
    let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(msb) & 1 };
    (0..=msb).fold(0, |d, i| d | (if i < len && pos + i <= msb { a >> (pos + i) & 1 } else { sign }) << i)
}

fn bfi(a: u64, b: u64, c: u64, d: u64, msb: u64) -> u64 {
    let (pos, len) = (c & 0xff, d & 0xff);
    (0..len).take_while(|i| pos + i <= msb).fold(b, |f, i| f & !(1 << (pos + i)) | (a >> i & 1) << (pos + i))
}

fn bfind(a: u64, msb: u64, signed: bool, shift: bool) -> u64 {
    let sign = signed && a >> msb & 1 == 1;
    let found = (0..=msb).rev().find(|i| (a >> i & 1 == 1) != sign);
    found.map_or(M, |i| if shift { msb - i } else { i })
}

#[test]
fn bits_and_bytes() {
    let cases: &[Case<'_>] = &[
        ("popc.b32 %r10, %r0;", 'r', |a, _, _| (0..32).map(|i| a >> i & 1).sum()),
        ("popc.b64 %r10, %rd0;", 'r', |a, _, _| (0..64).map(|i| a >> i & 1).sum()),
        ("clz.b32 %r10, %r0;", 'r', |a, _, _| (0..32).rev().take_while(|i| a >> i & 1 == 0).count() as u64),
        ("clz.b64 %r10, %rd0;", 'r', |a, _, _| (0..64).rev().take_while(|i| a >> i & 1 == 0).count() as u64),
        ("brev.b32 %r10, %r0;", 'r', |a, _, _| (0..32).fold(0, |d, i| d | (a >> i & 1) << (31 - i))),
        ("brev.b64 %rd10, %rd0;", 'd', |a, _, _| (0..64).fold(0, |d, i| d | (a >> i & 1) << (63 - i))),
        ("bfind.u32 %r10, %r0;", 'r', |a, _, _| bfind(a & M, 31, false, false)),
        ("bfind.s32 %r10, %r0;", 'r', |a, _, _| bfind(a & M, 31, true, false)),
        ("bfind.u64 %r10, %rd0;", 'r', |a, _, _| bfind(a, 63, false, false)),
        ("bfind.s64 %r10, %rd0;", 'r', |a, _, _| bfind(a, 63, true, false)),
        ("bfind.shiftamt.u32 %r10, %r0;", 'r', |a, _, _| bfind(a & M, 31, false, true)),
        ("bfind.shiftamt.s32 %r10, %r0;", 'r', |a, _, _| bfind(a & M, 31, true, true)),
        ("bfe.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| bfe(a & M, b, c, 31, false)),
        ("bfe.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| bfe(a & M, b, c, 31, true)),
        ("bfe.u64 %rd10, %rd0, %r1, %r2;", 'd', |a, b, c| bfe(a, b, c, 63, false)),
        ("bfe.s64 %rd10, %rd0, %r1, %r2;", 'd', |a, b, c| bfe(a, b, c, 63, true)),
        ("bfi.b32 %r10, %r0, %r1, %r2, 7;", 'r', |a, b, c| bfi(a, b & M, c, 7, 31)),
        ("bfi.b32 %r10, %r0, %r1, 5, %r2;", 'r', |a, b, c| bfi(a, b & M, 5, c, 31)),
        ("bfi.b64 %rd10, %rd0, %rd1, %r2, 33;", 'd', |a, b, c| bfi(a, b, c, 33, 63)),
        ("bmsk.clamp.b32 %r10, %r0, %r1;", 'r', |a, b, _| {
            (0..32).filter(|&i| i >= a & M && i < (a & M) + (b & M)).fold(0, |m, i| m | 1 << i)
        }),
        ("bmsk.wrap.b32 %r10, %r0, %r1;", 'r', |a, b, _| {
            (0..32).filter(|&i| i >= a & 31 && i < (a & 31) + (b & 31)).fold(0, |m, i| m | 1 << i)
        }),
        ("fns.b32 %r10, %r0, 3, 2;", 'r', |a, _, _| (3..32).filter(|i| a >> i & 1 == 1).nth(1).unwrap_or(M)),
        ("fns.b32 %r10, %r0, 20, -1;", 'r', |a, _, _| (0..=20).rev().find(|i| a >> i & 1 == 1).unwrap_or(M)),
        ("fns.b32 %r10, %r0, 4, 0;", 'r', |a, _, _| if a >> 4 & 1 == 1 { 4 } else { M }),
        ("prmt.b32 %r10, %r0, %r1, %r2;", 'r', prmt),
        ("prmt.b32 %r10, %r0, %r1, 0x7531;", 'r', |a, b, _| prmt(a, b, 0x7531)),
        ("prmt.b32.f4e %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            prmt(a, b, [0x3210, 0x4321, 0x5432, 0x6543][(c & 3) as usize])
        }),
        ("prmt.b32.b4e %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            prmt(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize])
        }),
        ("prmt.b32.rc8 %r10, %r0, %r1, %r2;", 'r', |a, b, c| prmt(a, b, 0x1111 * (c & 3))),
        ("prmt.b32.ecl %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            prmt(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize])
        }),
        ("prmt.b32.ecr %r10, %r0, %r1, %r2;", 'r', |a, b, c| {
            prmt(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize])
        }),
        ("prmt.b32.rc16 %r10, %r0, %r1, %r2;", 'r', |a, b, c| prmt(a, b, [0x1010, 0x3232][(c & 1) as usize])),
    ];
    check(cases);
}

fn prmt(a: u64, b: u64, c: u64) -> u64 {
    let pool = [a & M, b & M];
    (0..4).fold(0, |d, i| {
        let n = c >> (4 * i) & 15;
        let byte = pool[(n >> 2 & 1) as usize] >> (8 * (n & 3)) & 0xff;
        let byte = if n & 8 == 0 {
            byte
        } else if byte & 0x80 != 0 {
            0xff
        } else {
            0
        };
        d | byte << (8 * i)
    })
}

fn dot(a: u64, b: u64, c: u64, sa: bool, sb: bool) -> u64 {
    let at = |x: u64, i: u32, s: bool| {
        if s { i64::from((x >> (8 * i)) as i8) } else { i64::from((x >> (8 * i)) as u8) }
    };
    u(s(c) + (0..4).map(|i| at(a, i, sa) * at(b, i, sb)).sum::<i64>())
}

fn dot2(a: u64, b: u64, c: u64, sa: bool, sb: bool, high: u32) -> u64 {
    let half =
        |i: u32| if sa { i64::from((a >> (16 * i)) as i16) } else { i64::from((a >> (16 * i)) as u16) };
    let byte = |i: u32| {
        if sb { i64::from((b >> (8 * (i + high))) as i8) } else { i64::from((b >> (8 * (i + high))) as u8) }
    };
    u(s(c) + half(0) * byte(0) + half(1) * byte(1))
}

#[test]
fn dot_products() {
    let cases: &[Case<'_>] = &[
        ("dp4a.s32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot(a, b, c, true, true)),
        ("dp4a.u32.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot(a, b, c, false, false)),
        ("dp4a.s32.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot(a, b, c, true, false)),
        ("dp4a.u32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot(a, b, c, false, true)),
        ("dp2a.lo.s32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot2(a, b, c, true, true, 0)),
        ("dp2a.hi.s32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot2(a, b, c, true, true, 2)),
        ("dp2a.lo.u32.s32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot2(a, b, c, false, true, 0)),
        ("dp2a.hi.s32.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot2(a, b, c, true, false, 2)),
        ("dp2a.hi.u32.u32 %r10, %r0, %r1, %r2;", 'r', |a, b, c| dot2(a, b, c, false, false, 2)),
    ];
    check(cases);
}

#[test]
fn carries_make_wide_sums() {
    let cases: &[Case<'_>] = &[
        ("add.cc.u32 %r3, %r0, %r1; addc.u32 %r4, 0, 0; mov.b64 %rd10, {%r3, %r4};", 'd', |a, b, _| {
            (a & M) + (b & M)
        }),
        (
            "mov.b64 {%r3, %r4}, %rd0; mov.b64 {%r5, %r6}, %rd1; sub.cc.u32 %r7, %r3, %r5; subc.u32 %r8, %r4, %r6; mov.b64 %rd10, {%r7, %r8};",
            'd',
            |a, b, _| a.wrapping_sub(b),
        ),
        (
            "mov.b64 {%r3, %r4}, %rd0; mov.b64 {%r5, %r6}, %rd1; add.cc.u32 %r7, %r3, %r5; addc.cc.u32 %r8, %r4, %r6; addc.u32 %r10, 0, 0;",
            'r',
            |a, b, _| u64::from(a.overflowing_add(b).1),
        ),
        (
            "mad.lo.cc.u32 %r3, %r0, %r1, %r2; madc.hi.u32 %r4, %r0, %r1, 0; mov.b64 %rd10, {%r3, %r4};",
            'd',
            |a, b, c| (a & M) * (b & M) + (c & M),
        ),
        ("add.cc.u64 %rd3, %rd0, %rd1; addc.u64 %rd10, 0, 0;", 'd', |a, b, _| {
            u64::from(a.overflowing_add(b).1)
        }),
    ];
    check(cases);
}
