//! f32 and f64 arithmetic. Source: PTX ISA 8.7, 9.7.3.
//!
//! Round to nearest without modifiers runs in loops over rows; other rounding modes, `.ftz` and `.sat` go
//! through the exact arithmetic of [`crate::number`]. Results that are NaN are the canonical one, as on the
//! hardware.

use super::general::general;
use super::{Decoder, approx};
use crate::Error;
use crate::code::Op;
use crate::number::float::{self, Extremum, canonical};
use crate::number::{F32, F64, Rounding};
use crate::registers::{Lane, Lanewise, Registers, Slots, lanes};
use crate::text::types::Type;

fn clean(x: f32) -> f32 {
    f32::from_bits(canonical(x.to_bits()))
}

fn clean64(x: f64) -> f64 {
    f64::from_bits(float::canonical64(x.to_bits()))
}

/// The smaller (or larger) of two, a number before NaN, -0 before +0.
#[inline(always)]
fn least(a: f32, b: f32, max: bool) -> f32 {
    let zero = if max { a.to_bits() & b.to_bits() } else { a.to_bits() | b.to_bits() };
    let number = if a == b {
        f32::from_bits(zero)
    } else if (a < b) != max {
        a
    } else {
        b
    };
    if a.is_nan() {
        clean(b)
    } else if b.is_nan() {
        a
    } else {
        number
    }
}

/// `a * b + c` over a row, rounded once.
fn fused(r: &mut Registers, s: &Slots, m: u32) {
    let (a, b, c) = (f32::load(r, s[1]), f32::load(r, s[2]), f32::load(r, s[3]));
    let mut d = [0f32; 32];
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the features the function is compiled for.
        unsafe { fused_rows(&a, &b, &c, &mut d) };
        f32::store(r, s[0], &d, m);
        return;
    }
    for i in 0..32 {
        d[i] = clean(a[i].mul_add(b[i], c[i]));
    }
    f32::store(r, s[0], &d, m);
}

/// The same loop with the processor's own instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused_rows(a: &[f32; 32], b: &[f32; 32], c: &[f32; 32], d: &mut [f32; 32]) {
    for i in 0..32 {
        d[i] = clean(a[i].mul_add(b[i], c[i]));
    }
}

/// The fast variant of an opcode, rounding to nearest.
fn fast(base: &str, ty: Type) -> Option<Lanewise> {
    Some(match (base, ty) {
        ("add", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { clean(a + b) }),
        ("sub", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { clean(a - b) }),
        ("mul", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { clean(a * b) }),
        ("div", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { clean(a / b) }),
        ("fma", Type::F32) => fused,
        ("sqrt", Type::F32) => lanes!(|a: f32| -> f32 { clean(a.sqrt()) }),
        ("rcp", Type::F32) => lanes!(|a: f32| -> f32 { clean(1.0 / a) }),
        ("min", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { least(a, b, false) }),
        ("max", Type::F32) => lanes!(|a: f32, b: f32| -> f32 { least(a, b, true) }),
        ("neg", Type::F32) => lanes!(|a: u32| -> u32 { canonical(a ^ 1 << 31) }),
        ("abs", Type::F32) => lanes!(|a: u32| -> u32 { canonical(a & !(1 << 31)) }),
        ("add", Type::F64) => lanes!(|a: f64, b: f64| -> f64 { clean64(a + b) }),
        ("sub", Type::F64) => lanes!(|a: f64, b: f64| -> f64 { clean64(a - b) }),
        ("mul", Type::F64) => lanes!(|a: f64, b: f64| -> f64 { clean64(a * b) }),
        ("div", Type::F64) => lanes!(|a: f64, b: f64| -> f64 { clean64(a / b) }),
        ("fma", Type::F64) => lanes!(|a: f64, b: f64, c: f64| -> f64 { clean64(a.mul_add(b, c)) }),
        ("sqrt", Type::F64) => lanes!(|a: f64| -> f64 { clean64(a.sqrt()) }),
        ("rcp", Type::F64) => lanes!(|a: f64| -> f64 { clean64(1.0 / a) }),
        ("neg", Type::F64) => lanes!(|a: u64| -> u64 { float::canonical64(a ^ 1 << 63) }),
        ("abs", Type::F64) => lanes!(|a: u64| -> u64 { float::canonical64(a & !(1 << 63)) }),
        _ => return None,
    })
}

/// Sources of an opcode.
fn arity(base: &str) -> usize {
    match base {
        "neg" | "abs" | "sqrt" | "rcp" => 1,
        "fma" => 3,
        _ => 2,
    }
}

/// The function of one lane in any rounding mode.
type Rounded = fn(Rounding, u64, u64, u64) -> u64;

/// One lane in any rounding mode.
fn exactly(base: &'static str, ty: Type) -> Option<Rounded> {
    const SIGN: u32 = 1 << 31;
    Some(match (base, ty) {
        ("add", Type::F32) => |r, a, b, _| float::add(a as u32, b as u32, r).into(),
        ("sub", Type::F32) => |r, a, b, _| float::add(a as u32, b as u32 ^ SIGN, r).into(),
        ("mul", Type::F32) => |r, a, b, _| float::mul(a as u32, b as u32, r).into(),
        ("div", Type::F32) => |r, a, b, _| float::div(a as u32, b as u32, r).into(),
        ("fma", Type::F32) => |r, a, b, c| float::fma(a as u32, b as u32, c as u32, r).into(),
        ("sqrt", Type::F32) => |r, a, _, _| float::sqrt(a as u32, r).into(),
        ("rcp", Type::F32) => |r, a, _, _| float::div(1f32.to_bits(), a as u32, r).into(),
        ("neg", Type::F32) => |_, a, _, _| canonical(a as u32 ^ SIGN).into(),
        ("abs", Type::F32) => |_, a, _, _| canonical(a as u32 & !SIGN).into(),
        ("add", Type::F64) => |r, a, b, _| float::add64(a, b, r),
        ("sub", Type::F64) => |r, a, b, _| float::add64(a, b ^ 1 << 63, r),
        ("mul", Type::F64) => |r, a, b, _| float::mul64(a, b, r),
        ("div", Type::F64) => |r, a, b, _| float::div64(a, b, r),
        ("fma", Type::F64) => |r, a, b, c| float::fma64(a, b, c, r),
        ("sqrt", Type::F64) => |r, a, _, _| float::sqrt64(a, r),
        ("rcp", Type::F64) => |r, a, _, _| float::div64(1f64.to_bits(), a, r),
        _ => return None,
    })
}

/// Decodes every f32 and f64 opcode that is not an approximation.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    if d.variant.rest().iter().any(|p| *p == "approx" || *p == "full") {
        return approx::decode(d, ty);
    }
    let rounding = d.variant.next(Rounding::parse);
    let (ftz, sat) = (d.variant.take("ftz"), d.variant.take("sat"));
    let base = match d.variant.base {
        "mad" => "fma",
        "add" => "add",
        "sub" => "sub",
        "mul" => "mul",
        "div" => "div",
        "fma" => "fma",
        "sqrt" => "sqrt",
        "rcp" => "rcp",
        "neg" => "neg",
        "abs" => "abs",
        "min" => "min",
        "max" => "max",
        "copysign" => {
            return match ty {
                Type::F32 => d.lanewise(
                    lanes!(|a: u32, b: u32| -> u32 { a & 1 << 31 | b & !(1 << 31) }),
                    ty,
                    &[ty, ty],
                ),
                _ => d.lanewise(
                    lanes!(|a: u64, b: u64| -> u64 { a & 1 << 63 | b & !(1 << 63) }),
                    ty,
                    &[ty, ty],
                ),
            };
        }
        "testp" => return super::compare::testp(d, ty),
        _ => return d.refuse("this floating-point opcode is unknown"),
    };
    if (ftz || sat) && ty == Type::F64 {
        return d.refuse("f64 has neither .ftz nor .sat");
    }
    if matches!(base, "min" | "max") {
        return extremum(d, base == "max", ty, ftz);
    }
    if matches!(base, "div" | "fma" | "sqrt" | "rcp") && rounding.is_none() {
        return d.refuse("a rounding mode or .approx is needed");
    }
    let sources = vec![ty; arity(base)];
    let rounding = rounding.unwrap_or(Rounding::Even);
    if rounding == Rounding::Even && !ftz && !sat {
        return match fast(base, ty) {
            Some(f) => d.lanewise(f, ty, &sources),
            None => d.refuse("this variant is unknown"),
        };
    }
    let Some(f) = exactly(base, ty) else { return d.refuse("this variant is unknown") };
    general(d, ty, &sources, move |a, b, c| {
        if !ftz && !sat {
            return f(rounding, a, b, c);
        }
        let input = |x: u64| if ftz { u64::from(float::flush(x as u32)) } else { x };
        let mut out = f(rounding, input(a), input(b), input(c)) as u32;
        if ftz {
            out = float::flush(out);
        }
        u64::from(if sat { float::saturate(out) } else { out })
    })
}

fn extremum(d: &mut Decoder<'_, '_>, max: bool, ty: Type, ftz: bool) -> Result<Op, Error> {
    let nan = d.variant.take("NaN");
    let xorsign = d.variant.take("xorsign");
    if xorsign && !d.variant.take("abs") {
        return d.refuse("`.xorsign` goes with `.abs`");
    }
    if !nan && !xorsign && !ftz && ty == Type::F32 && d.operands.len() == 3 {
        let Some(f) = fast(if max { "max" } else { "min" }, ty) else {
            return d.refuse("this variant is unknown");
        };
        return d.lanewise(f, ty, &[ty, ty]);
    }
    let format = if ty == Type::F32 { F32 } else { F64 };
    let how = Extremum { max, nan, xorsign };
    let flush = move |x: u64| if ftz { u64::from(float::flush(x as u32)) } else { x };
    let sources = vec![ty; d.operands.len().saturating_sub(1)];
    match sources.len() {
        2 => general(d, ty, &sources, move |a, b, _| float::extremum(format, flush(a), flush(b), how)),
        3 => general(d, ty, &sources, move |a, b, c| {
            float::extremum(format, float::extremum(format, flush(a), flush(b), how), flush(c), how)
        }),
        _ => d.refuse("two or three sources"),
    }
}
