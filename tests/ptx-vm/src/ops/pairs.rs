//! Pairs of 16-bit integers in a register, and sums and extremes without negative results. Source: PTX ISA
//! 8.7, `add`, `min` and `max`: `.u16x2`, `.s16x2`, `.relu`.

use super::Decoder;
use crate::Error;
use crate::code::Op;
use crate::registers::{Lanewise, lanes};
use crate::text::types::Type;

/// A function of each half.
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// The same of signed halves.
fn signed(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    halves(a, b, |a, b| f(a as i16, b as i16) as u16)
}

/// The function of these parts, which come in any order: `max.relu.s16x2` and `max.s16x2.relu`.
fn function(base: &str, ty: &str, relu: bool) -> Option<Lanewise> {
    Some(match (base, ty, relu) {
        ("add", "u16x2" | "s16x2", false) => {
            lanes!(|a: u32, b: u32| -> u32 { halves(a, b, u16::wrapping_add) })
        }
        ("min", "u16x2", false) => lanes!(|a: u32, b: u32| -> u32 { halves(a, b, u16::min) }),
        ("max", "u16x2", false) => lanes!(|a: u32, b: u32| -> u32 { halves(a, b, u16::max) }),
        ("min", "s16x2", false) => lanes!(|a: u32, b: u32| -> u32 { signed(a, b, i16::min) }),
        ("max", "s16x2", false) => lanes!(|a: u32, b: u32| -> u32 { signed(a, b, i16::max) }),
        ("min", "s16x2", true) => lanes!(|a: u32, b: u32| -> u32 { signed(a, b, |a, b| a.min(b).max(0)) }),
        ("max", "s16x2", true) => lanes!(|a: u32, b: u32| -> u32 { signed(a, b, |a, b| a.max(b).max(0)) }),
        ("min", "s32", true) => lanes!(|a: i32, b: i32| -> i32 { a.min(b).max(0) }),
        ("max", "s32", true) => lanes!(|a: i32, b: i32| -> i32 { a.max(b).max(0) }),
        _ => return None,
    })
}

/// Decodes them, if it is one of them.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Option<Result<Op, Error>> {
    let pair = d.variant.rest().iter().any(|part| matches!(*part, "u16x2" | "s16x2"));
    let relu = d.variant.rest().contains(&"relu") && d.variant.rest().contains(&"s32");
    if !pair && !relu {
        return None;
    }
    let base = d.variant.base;
    let ty = d.variant.one_of(&["u16x2", "s16x2", "s32"])?;
    let relu = d.variant.take("relu");
    let row = if ty == "s32" { Type::Signed(32) } else { Type::Bits(32) };
    Some(match function(base, ty, relu) {
        Some(f) => d.lanewise(f, row, &[row, row]),
        None => d.refuse(format!("`{base}` has no such variant of .{ty}")),
    })
}
