//! The 16-bit formats and tf32 on the fast road: conversions in straight-line integer code and correctly
//! rounded arithmetic through the host's f32 and f64.
//!
//! Why going through a wider format is exact here: sums, differences and products of two f16 or bf16 numbers
//! rounded first to a format with at least `2p + 2` bits and then to `p` bits are correctly rounded; where
//! subnormals or a third operand break that rule, the wide result is rounded *to odd* (an inexact result gets
//! an odd last bit), after which one more rounding to a format at least two bits narrower is always right.

use super::format::{F16, Format, Overflow, Rounding, TF32};

/// Canonical NaN of f16 and bf16.
pub const NAN16: u16 = 0x7fff;
/// Canonical NaN of f32 and tf32.
pub const NAN32: u32 = 0x7fff_ffff;

/// f16 to f32: exact; NaN becomes canonical.
#[inline(always)]
pub fn f32_from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The f16 field read as an f32 field is 2^112 too small, in the normal and the subnormal range alike.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let finite = magnitude < 0x7c00 << 13;
    let special = if magnitude == 0x7c00 << 13 { sign | 0x7f80_0000 } else { NAN32 };
    f32::from_bits(if finite { sign | scaled } else { special })
}

/// f32 to f16, `.rn`; NaN becomes canonical.
#[inline(always)]
pub fn f16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Rounds by carrying; a carry out of the largest number gives infinity, as it must.
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // Below 2^-14 the host's own addition rounds to a multiple of 2^-24, which is the subnormal's unit.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let bounded = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
    (if magnitude > 0x7f80_0000 { u32::from(NAN16) } else { sign | bounded }) as u16
}

/// bf16 to f32: exact; a NaN keeps its bits (PTX leaves them open).
#[inline(always)]
pub fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bf16, `.rn`; NaN becomes canonical.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN16 } else { rounded as u16 }
}

/// `cvt.rna.tf32.f32`: to 10 fraction bits, ties away from zero; the low 13 bits are zero. NaN becomes
/// canonical.
#[inline(always)]
pub fn tf32_from_f32(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits.wrapping_add(0x1000) & !0x1fff }
}

/// f32 to tf32 in any rounding mode, with `.satfinite` if asked.
pub fn tf32_from_f32_rounded(value: f32, rounding: Rounding, overflow: Overflow) -> u32 {
    if value.is_nan() {
        return NAN32;
    }
    (TF32.from_f64(f64::from(value), rounding, overflow) as u32) << 13
}

/// The number a tensor core reads from a tf32 register: the low 13 bits do not count.
#[inline(always)]
pub fn f32_from_tf32(bits: u32) -> f32 {
    f32::from_bits(bits & !0x1fff)
}

/// f64 to f32 rounded to odd: exact results stay, others get an odd last bit.
#[inline(always)]
pub fn odd_f32(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    // The neighbour on the other side of the value; magnitudes are ordered like their bit patterns.
    let toward = if value.abs() > back.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = back != value && !value.is_nan();
    f32::from_bits(if inexact && bits & 1 == 0 { toward } else { bits })
}

/// `a + b` rounded to odd in f64. Overflow is the caller's affair: operands stay far below f64's range.
#[inline(always)]
pub fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // Knuth's two-sum: `error` is exactly what the addition lost.
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    let bits = sum.to_bits();
    let grows = (error > 0.0) == (sum > 0.0);
    let toward = if grows { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if error != 0.0 && sum.is_finite() && bits & 1 == 0 { toward } else { bits })
}

/// A 16-bit format as fast arithmetic sees it.
pub trait Half {
    /// The format's description, for the exact road.
    const FORMAT: Format;
    /// Widens exactly.
    fn widen(bits: u16) -> f32;
    /// Rounds to nearest even.
    fn narrow(value: f32) -> u16;
}

/// IEEE binary16.
#[derive(Clone, Copy, Debug)]
pub struct Binary16;
/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct Brain16;

impl Half for Binary16 {
    const FORMAT: Format = F16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32_from_f16(bits)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        f16_from_f32(value)
    }
}

impl Half for Brain16 {
    const FORMAT: Format = super::format::BF16;
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32_from_bf16(bits)
    }
    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        bf16_from_f32(value)
    }
}

/// `a + b`, `.rn`.
#[inline(always)]
pub fn add<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) + H::widen(b))
}

/// `a - b`, `.rn`.
#[inline(always)]
pub fn sub<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(H::widen(a) - H::widen(b))
}

/// `a * b`, `.rn`.
#[inline(always)]
pub fn mul<H: Half>(a: u16, b: u16) -> u16 {
    H::narrow(odd_f32(f64::from(H::widen(a)) * f64::from(H::widen(b))))
}

/// `a * b + c` rounded once, `.rn`.
#[inline(always)]
pub fn fma<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    let multiplied = f64::from(H::widen(a)) * f64::from(H::widen(b));
    H::narrow(odd_f32(odd_sum(multiplied, f64::from(H::widen(c)))))
}

/// `-a`; NaN becomes canonical.
#[inline(always)]
pub fn neg<H: Half>(a: u16) -> u16 {
    if H::widen(a).is_nan() { NAN16 } else { a ^ 0x8000 }
}

/// `|a|`; NaN becomes canonical.
#[inline(always)]
pub fn abs<H: Half>(a: u16) -> u16 {
    if H::widen(a).is_nan() { NAN16 } else { a & 0x7fff }
}

/// `.relu`: negative numbers and negative zero become zero, NaN the canonical one.
#[inline(always)]
pub fn relu<H: Half>(a: u16) -> u16 {
    let wide = H::widen(a);
    if wide.is_nan() {
        NAN16
    } else if a & 0x8000 != 0 {
        0
    } else {
        a
    }
}

/// `.sat`: to `[0, 1]`, NaN to positive zero.
#[inline(always)]
pub fn saturate<H: Half>(a: u16) -> u16 {
    let wide = H::widen(a);
    if wide >= 1.0 {
        H::narrow(1.0)
    } else if wide > 0.0 {
        a
    } else {
        0
    }
}

/// Applies a function to both halves of packed pairs (`.f16x2`, `.bf16x2`).
#[inline(always)]
pub fn pair1(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(a as u16)) | u32::from(f((a >> 16) as u16)) << 16
}

/// Applies a function to both halves of packed pairs.
#[inline(always)]
pub fn pair2(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// Applies a function to both halves of packed pairs.
#[inline(always)]
pub fn pair3(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let high = f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(f(a as u16, b as u16, c as u16)) | u32::from(high) << 16
}
