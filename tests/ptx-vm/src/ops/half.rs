//! f16 and bf16 arithmetic, single and in pairs. Source: PTX ISA 8.7, 9.7.4.

use super::Decoder;
use super::approx::Bound;
use super::general::general;
use crate::Error;
use crate::code::Op;
use crate::number::float::{self, Extremum};
use crate::number::half::{self, Binary16, Brain16, Half};
use crate::registers::{Lanewise, Registers, Slots, lanes, map1};
use crate::text::types::Type;

macro_rules! loops {
    ($h:ty, $ty:expr, $base:expr, $single:expr, $pair:expr) => {
        match ($base, $ty == $pair) {
            ("add", false) => Some(lanes!(|a: u16, b: u16| -> u16 { half::add::<$h>(a, b) })),
            ("sub", false) => Some(lanes!(|a: u16, b: u16| -> u16 { half::sub::<$h>(a, b) })),
            ("mul", false) => Some(lanes!(|a: u16, b: u16| -> u16 { half::mul::<$h>(a, b) })),
            ("fma", false) => Some(lanes!(|a: u16, b: u16, c: u16| -> u16 { half::fma::<$h>(a, b, c) })),
            ("add", true) => Some(lanes!(|a: u32, b: u32| -> u32 { half::pair2(a, b, half::add::<$h>) })),
            ("sub", true) => Some(lanes!(|a: u32, b: u32| -> u32 { half::pair2(a, b, half::sub::<$h>) })),
            ("mul", true) => Some(lanes!(|a: u32, b: u32| -> u32 { half::pair2(a, b, half::mul::<$h>) })),
            ("fma", true) => {
                Some(lanes!(|a: u32, b: u32, c: u32| -> u32 { half::pair3(a, b, c, half::fma::<$h>) }))
            }
            _ => None,
        }
    };
}

/// Plain arithmetic runs in loops.
fn fast(base: &str, ty: Type) -> Option<Lanewise> {
    match ty {
        Type::F16 | Type::F16x2 => loops!(Binary16, ty, base, Type::F16, Type::F16x2),
        _ => loops!(Brain16, ty, base, Type::Bf16, Type::Bf16x2),
    }
}

/// What one element goes through besides the operation.
#[derive(Clone, Copy)]
struct Around {
    ftz: bool,
    sat: bool,
    relu: bool,
}

fn flush16<H: Half>(a: u16, on: bool) -> u16 {
    let subnormal = if H::FORMAT == crate::number::F16 { a & 0x7c00 == 0 } else { a & 0x7f80 == 0 };
    if on && subnormal { a & 0x8000 } else { a }
}

fn element<H: Half>(base: &str, how: Extremum, around: Around, a: u16, b: u16, c: u16) -> u16 {
    let [a, b, c] = [a, b, c].map(|x| flush16::<H>(x, around.ftz));
    let out = match base {
        "add" => half::add::<H>(a, b),
        "sub" => half::sub::<H>(a, b),
        "mul" => half::mul::<H>(a, b),
        "fma" => half::fma::<H>(a, b, c),
        "neg" => half::neg::<H>(a),
        "abs" => half::abs::<H>(a),
        _ => float::extremum(H::FORMAT, a.into(), b.into(), how) as u16,
    };
    let out = flush16::<H>(out, around.ftz);
    let out = if around.sat { half::saturate::<H>(out) } else { out };
    if around.relu { half::relu::<H>(out) } else { out }
}

/// `ex2.approx` and `tanh.approx` of one element; the documented errors are PTX ISA 8.7, 9.7.4.9 and
/// 9.7.4.10.
fn approximate<H: Half>(a: u16, tanh: bool, ftz: bool, worst: bool) -> u16 {
    let x = f64::from(H::widen(flush16::<H>(a, ftz)));
    let exact = if tanh { x.tanh() } else { x.exp2() };
    let bound = match (H::FORMAT == crate::number::F16, tanh) {
        (true, true) => Bound::Absolute(4.927e-4),  // 2^-10.987
        (true, false) => Bound::Relative(1.046e-3), // 2^-9.9
        (false, true) => Bound::Absolute(3.906_25e-3),
        (false, false) => Bound::Relative(7.812_5e-3),
    };
    let mut out = H::narrow(exact as f32);
    if worst && exact.is_finite() {
        let (pushed, error) = bound.worst(exact, a.into());
        out = H::narrow(pushed as f32);
        let got = f64::from(H::widen(out));
        if (got - exact).abs() > error {
            // One code toward the exact value: magnitudes ascend with their codes.
            out = if got.abs() > exact.abs() { out - 1 } else { out + 1 };
        }
    }
    flush16::<H>(out, ftz)
}

/// A row of [`approximate`], with one element to a register or two.
fn approximation<H: Half, const TANH: bool, const FTZ: bool, const PAIR: bool>(
    r: &mut Registers,
    s: &Slots,
    m: u32,
) {
    let worst = r.worst;
    let one = |x: u16| approximate::<H>(x, TANH, FTZ, worst);
    map1::<u32, u32>(r, s, m, |x| {
        let high = if PAIR { u32::from(one((x >> 16) as u16)) << 16 } else { 0 };
        u32::from(one(x as u16)) | high
    });
}

fn approximations<H: Half>(tanh: bool, ftz: bool, pair: bool) -> Lanewise {
    match (tanh, ftz, pair) {
        (false, false, false) => approximation::<H, false, false, false>,
        (false, false, true) => approximation::<H, false, false, true>,
        (false, true, false) => approximation::<H, false, true, false>,
        (false, true, true) => approximation::<H, false, true, true>,
        (true, _, false) => approximation::<H, true, false, false>,
        (true, _, true) => approximation::<H, true, false, true>,
    }
}

/// Decodes every f16 and bf16 opcode.
pub(crate) fn decode(d: &mut Decoder<'_, '_>) -> Result<Op, Error> {
    let ty = d.ty()?;
    let binary16 = matches!(ty, Type::F16 | Type::F16x2);
    let pair = matches!(ty, Type::F16x2 | Type::Bf16x2);
    let base: &'static str = match d.variant.base {
        "add" => "add",
        "sub" => "sub",
        "mul" => "mul",
        "fma" => "fma",
        "neg" => "neg",
        "abs" => "abs",
        "min" => "min",
        "max" => "max",
        "ex2" => "ex2",
        "tanh" => "tanh",
        _ => return d.refuse("this opcode is unknown for 16-bit floats"),
    };
    if matches!(base, "ex2" | "tanh") && !d.variant.take("approx") {
        return d.refuse("`.approx` is missing");
    }
    if !d.variant.take("rn") && base == "fma" {
        return d.refuse("`fma` needs .rn");
    }
    let around =
        Around { ftz: d.variant.take("ftz"), sat: d.variant.take("sat"), relu: d.variant.take("relu") };
    let nan = d.variant.take("NaN");
    let xorsign = d.variant.take("xorsign");
    if xorsign && !d.variant.take("abs") {
        return d.refuse("`.xorsign` goes with `.abs`");
    }
    let how = Extremum { max: base == "max", nan, xorsign };
    let count = match base {
        "neg" | "abs" | "ex2" | "tanh" => 1,
        "fma" => 3,
        _ => 2,
    };
    let sources = vec![ty; count];
    if matches!(base, "ex2" | "tanh") {
        let tanh = base == "tanh";
        if around.sat || around.relu || (tanh && around.ftz) {
            return d.refuse("an approximation has no .sat and no .relu, and `tanh` no .ftz");
        }
        let f = if binary16 {
            approximations::<Binary16>(tanh, around.ftz, pair)
        } else {
            approximations::<Brain16>(tanh, around.ftz, pair)
        };
        return d.lanewise(f, ty, &sources);
    }
    if !(around.ftz || around.sat || around.relu)
        && let Some(f) = fast(base, ty)
    {
        return d.lanewise(f, ty, &sources);
    }
    let one = if binary16 { element::<Binary16> } else { element::<Brain16> };
    general(d, ty, &sources, move |a, b, c| {
        let low = one(base, how, around, a as u16, b as u16, c as u16);
        if !pair {
            return low.into();
        }
        let high = one(base, how, around, (a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
        u64::from(low) | u64::from(high) << 16
    })
}
