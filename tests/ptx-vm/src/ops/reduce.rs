//! The operations of `atom`, `red`, `redux` and reducing copies on one element. Source: PTX ISA 8.7, `atom`.

use crate::number::float::{self, Extremum};
use crate::number::half::{self, Binary16, Brain16};
use crate::number::{BF16, F16, F32, F64};
use crate::text::types::Type;

/// What happens to the old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
    Increment,
    Decrement,
}

/// An operation on elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub(crate) what: What,
    pub(crate) ty: Type,
}

impl Reduction {
    /// The operation of that name, if the type has it.
    pub(crate) fn parse(name: &str, ty: Type) -> Option<Reduction> {
        let what = match name {
            "add" => What::Add,
            "min" => What::Min,
            "max" => What::Max,
            "and" => What::And,
            "or" => What::Or,
            "xor" => What::Xor,
            "exch" => What::Exchange,
            "cas" => What::CompareSwap,
            "inc" => What::Increment,
            "dec" => What::Decrement,
            _ => return None,
        };
        let float = matches!(ty, Type::F32 | Type::F64 | Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
        let wide = matches!(ty.bits(), 32 | 64);
        let known = match what {
            What::Add => float || (ty.is_integer() && wide && !matches!(ty, Type::Bits(_))),
            What::Min | What::Max => {
                ty != Type::F64 && (float || matches!(ty, Type::Signed(32 | 64) | Type::Unsigned(32 | 64)))
            }
            What::And | What::Or | What::Xor => matches!(ty, Type::Bits(32 | 64)),
            What::Exchange => matches!(ty, Type::Bits(32 | 64)),
            What::CompareSwap => matches!(ty, Type::Bits(16 | 32 | 64)),
            What::Increment | What::Decrement => ty == Type::Unsigned(32),
        };
        known.then_some(Reduction { what, ty })
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> u32 {
        self.ty.bytes()
    }

    /// The new value from the old one and the operands (`c` only for compare and swap, which is
    /// `old == b ? c : old`).
    pub(crate) fn apply(self, old: u64, b: u64, c: u64) -> u64 {
        let word = self.ty.bits() == 32;
        let truncated = |x: u64| if word { x & 0xffff_ffff } else { x };
        match self.what {
            What::And => old & b,
            What::Or => old | b,
            What::Xor => old ^ b,
            What::Exchange => b,
            What::CompareSwap => {
                if old == b {
                    c
                } else {
                    old
                }
            }
            What::Increment => {
                if old >= b {
                    0
                } else {
                    old + 1
                }
            }
            What::Decrement => {
                if old == 0 || old > b {
                    b
                } else {
                    old - 1
                }
            }
            What::Add => match self.ty {
                Type::F32 => float::add(old as u32, b as u32, crate::number::Rounding::Even).into(),
                Type::F64 => float::add64(old, b, crate::number::Rounding::Even),
                Type::F16 => half::add::<Binary16>(old as u16, b as u16).into(),
                Type::Bf16 => half::add::<Brain16>(old as u16, b as u16).into(),
                Type::F16x2 => half::pair2(old as u32, b as u32, half::add::<Binary16>).into(),
                Type::Bf16x2 => half::pair2(old as u32, b as u32, half::add::<Brain16>).into(),
                _ => truncated(old.wrapping_add(b)),
            },
            What::Min | What::Max => self.extremum(old, b, self.what == What::Max),
        }
    }

    fn extremum(self, a: u64, b: u64, max: bool) -> u64 {
        let how = Extremum { max, ..Extremum::default() };
        let first = match self.ty {
            Type::Signed(32) => ((a as i32) < b as i32) != max,
            Type::Signed(_) => ((a as i64) < b as i64) != max,
            Type::Unsigned(_) => (a < b) != max,
            Type::F32 => return float::extremum(F32, a, b, how),
            Type::F64 => return float::extremum(F64, a, b, how),
            Type::F16x2 | Type::Bf16x2 => {
                let format = if self.ty == Type::F16x2 { F16 } else { BF16 };
                let f = |x: u16, y: u16| float::extremum(format, x.into(), y.into(), how) as u16;
                return half::pair2(a as u32, b as u32, f).into();
            }
            Type::F16 => return float::extremum(F16, a, b, how),
            _ => return float::extremum(BF16, a, b, how),
        };
        if first { a } else { b }
    }
}
