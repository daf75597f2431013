//! Binary floating-point formats and the one rounding step.
//!
//! A [`Format`] is described by its field widths. [`Format::unpack`] and [`Format::pack`] are the only places
//! that know where sign, exponent and fraction lie; `pack` is the only place that rounds.

use super::exact::{Exact, Value};

/// A PTX rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// `.rn`, `.rni`: to nearest, ties to the even neighbour.
    Even,
    /// `.rna`: to nearest, ties away from zero.
    Away,
    /// `.rz`, `.rzi`: toward zero.
    Zero,
    /// `.rm`, `.rmi`: toward negative infinity.
    Down,
    /// `.rp`, `.rpi`: toward positive infinity.
    Up,
}

impl Rounding {
    /// The five modes.
    pub const ALL: [Rounding; 5] = [Self::Even, Self::Away, Self::Zero, Self::Down, Self::Up];

    /// Reads a PTX modifier without its dot: `rn`, `rna`, `rz`, `rm`, `rp` or `rni`, `rzi`, `rmi`, `rpi`.
    pub fn parse(modifier: &str) -> Option<Self> {
        Some(match modifier {
            "rn" | "rni" => Self::Even,
            "rna" => Self::Away,
            "rz" | "rzi" => Self::Zero,
            "rm" | "rmi" => Self::Down,
            "rp" | "rpi" => Self::Up,
            _ => return None,
        })
    }

    /// Whether a magnitude with last kept bit `odd`, first dropped bit `half` and any later bit `rest` is
    /// rounded away from zero.
    #[inline]
    pub(crate) fn increments(self, negative: bool, odd: bool, half: bool, rest: bool) -> bool {
        match self {
            Self::Even => half && (rest || odd),
            Self::Away => half,
            Self::Zero => false,
            Self::Down => negative && (half || rest),
            Self::Up => !negative && (half || rest),
        }
    }
}

/// What a finite result beyond the largest finite number becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// IEEE 754: infinity or the largest finite number, as the rounding mode says. A format without infinity
    /// gives NaN.
    Infinity,
    /// `.satfinite`: the largest finite number with the sign kept, for infinities too.
    Finite,
}

/// A binary floating-point format: sign, exponent and fraction in one word of `1 + exponent + fraction` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// Width of the exponent field in bits.
    pub exponent: u32,
    /// Width of the fraction field in bits.
    pub fraction: u32,
    /// Whether the highest exponent holds infinity and NaN (IEEE), or numbers and one NaN of all ones (OCP
    /// E4M3).
    pub infinity: bool,
}

/// IEEE binary16.
pub const F16: Format = Format::ieee(5, 10);
/// bfloat16: the upper half of an f32.
pub const BF16: Format = Format::ieee(8, 7);
/// The 19 significant bits of tf32; in a register they are the upper bits of 32 (see
/// [`super::half::tf32_from_f32`]).
pub const TF32: Format = Format::ieee(8, 10);
/// IEEE binary32.
pub const F32: Format = Format::ieee(8, 23);
/// IEEE binary64.
pub const F64: Format = Format::ieee(11, 52);
/// OCP FP8 E4M3: no infinity, largest number 448, NaN `0x7f` and `0xff`.
pub const E4M3: Format = Format { exponent: 4, fraction: 3, infinity: false };
/// OCP FP8 E5M2: infinity `0x7c`, largest number 57344.
pub const E5M2: Format = Format::ieee(5, 2);

impl Format {
    const fn ieee(exponent: u32, fraction: u32) -> Self {
        Self { exponent, fraction, infinity: true }
    }

    /// Width of the format in bits.
    pub const fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    /// Bias of the exponent field.
    pub const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Bit pattern of the sign.
    pub const fn sign_bit(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    /// Bit pattern of positive infinity; NaN where the format has none.
    pub const fn infinity_bits(self) -> u64 {
        if self.infinity { ((1 << self.exponent) - 1) << self.fraction } else { self.nan_bits() }
    }

    /// Canonical NaN: sign clear, every other bit set (PTX: `0x7fff`, `0x7fffffff`); for f64 the quiet NaN
    /// the hardware makes, `0xfff8000000000000`.
    pub const fn nan_bits(self) -> u64 {
        if self.fraction == 52 { 0xfff8_0000_0000_0000 } else { self.sign_bit() - 1 }
    }

    /// Bit pattern of the largest finite number.
    pub const fn max_bits(self) -> u64 {
        if self.infinity { self.infinity_bits() - 1 } else { self.nan_bits() - 1 }
    }

    /// Whether a pattern is a NaN.
    pub const fn is_nan(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        if self.infinity { magnitude > self.infinity_bits() } else { magnitude == self.sign_bit() - 1 }
    }

    /// Takes a bit pattern apart; bits above the format's width are ignored.
    pub fn unpack(self, bits: u64) -> Value {
        let negative = bits & self.sign_bit() != 0;
        let magnitude = bits & (self.sign_bit() - 1);
        if self.is_nan(magnitude) {
            return Value::Nan;
        }
        if self.infinity && magnitude == self.infinity_bits() {
            return Value::Infinite { negative };
        }
        let field = (magnitude >> self.fraction) as i32;
        let fraction = u128::from(magnitude & ((1 << self.fraction) - 1));
        let (significand, field) =
            if field == 0 { (fraction, 1) } else { (fraction | 1 << self.fraction, field) };
        let exponent = field - self.bias() - self.fraction as i32;
        Value::Finite(Exact { negative, exponent, significand, sticky: false })
    }

    /// Rounds a value into the format.
    ///
    /// # Returns
    /// The bit pattern, zero-extended to 64 bits; NaN becomes the canonical one.
    pub fn pack(self, value: Value, rounding: Rounding, overflow: Overflow) -> u64 {
        match value {
            Value::Nan => self.nan_bits(),
            Value::Infinite { negative } => {
                let magnitude = match overflow {
                    Overflow::Infinity => self.infinity_bits(),
                    Overflow::Finite => self.max_bits(),
                };
                magnitude | self.sign(negative)
            }
            Value::Finite(exact) => self.pack_finite(exact, rounding, overflow),
        }
    }

    fn sign(self, negative: bool) -> u64 {
        if negative { self.sign_bit() } else { 0 }
    }

    fn pack_finite(self, exact: Exact, rounding: Rounding, overflow: Overflow) -> u64 {
        let sign = self.sign(exact.negative);
        let Some(top) = exact.top() else {
            // Nothing but a remainder below every bit: zero, or the least number when rounding away from
            // zero.
            let up = rounding.increments(exact.negative, false, false, exact.sticky);
            return sign | u64::from(up);
        };
        let least = 1 - self.bias();
        let ulp = top.max(least) - self.fraction as i32;
        let kept = exact.round_at(ulp, rounding);
        let field = i64::from(ulp) + i64::from(self.fraction) + i64::from(self.bias());
        // A carry out of the fraction runs into the exponent field, which is what it must do.
        let magnitude = match u64::try_from(field - 1) {
            Ok(below) if below < 1 << self.exponent => (below << self.fraction) + kept as u64,
            _ => u64::MAX,
        };
        if magnitude <= self.max_bits() {
            return sign | magnitude;
        }
        let finite = match (overflow, rounding) {
            (Overflow::Finite, _) | (_, Rounding::Zero) => true,
            (_, Rounding::Down) => !exact.negative,
            (_, Rounding::Up) => exact.negative,
            (_, Rounding::Even | Rounding::Away) => false,
        };
        sign | if finite { self.max_bits() } else { self.infinity_bits() }
    }

    /// The value of a bit pattern as f64: exact for every format here; NaN is the host's.
    pub fn to_f64(self, bits: u64) -> f64 {
        match self.fraction {
            52 => f64::from_bits(bits),
            23 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(F64.pack(self.unpack(bits), Rounding::Even, Overflow::Infinity)),
        }
    }

    /// Rounds an f64 into the format.
    pub fn from_f64(self, value: f64, rounding: Rounding, overflow: Overflow) -> u64 {
        self.pack(F64.unpack(value.to_bits()), rounding, overflow)
    }
}
