//! `cvt`. Source: PTX ISA 8.7, `cvt` and `cvt.pack`.

use super::Decoder;
use super::general::{General, general};
use crate::Error;
use crate::code::Op;
use crate::number::convert::{Conversion, Scalar};
use crate::number::packed::{self, Fp8};
use crate::number::{BF16, F16, Overflow, Rounding, half};
use crate::registers::{Lanewise, lanes};
use crate::text::types::Type;

/// Loops for what index arithmetic and 16-bit data use all the time.
fn fast(to: &str, from: &str, wide_to: bool, wide_from: bool, rounding: Option<&str>) -> Option<Lanewise> {
    Some(match (to, from, wide_to, wide_from) {
        ("s64", "s32", true, false) | ("u64", "s32", true, false) => lanes!(|a: i32| -> i64 { i64::from(a) }),
        ("u64" | "s64", "u32", true, false) => lanes!(|a: u32| -> u64 { u64::from(a) }),
        ("u32" | "s32", "u64" | "s64", false, true) => lanes!(|a: u64| -> u32 { a as u32 }),
        ("u32" | "s32", "u16", false, false) | ("u16", "u32" | "s32", false, false) => {
            lanes!(|a: u16| -> u16 { a })
        }
        ("u32" | "s32" | "u16" | "s16", "u8", false, false) => lanes!(|a: u8| -> u8 { a }),
        ("s32", "s16", false, false) => lanes!(|a: i16| -> i32 { i32::from(a) }),
        ("s32", "s8", false, false) => lanes!(|a: u8| -> i32 { i32::from(a as i8) }),
        ("u64" | "s64", "u16", true, false) => lanes!(|a: u16| -> u64 { u64::from(a) }),
        ("f32", "s32", false, false) if rounding == Some("rn") => lanes!(|a: i32| -> f32 { a as f32 }),
        ("f32", "u32", false, false) if rounding == Some("rn") => lanes!(|a: u32| -> f32 { a as f32 }),
        ("s32", "f32", false, false) if rounding == Some("rzi") => lanes!(|a: f32| -> i32 { a as i32 }),
        ("bf16", "f32", false, false) if rounding == Some("rn") => {
            lanes!(|a: f32| -> u16 { half::bf16_from_f32(a) })
        }
        ("f16", "f32", false, false) if rounding == Some("rn") => {
            lanes!(|a: f32| -> u16 { half::f16_from_f32(a) })
        }
        ("f32", "f16", false, false) => lanes!(|a: u16| -> f32 { half::f32_from_f16(a) }),
        ("f32", "bf16", false, false) => lanes!(|a: u16| -> f32 { half::f32_from_bf16(a) }),
        _ => return None,
    })
}

/// Decodes every `cvt`.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let parts: Vec<&str> = d.variant.rest().to_vec();
    let [.., to, from] = parts[..] else { return d.refuse("`cvt` needs two types") };
    if d.variant.take("pack") {
        return pack(d);
    }
    d.variant.take(from);
    d.variant.take(to);
    // Equal names are taken one by one.
    if matches!(to, "f16x2" | "bf16x2" | "e4m3x2" | "e5m2x2" | "tf32") || matches!(from, "e4m3x2" | "e5m2x2")
    {
        return special(d, to, from);
    }
    let (Some(source), Some(target)) = (Scalar::parse(from), Scalar::parse(to)) else {
        return d.refuse(format!("`.{to}.{from}`"));
    };
    let (Some(from_type), Some(to_type)) = (Type::parse(from), Type::parse(to)) else {
        return d.refuse(format!("`.{to}.{from}`"));
    };
    let mut c = Conversion::new(source, target);
    let rounding = d.variant.one_of(&["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"]);
    if let Some(r) = rounding {
        c.rounding = Rounding::parse(r).unwrap_or(Rounding::Even);
        c.integral = r.ends_with('i');
    }
    c.ftz = d.variant.take("ftz");
    c.saturate = d.variant.take("sat");
    c.finite = d.variant.take("satfinite");
    c.relu = d.variant.take("relu");
    d.finish()?;
    d.count(2)?;
    let operands = d.operands;
    let (slot_to, wide_to) = d.l.destination_any(&operands[0], to_type)?;
    let (slot_from, wide_from) = d.l.source_any(&operands[1], from_type)?;
    let slots = [slot_to, slot_from, slot_to, slot_to];
    if !(c.ftz || c.saturate || c.finite || c.relu)
        && let Some(f) = fast(to, from, wide_to, wide_from, rounding)
    {
        return Ok(Op::Lanewise(f, slots));
    }
    let bits = from_type.bits();
    let narrow = move |a: u64| if bits == 64 { a } else { a & ((1 << bits) - 1) };
    let f: super::general::Function = match c.fast() {
        Some(f) => std::sync::Arc::new(move |a, _, _| f(narrow(a))),
        None => std::sync::Arc::new(move |a, _, _| c.apply(narrow(a))),
    };
    // Narrow values are kept zero-extended in a register of their own size.
    let own = d.l.width(&operands[0]).unwrap_or(to_type.bits());
    let f: super::general::Function =
        if own < 32 { std::sync::Arc::new(move |a, b, c| f(a, b, c) & ((1 << own) - 1)) } else { f };
    Ok(Op::General(Box::new(General { f, slots, wide: [wide_to, wide_from, false, false], sources: 1 })))
}

/// Packed types and tf32.
fn special(d: &mut Decoder<'_, '_>, to: &str, from: &str) -> Result<Op, Error> {
    let rounding = d.variant.one_of(&["rna", "rn", "rz"]);
    let (relu, satfinite) = (d.variant.take("relu"), d.variant.take("satfinite"));
    let overflow = if satfinite { Overflow::Finite } else { Overflow::Infinity };
    let Some(mode) = rounding.and_then(Rounding::parse) else { return d.refuse("a rounding mode is needed") };
    let single = |x: u64| f32::from_bits(x as u32);
    match (to, from) {
        ("f16x2", "f32") if mode == Rounding::Even && !relu && !satfinite => d.lanewise(
            lanes!(|a: f32, b: f32| -> u32 { packed::f16x2_from_f32(a, b) }),
            Type::F16x2,
            &[Type::F32, Type::F32],
        ),
        ("bf16x2", "f32") if mode == Rounding::Even && !relu && !satfinite => d.lanewise(
            lanes!(|a: f32, b: f32| -> u32 { packed::bf16x2_from_f32(a, b) }),
            Type::Bf16x2,
            &[Type::F32, Type::F32],
        ),
        ("f16x2" | "bf16x2", "f32") => {
            let format = if to == "f16x2" { F16 } else { BF16 };
            general(d, Type::Bits(32), &[Type::F32, Type::F32], move |a, b, _| {
                packed::half2_from_f32(format, single(a), single(b), mode, overflow, relu).into()
            })
        }
        ("f16x2", _) => {
            let Some(kind) = Fp8::parse(from) else { return d.refuse(format!("`.{to}.{from}`")) };
            general(d, Type::F16x2, &[Type::Bits(16)], move |a, _, _| {
                packed::f16x2_from_fp8x2(kind, a as u16, relu).into()
            })
        }
        ("tf32", "f32") => general(d, Type::Bits(32), &[Type::F32], move |a, _, _| {
            let bits = half::tf32_from_f32_rounded(single(a), mode, overflow);
            u64::from(if relu && bits >> 31 != 0 && bits & 0x7fff_ffff <= 0x7f80_0000 { 0 } else { bits })
        }),
        (_, "f32" | "f16x2") => {
            let Some(kind) = Fp8::parse(to) else { return d.refuse(format!("`.{to}.{from}`")) };
            if !satfinite || mode != Rounding::Even {
                return d.refuse("fp8 conversions are .rn.satfinite");
            }
            if from == "f32" {
                let sources = [Type::F32, Type::F32];
                return general(d, Type::Bits(16), &sources, move |a, b, _| {
                    packed::fp8x2_from_f32(kind, single(a), single(b), relu).into()
                });
            }
            general(d, Type::Bits(16), &[Type::F16x2], move |a, _, _| {
                packed::fp8x2_from_f16x2(kind, a as u32, relu).into()
            })
        }
        _ => d.refuse(format!("`.{to}.{from}`")),
    }
}

/// `cvt.pack.sat.{u8,s8}.s32.b32 d, a, b, c` and its 16-bit variant: two saturated integers below the bits of
/// c.
fn pack(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    if !d.variant.take("sat") {
        return d.refuse("`.sat` is missing");
    }
    let parts: Vec<&str> = d.variant.rest().to_vec();
    let Some(to) = parts.first().and_then(|t| Type::parse(t)) else { return d.refuse("a type is missing") };
    let with_c = parts.len() == 3;
    parts.iter().for_each(|p| {
        d.variant.take(p);
    });
    if parts.get(1) != Some(&"s32")
        || (with_c && parts[2] != "b32")
        || !(to.bits() == 16 || to.bits() == 8)
        || with_c != (to.bits() == 8)
    {
        return d.refuse("`cvt.pack` has .u16/.s16 from .s32, and .u8/.s8 from .s32 with .b32");
    }
    let bits = to.bits();
    let clamp = move |x: u64| {
        let x = i64::from(x as u32 as i32);
        let (low, high) =
            if to.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        x.clamp(low, high) as u64 & ((1 << bits) - 1)
    };
    let s = Type::Signed(32);
    if with_c {
        return general(d, Type::Bits(32), &[s, s, Type::Bits(32)], move |a, b, c| {
            clamp(b) | clamp(a) << 8 | (c & 0xffff) << 16
        });
    }
    general(d, Type::Bits(32), &[s, s], move |a, b, _| clamp(b) | clamp(a) << 16)
}
