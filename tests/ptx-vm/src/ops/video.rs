//! Integer dot products of packed bytes. Source: PTX ISA 8.7, `dp4a` and `dp2a`.

use super::Decoder;
use crate::Error;
use crate::code::Op;
use crate::registers::{Lanewise, lanes};
use crate::text::types::Type;

fn byte(word: u32, i: u32, signed: bool) -> i32 {
    let b = (word >> (8 * i)) as u8;
    if signed { i32::from(b as i8) } else { i32::from(b) }
}

fn dot4(a: u32, b: u32, c: u32, sa: bool, sb: bool) -> u32 {
    (0..4).fold(c, |sum, i| sum.wrapping_add((byte(a, i, sa) * byte(b, i, sb)) as u32))
}

fn dot2(a: u32, b: u32, c: u32, sa: bool, sb: bool, high: bool) -> u32 {
    (0..2).fold(c, |sum, i| {
        let half = (a >> (16 * i)) as u16;
        let x = if sa { i32::from(half as i16) } else { i32::from(half) };
        sum.wrapping_add(x.wrapping_mul(byte(b, i + 2 * u32::from(high), sb)) as u32)
    })
}

/// Decodes `dp4a.atype.btype` and `dp2a.mode.atype.btype`.
pub(crate) fn dot(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let b = d.ty()?;
    let a = d.ty()?;
    if [a, b].iter().any(|t| !matches!(t, Type::Unsigned(32) | Type::Signed(32))) {
        return d.refuse("the operands are .u32 or .s32");
    }
    let four = |sa: bool, sb: bool| -> Lanewise {
        match (sa, sb) {
            (false, false) => lanes!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, false) }),
            (false, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, false, true) }),
            (true, false) => lanes!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, false) }),
            (true, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 { dot4(a, b, c, true, true) }),
        }
    };
    macro_rules! two {
        ($high:literal) => {
            match (a.is_signed(), b.is_signed()) {
                (false, false) => {
                    lanes!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, false, $high) })
                }
                (false, true) => {
                    lanes!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, false, true, $high) })
                }
                (true, false) => {
                    lanes!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, false, $high) })
                }
                (true, true) => lanes!(|a: u32, b: u32, c: u32| -> u32 { dot2(a, b, c, true, true, $high) }),
            }
        };
    }
    let f = match (d.variant.base, d.variant.one_of(&["lo", "hi"])) {
        ("dp4a", None) => four(a.is_signed(), b.is_signed()),
        ("dp2a", Some("hi")) => two!(true),
        ("dp2a", Some(_)) => two!(false),
        _ => return d.refuse("`dp2a` needs .lo or .hi"),
    };
    let u = Type::Bits(32);
    d.lanewise(f, u, &[u, u, u])
}
