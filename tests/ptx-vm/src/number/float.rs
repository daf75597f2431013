//! f32 and f64 arithmetic as PTX has it: every rounding mode, `.ftz`, `.sat`, canonical NaN, and the minima
//! and maxima of every format.
//!
//! `.rn` goes through the host's arithmetic (the same IEEE function, NaN made canonical), the other modes
//! through [`super::exact`]. Flushing is separate from arithmetic: an instruction with `.ftz` is
//! `flush(op(flush(a), flush(b)))`, which is what [`flush`] is for.

use super::exact;
use super::format::{F32, F64, Format, Overflow, Rounding};
use super::half::NAN32;

/// f32 bits with NaN made canonical.
#[inline(always)]
pub fn canonical(bits: u32) -> u32 {
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits }
}

/// f64 bits with NaN made canonical.
#[inline(always)]
pub fn canonical64(bits: u64) -> u64 {
    if bits & (u64::MAX >> 1) > 0x7ff0_0000_0000_0000 { F64.nan_bits() } else { bits }
}

/// `.ftz`: a subnormal f32 becomes zero with the same sign.
#[inline(always)]
pub fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

/// `.sat` on f32 bits: to `[+0, 1]`, NaN to positive zero.
#[inline(always)]
pub fn saturate(bits: u32) -> u32 {
    let value = f32::from_bits(bits);
    if value >= 1.0 {
        1.0f32.to_bits()
    } else if value > 0.0 {
        bits
    } else {
        0
    }
}

/// `.sat` on f64 bits: to `[+0, 1]`, NaN to positive zero.
#[inline(always)]
pub fn saturate64(bits: u64) -> u64 {
    let value = f64::from_bits(bits);
    if value >= 1.0 {
        1.0f64.to_bits()
    } else if value > 0.0 {
        bits
    } else {
        0
    }
}

macro_rules! operations {
    ($format:ident, $bits:ty, $float:ty, $canonical:ident, $add:ident, $mul:ident, $fma:ident, $div:ident, $sqrt:ident) => {
        /// `a + b` in a rounding mode, NaN canonical.
        #[inline]
        pub fn $add(a: $bits, b: $bits, rounding: Rounding) -> $bits {
            if rounding == Rounding::Even {
                return $canonical((<$float>::from_bits(a) + <$float>::from_bits(b)).to_bits());
            }
            let sum = exact::add($format.unpack(a.into()), $format.unpack(b.into()), rounding);
            $format.pack(sum, rounding, Overflow::Infinity) as $bits
        }

        /// `a * b` in a rounding mode, NaN canonical.
        #[inline]
        pub fn $mul(a: $bits, b: $bits, rounding: Rounding) -> $bits {
            if rounding == Rounding::Even {
                return $canonical((<$float>::from_bits(a) * <$float>::from_bits(b)).to_bits());
            }
            let multiplied = exact::mul($format.unpack(a.into()), $format.unpack(b.into()));
            $format.pack(multiplied, rounding, Overflow::Infinity) as $bits
        }

        /// `a * b + c` rounded once in a rounding mode, NaN canonical.
        #[inline]
        pub fn $fma(a: $bits, b: $bits, c: $bits, rounding: Rounding) -> $bits {
            if rounding == Rounding::Even {
                let (a, b, c) = (<$float>::from_bits(a), <$float>::from_bits(b), <$float>::from_bits(c));
                return $canonical(a.mul_add(b, c).to_bits());
            }
            let [a, b, c] = [a, b, c].map(|x| $format.unpack(x.into()));
            $format.pack(exact::fma(a, b, c, rounding), rounding, Overflow::Infinity) as $bits
        }

        /// `a / b` in a rounding mode, NaN canonical.
        #[inline]
        pub fn $div(a: $bits, b: $bits, rounding: Rounding) -> $bits {
            if rounding == Rounding::Even {
                return $canonical((<$float>::from_bits(a) / <$float>::from_bits(b)).to_bits());
            }
            let quotient = exact::div($format.unpack(a.into()), $format.unpack(b.into()));
            $format.pack(quotient, rounding, Overflow::Infinity) as $bits
        }

        /// Square root in a rounding mode, NaN canonical.
        #[inline]
        pub fn $sqrt(a: $bits, rounding: Rounding) -> $bits {
            if rounding == Rounding::Even {
                return $canonical(<$float>::from_bits(a).sqrt().to_bits());
            }
            $format.pack(exact::sqrt($format.unpack(a.into())), rounding, Overflow::Infinity) as $bits
        }
    };
}

operations!(F32, u32, f32, canonical, add, mul, fma, div, sqrt);
operations!(F64, u64, f64, canonical64, add64, mul64, fma64, div64, sqrt64);

/// What `min` and `max` do with NaN and signs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extremum {
    /// The larger of the two instead of the smaller.
    pub max: bool,
    /// `.NaN`: a NaN operand makes the result NaN; without it a NaN loses against a number.
    pub nan: bool,
    /// `.xorsign.abs`: compares magnitudes and gives the result the product of the signs.
    pub xorsign: bool,
}

/// `min` or `max` of two bit patterns of any format; `-0` is less than `+0`, NaN results are canonical.
#[inline]
pub fn extremum(format: Format, a: u64, b: u64, how: Extremum) -> u64 {
    let sign = format.sign_bit();
    let (a_nan, b_nan) = (format.is_nan(a), format.is_nan(b));
    if (how.nan && (a_nan || b_nan)) || (a_nan && b_nan) {
        return format.nan_bits();
    }
    let clear = if how.xorsign { !sign } else { u64::MAX };
    let (x, y) = (a & clear, b & clear);
    // Ordered as signed integers once the magnitudes of negative numbers are turned around.
    let key = |v: u64| if v & sign != 0 { -((v & !sign) as i128) - 1 } else { v as i128 };
    let second = if a_nan {
        true
    } else if b_nan {
        false
    } else {
        (key(y) < key(x)) != how.max && x != y
    };
    let chosen = if second { y } else { x };
    if how.xorsign { chosen | (a ^ b) & sign } else { chosen }
}
