//! `cvt` between scalar types: integers of 8 to 64 bits, f16, bf16, f32, f64, in every combination PTX
//! allows.
//!
//! A [`Conversion`] is what the instruction's modifiers say; [`Conversion::apply`] is the function of one
//! lane. [`Conversion::fast`] gives a straight-line function for the combinations that kernels run in their
//! inner loops.

use super::exact::{Exact, Value};
use super::float::{self, flush};
use super::format::{BF16, F16, F32, F64, Format, Overflow, Rounding};
use super::half;

/// A scalar PTX type as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// `.u8`, `.u16`, `.u32`, `.u64`: an unsigned integer of that many bits.
    Unsigned(u32),
    /// `.s8`, `.s16`, `.s32`, `.s64`: two's complement of that many bits.
    Signed(u32),
    /// `.f16`, `.bf16`, `.f32`, `.f64`.
    Float(Format),
}

impl Scalar {
    /// Reads a PTX type name without its dot.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "u8" | "u16" | "u32" | "u64" => Self::Unsigned(name[1..].parse().ok()?),
            "s8" | "s16" | "s32" | "s64" => Self::Signed(name[1..].parse().ok()?),
            "f16" => Self::Float(F16),
            "bf16" => Self::Float(BF16),
            "f32" => Self::Float(F32),
            "f64" => Self::Float(F64),
            _ => return None,
        })
    }

    /// Width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Unsigned(bits) | Self::Signed(bits) => bits,
            Self::Float(format) => format.bits(),
        }
    }

    /// Least and greatest integer of an integer type.
    fn range(self) -> (i128, i128) {
        match self {
            Self::Unsigned(bits) => (0, (1 << bits) - 1),
            Self::Signed(bits) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            Self::Float(_) => (i128::MIN, i128::MAX),
        }
    }
}

/// One `cvt` instruction between scalar types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Source type.
    pub from: Scalar,
    /// Destination type.
    pub to: Scalar,
    /// Rounding mode; where PTX wants none, it has no effect.
    pub rounding: Rounding,
    /// An integer rounding mode on a conversion between floats of one size: rounds to an integral value.
    pub integral: bool,
    /// `.ftz`: subnormal f32 inputs and results become zero.
    pub ftz: bool,
    /// `.sat`: integers clamp to the destination's range, floats to `[0, 1]`.
    pub saturate: bool,
    /// `.satfinite`: overflow gives the largest finite number.
    pub finite: bool,
    /// `.relu`: negative results become zero.
    pub relu: bool,
}

impl Conversion {
    /// A conversion without modifiers, to nearest even.
    pub const fn new(from: Scalar, to: Scalar) -> Self {
        let rounding = Rounding::Even;
        Self { from, to, rounding, integral: false, ftz: false, saturate: false, finite: false, relu: false }
    }

    /// Converts one lane.
    ///
    /// # Returns
    /// The result's bits; signed integers are sign-extended to 64 bits, everything else zero-extended (a
    /// destination register wider than the type takes them as they are).
    pub fn apply(&self, bits: u64) -> u64 {
        match (self.from, self.to) {
            (Scalar::Float(from), Scalar::Float(to)) => self.float_to_float(from, to, bits),
            (Scalar::Float(from), _) => self.float_to_integer(from, bits),
            (_, Scalar::Float(to)) => {
                let value = Value::Finite(Exact::integer(integer(self.from, bits)));
                self.finish(to, to.pack(value, self.rounding, Overflow::Infinity))
            }
            _ => self.integer_to_integer(bits),
        }
    }

    fn input(&self, format: Format, bits: u64) -> u64 {
        if self.ftz && format == F32 { u64::from(flush(bits as u32)) } else { bits }
    }

    fn float_to_float(&self, from: Format, to: Format, bits: u64) -> u64 {
        let mut value = from.unpack(self.input(from, bits));
        if let (true, Value::Finite(exact)) = (self.integral, value) {
            let significand = exact.round_at(exact.exponent.max(0), self.rounding);
            value =
                Value::Finite(Exact { significand, exponent: exact.exponent.max(0), sticky: false, ..exact });
        }
        let overflow = if self.finite { Overflow::Finite } else { Overflow::Infinity };
        self.finish(to, to.pack(value, self.rounding, overflow))
    }

    /// What happens to a float after rounding: flush, saturate, clamp below.
    fn finish(&self, to: Format, bits: u64) -> u64 {
        let bits = if self.ftz && to == F32 { u64::from(flush(bits as u32)) } else { bits };
        if self.saturate {
            let one = to.from_f64(1.0, Rounding::Even, Overflow::Infinity);
            return if bits & to.sign_bit() != 0 || to.is_nan(bits) { 0 } else { bits.min(one) };
        }
        if self.relu && bits & to.sign_bit() != 0 && !to.is_nan(bits) { 0 } else { bits }
    }

    fn float_to_integer(&self, from: Format, bits: u64) -> u64 {
        let (least, greatest) = self.to.range();
        let clamped = match from.unpack(self.input(from, bits)) {
            // PTX: zero, unless 64 bits take part on either side.
            Value::Nan if from != F64 && self.to.bits() != 64 => 0,
            Value::Nan => return extend(self.to, 1 << (self.to.bits() - 1)),
            Value::Infinite { negative } => {
                if negative {
                    least
                } else {
                    greatest
                }
            }
            Value::Finite(exact) => {
                // Beyond 2^100 every destination is saturated; below, the magnitude fits an i128 easily.
                let huge = exact.top().is_some_and(|top| top > 100);
                let magnitude = if huge { i128::MAX } else { exact.round_at(0, self.rounding) as i128 };
                let value = if exact.negative { -magnitude } else { magnitude };
                value.clamp(least, greatest)
            }
        };
        extend(self.to, clamped as u64)
    }

    fn integer_to_integer(&self, bits: u64) -> u64 {
        let value = integer(self.from, bits);
        let (least, greatest) = self.to.range();
        extend(self.to, if self.saturate { value.clamp(least, greatest) as u64 } else { value as u64 })
    }

    /// A straight-line function for the commonest conversions, `None` for the rest.
    pub fn fast(&self) -> Option<fn(u64) -> u64> {
        use Scalar::{Float, Signed, Unsigned};
        let plain = !(self.ftz || self.saturate || self.finite || self.relu);
        if !plain || self.integral {
            return None;
        }
        let even = self.rounding == Rounding::Even;
        Some(match (self.from, self.to) {
            (Float(from), Float(to)) if from == F32 && to == BF16 && even => {
                |x| u64::from(half::bf16_from_f32(f32::from_bits(x as u32)))
            }
            (Float(from), Float(to)) if from == F32 && to == F16 && even => {
                |x| u64::from(half::f16_from_f32(f32::from_bits(x as u32)))
            }
            (Float(from), Float(to)) if from == F16 && to == F32 => {
                |x| u64::from(half::f32_from_f16(x as u16).to_bits())
            }
            (Float(from), Float(to)) if from == BF16 && to == F32 => {
                |x| u64::from(float::canonical(half::f32_from_bf16(x as u16).to_bits()))
            }
            (Float(from), Signed(32)) if from == F32 && self.rounding == Rounding::Zero => {
                |x| i64::from(f32::from_bits(x as u32) as i32) as u64
            }
            (Float(from), Signed(32)) if from == F32 && even => {
                |x| i64::from(f32::from_bits(x as u32).round_ties_even() as i32) as u64
            }
            (Float(from), Unsigned(32)) if from == F32 && self.rounding == Rounding::Zero => {
                |x| u64::from(f32::from_bits(x as u32) as u32)
            }
            (Signed(32), Float(to)) if to == F32 && even => |x| u64::from((x as i32 as f32).to_bits()),
            (Unsigned(32), Float(to)) if to == F32 && even => |x| u64::from((x as u32 as f32).to_bits()),
            _ => return None,
        })
    }
}

/// The integer a register holds under an integer type.
fn integer(kind: Scalar, bits: u64) -> i128 {
    match kind {
        Scalar::Signed(width) => i128::from(((bits << (64 - width)) as i64) >> (64 - width)),
        _ => i128::from(bits & (u64::MAX >> (64 - kind.bits()))),
    }
}

/// Register contents of an integer: truncated to the type's width, then sign- or zero-extended.
fn extend(kind: Scalar, bits: u64) -> u64 {
    integer(kind, bits) as u64
}
