//! Exact arithmetic on unpacked numbers: every result is the true one, up to a sticky bit.
//!
//! A sum, product, quotient or root of numbers with at most 53 significant bits is held as an integer of at
//! most 128 bits and a flag that says "and a little more". That is all a single rounding needs, so
//! `format.pack(add(a, b), rounding)` is the correctly rounded sum in every mode.

use super::format::Rounding;

/// A finite number, `(-1)^negative * (significand + sticky * tiny) * 2^exponent` with `0 < tiny < 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Sign; zeros have one too.
    pub negative: bool,
    /// Weight of the significand's last bit, as a power of two.
    pub exponent: i32,
    /// Integer significand, not normalised.
    pub significand: u128,
    /// Whether the true magnitude is a little larger than the significand says.
    pub sticky: bool,
}

/// An unpacked number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Not a number; payloads are not kept, as on the device.
    Nan,
    /// An infinity.
    Infinite {
        /// Its sign.
        negative: bool,
    },
    /// Zero or any other finite number.
    Finite(Exact),
}

impl Exact {
    /// Zero with a sign.
    pub const fn zero(negative: bool) -> Self {
        Self { negative, exponent: 0, significand: 0, sticky: false }
    }

    /// An integer.
    pub fn integer(value: i128) -> Self {
        Self { negative: value < 0, exponent: 0, significand: value.unsigned_abs(), sticky: false }
    }

    /// Whether the number is zero.
    pub const fn is_zero(&self) -> bool {
        self.significand == 0 && !self.sticky
    }

    /// Weight of the highest set bit as a power of two, `None` when the significand is zero.
    pub fn top(&self) -> Option<i32> {
        (self.significand != 0)
            .then(|| self.exponent.saturating_add(127 - self.significand.leading_zeros() as i32))
    }

    /// The magnitude rounded to a multiple of `2^ulp`, in units of `2^ulp`.
    ///
    /// The caller sees to it that the result fits 128 bits: `ulp` lies at most that far below the highest
    /// bit.
    pub(crate) fn round_at(&self, ulp: i32, rounding: Rounding) -> u128 {
        let shift = i64::from(ulp) - i64::from(self.exponent);
        if shift <= 0 {
            let kept = self.significand << (-shift).min(127);
            let up = rounding.increments(self.negative, kept & 1 != 0, false, self.sticky);
            return kept + u128::from(up);
        }
        let (kept, half, rest) = if shift > 128 {
            (0, false, self.significand != 0)
        } else {
            let half = self.significand >> (shift - 1) & 1 != 0;
            let rest = self.significand & ((1 << (shift - 1)) - 1) != 0;
            (self.significand.checked_shr(shift as u32).unwrap_or(0), half, rest)
        };
        let up = rounding.increments(self.negative, kept & 1 != 0, half, rest || self.sticky);
        kept + u128::from(up)
    }

    /// The same number with its highest bit at bit `bit`; bits that fall out at the bottom go into the sticky
    /// flag.
    fn with_top_at(self, bit: i32) -> Self {
        let Some(top) = self.top() else { return self };
        self.with_exponent(top - bit)
    }

    fn with_exponent(self, exponent: i32) -> Self {
        let shift = i64::from(self.exponent) - i64::from(exponent);
        if shift >= 0 {
            return Self { exponent, significand: self.significand << shift.min(127), ..self };
        }
        let down = (-shift).min(128) as u32;
        let significand = self.significand.checked_shr(down).unwrap_or(0);
        let back = significand.checked_shl(down).unwrap_or(0);
        Self { exponent, significand, sticky: self.sticky || back != self.significand, ..self }
    }
}

/// Highest bit position that leaves room for a carry.
const TOP: i32 = 125;

/// Sum. `rounding` decides only the sign of an exact zero (negative when rounding down).
pub fn add(a: Value, b: Value, rounding: Rounding) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { negative: x }, Value::Infinite { negative: y }) if x != y => Value::Nan,
        (Value::Infinite { .. }, _) => a,
        (_, Value::Infinite { .. }) => b,
        (Value::Finite(x), Value::Finite(y)) => Value::Finite(add_finite(x, y, rounding)),
    }
}

fn add_finite(x: Exact, y: Exact, rounding: Rounding) -> Exact {
    let (Some(x_top), Some(y_top)) = (x.top(), y.top()) else {
        return match (x.is_zero(), y.is_zero()) {
            (true, true) if x.negative != y.negative => Exact::zero(rounding == Rounding::Down),
            (true, _) => y,
            _ => x,
        };
    };
    let (large, small) = if x_top >= y_top { (x, y) } else { (y, x) };
    let large = large.with_top_at(TOP);
    let small = small.with_exponent(large.exponent);
    if large.negative == small.negative {
        let significand = large.significand + small.significand;
        return Exact { significand, sticky: large.sticky || small.sticky, ..large };
    }
    // A remainder of the subtrahend borrows one unit and leaves a remainder of the difference. Only one side
    // can have one: operands come with at most 106 bits, and what is shifted out is the smaller of the two.
    let difference = large.significand.abs_diff(small.significand);
    if difference == 0 && !small.sticky {
        return Exact::zero(rounding == Rounding::Down);
    }
    let negative = if large.significand >= small.significand { large.negative } else { small.negative };
    Exact { negative, significand: difference - u128::from(small.sticky), sticky: small.sticky, ..large }
}

/// Product of two numbers of at most 53 significant bits: exact.
pub fn mul(a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Finite(x), Value::Finite(y)) => Value::Finite(Exact {
            negative: x.negative != y.negative,
            exponent: x.exponent + y.exponent,
            significand: x.significand * y.significand,
            sticky: false,
        }),
        (Value::Infinite { negative }, Value::Finite(x))
        | (Value::Finite(x), Value::Infinite { negative }) => {
            if x.is_zero() {
                Value::Nan
            } else {
                Value::Infinite { negative: negative != x.negative }
            }
        }
        (Value::Infinite { negative: x }, Value::Infinite { negative: y }) => {
            Value::Infinite { negative: x != y }
        }
    }
}

/// `a * b + c`, exact up to the sticky flag.
pub fn fma(a: Value, b: Value, c: Value, rounding: Rounding) -> Value {
    add(mul(a, b), c, rounding)
}

/// Quotient of two numbers of at most 53 significant bits.
pub fn div(a: Value, b: Value) -> Value {
    let (Some(x_negative), Some(y_negative)) = (a.negative(), b.negative()) else { return Value::Nan };
    let negative = x_negative != y_negative;
    match (a, b) {
        (Value::Infinite { .. }, Value::Infinite { .. }) => Value::Nan,
        (Value::Infinite { .. }, _) => Value::Infinite { negative },
        (_, Value::Infinite { .. }) => Value::Finite(Exact::zero(negative)),
        (Value::Finite(x), Value::Finite(y)) => match (x.is_zero(), y.is_zero()) {
            (true, true) => Value::Nan,
            (true, false) => Value::Finite(Exact::zero(negative)),
            (false, true) => Value::Infinite { negative },
            (false, false) => {
                let x = x.with_top_at(TOP);
                Value::Finite(Exact {
                    negative,
                    exponent: x.exponent - y.exponent,
                    significand: x.significand / y.significand,
                    sticky: x.significand % y.significand != 0,
                })
            }
        },
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
    }
}

/// Square root of a number of at most 53 significant bits; NaN below zero.
pub fn sqrt(a: Value) -> Value {
    match a {
        Value::Nan | Value::Infinite { negative: true } => Value::Nan,
        Value::Infinite { negative: false } => a,
        Value::Finite(x) if x.is_zero() => a,
        Value::Finite(x) if x.negative => Value::Nan,
        Value::Finite(x) => {
            let mut wide = x.with_top_at(TOP);
            if wide.exponent % 2 != 0 {
                wide = wide.with_exponent(wide.exponent - 1);
            }
            let root = wide.significand.isqrt();
            let sticky = root * root != wide.significand;
            Value::Finite(Exact { negative: false, exponent: wide.exponent / 2, significand: root, sticky })
        }
    }
}

impl Value {
    /// Sign of a number or an infinity, `None` for NaN.
    pub fn negative(self) -> Option<bool> {
        match self {
            Value::Nan => None,
            Value::Infinite { negative } => Some(negative),
            Value::Finite(x) => Some(x.negative),
        }
    }
}
