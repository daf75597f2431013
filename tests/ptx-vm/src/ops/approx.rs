//! The approximate functions of f32: `ex2`, `lg2`, `sin`, `cos`, `tanh`, `rcp`, `rsqrt`, `sqrt`, `div`.
//!
//! What the hardware computes is not published, only how far it may be off. The machine gives the f64 result
//! rounded once, or, asked for the worst ([`crate::Rounding::Worst`]), a result that is off by the documented
//! error, up or down by a hash of the argument, so that a kernel that lives on lucky bits fails. Source of
//! the errors: PTX ISA 8.7, 9.7.3.

use super::Decoder;
use crate::Error;
use crate::code::Op;
use crate::number::float::{canonical, flush};
use crate::registers::{Lanewise, Registers, Slots, map1, map2};
use crate::text::types::Type;

/// How far a function may be off.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    Relative(f64),
    Absolute(f64),
}

impl Bound {
    /// The result pushed to the bound, up or down by a hash of the argument's bits, and by how much.
    pub(crate) fn worst(self, exact: f64, argument: u32) -> (f64, f64) {
        let error = match self {
            Bound::Relative(e) => (exact * e).abs(),
            Bound::Absolute(e) => e,
        };
        let up = argument.wrapping_mul(0x9e37_79b9) >> 31 != 0;
        (if up { exact + error } else { exact - error }, error)
    }
}

/// Rounds an f64 result, pushed to the bound (and not beyond) when the worst is asked for.
fn finish(exact: f64, argument: u32, bound: Bound, worst: bool) -> f32 {
    let mut value = exact as f32;
    if worst && exact.is_finite() {
        let (pushed, error) = bound.worst(exact, argument);
        value = pushed as f32;
        if (f64::from(value) - exact).abs() > error {
            // Rounded away: the neighbour on the near side is within the bound, or nothing is.
            value = if f64::from(value) > exact { value.next_down() } else { value.next_up() };
        }
    }
    f32::from_bits(canonical(value.to_bits()))
}

/// 2^-n for the bounds below.
const fn power(n: i32) -> f64 {
    f64::from_bits(((1023 - n) as u64) << 52)
}

macro_rules! function {
    ($ftz:expr, |$x:ident| $exact:expr, $bound:expr) => {{
        fn plain(r: &mut Registers, s: &Slots, m: u32) {
            let worst = r.worst;
            map1::<f32, f32>(r, s, m, |x| {
                let $x = f64::from(x);
                finish($exact, x.to_bits(), $bound, worst)
            });
        }
        fn flushed(r: &mut Registers, s: &Slots, m: u32) {
            let worst = r.worst;
            map1::<f32, f32>(r, s, m, |x| {
                let x = f32::from_bits(flush(x.to_bits()));
                let $x = f64::from(x);
                f32::from_bits(flush(finish($exact, x.to_bits(), $bound, worst).to_bits()))
            });
        }
        if $ftz { flushed as Lanewise } else { plain as Lanewise }
    }};
}

fn unary(base: &str, ftz: bool) -> Option<Lanewise> {
    Some(match base {
        "ex2" => function!(ftz, |x| x.exp2(), Bound::Relative(power(22))),
        "lg2" => function!(
            ftz,
            |x| x.log2(),
            if (0.5..2.0).contains(&x) { Bound::Absolute(power(22)) } else { Bound::Relative(power(22)) }
        ),
        "sin" => function!(ftz, |x| x.sin(), Bound::Absolute(1.4 * power(21))),
        "cos" => function!(ftz, |x| x.cos(), Bound::Absolute(1.4 * power(21))),
        "tanh" => function!(ftz, |x| x.tanh(), Bound::Relative(power(11))),
        "rcp" => function!(ftz, |x| 1.0 / x, Bound::Relative(power(23))),
        "rsqrt" => function!(ftz, |x| 1.0 / x.sqrt(), Bound::Relative(1.07 * power(23))),
        "sqrt" => function!(ftz, |x| x.sqrt(), Bound::Relative(power(23))),
        _ => return None,
    })
}

/// `div.approx` gives zero for divisors from 2^126 up; `div.full` does not.
fn quotient(a: f32, b: f32, full: bool, ftz: bool, worst: bool) -> f32 {
    let (a, b) =
        if ftz { (f32::from_bits(flush(a.to_bits())), f32::from_bits(flush(b.to_bits()))) } else { (a, b) };
    let out = if !full && b.is_finite() && b.abs() > 2f32.powi(126) {
        if a.is_nan() || a.is_infinite() { f32::NAN } else { 0f32.copysign(a) * b.signum() }
    } else {
        finish(
            f64::from(a) / f64::from(b),
            a.to_bits() ^ b.to_bits().rotate_left(7),
            Bound::Relative(power(22)),
            worst,
        )
    };
    let bits = canonical(out.to_bits());
    f32::from_bits(if ftz { flush(bits) } else { bits })
}

fn division(full: bool, ftz: bool) -> Lanewise {
    macro_rules! with {
        ($full:literal, $ftz:literal) => {{
            fn run(r: &mut Registers, s: &Slots, m: u32) {
                let worst = r.worst;
                map2::<f32, f32, f32>(r, s, m, |a, b| quotient(a, b, $full, $ftz, worst));
            }
            run as Lanewise
        }};
    }
    match (full, ftz) {
        (true, true) => with!(true, true),
        (true, false) => with!(true, false),
        (false, true) => with!(false, true),
        (false, false) => with!(false, false),
    }
}

/// Decodes the `.approx` and `.full` variants.
pub(crate) fn decode(d: &mut Decoder<'_, '_>, ty: Type) -> Result<Op, Error> {
    let full = d.variant.take("full");
    let approx = d.variant.take("approx");
    let ftz = d.variant.take("ftz");
    let base = d.variant.base;
    if ty == Type::F64 {
        if !matches!(base, "rcp" | "rsqrt") || !approx {
            return d.refuse("f64 has `rcp.approx.ftz` and `rsqrt.approx` only");
        }
        let root = base == "rsqrt";
        // 20 bits of the result, the rest zero, as the instruction is documented.
        return super::general::general(d, ty, &[ty], move |a, _, _| {
            let x = f64::from_bits(a);
            let y = if root { 1.0 / x.sqrt() } else { 1.0 / x };
            crate::number::float::canonical64(if y.is_finite() {
                y.to_bits() & !0xffff_ffff
            } else {
                y.to_bits()
            })
        });
    }
    if base == "div" {
        return d.lanewise(division(full, ftz), ty, &[ty, ty]);
    }
    match unary(base, ftz) {
        Some(f) if !full => d.lanewise(f, ty, &[ty]),
        _ => d.refuse("this approximation is unknown"),
    }
}
