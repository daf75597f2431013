//! Own elementary functions: the same bits on every backend.
//!
//! Here are `exp`, `tanh`, `erf` and the activations built from them, in f32, written only with add,
//! multiply, multiply-add, divide, compare, select and integer work on the bits, so that CUDA and WGSL can
//! repeat every step. [`MulAdd`] is the one thing that differs: fused (one rounding) or separate (two). The
//! f64 functions at the end make the RoPE tables on the host, with `libm`, whose results do not depend on the
//! platform.
//!
//! Not here: sums (their order is `numerics` and the backend's `sum`), loops over slices, dtypes.
//!
//! Invariants. Every function is branch-free (selects only) and `#[inline(always)]`: inlined into a caller
//! with AVX2 it vectorises and keeps its bits. NaN in, NaN out. No infinity is made from a finite argument:
//! arguments are clamped. Normal arguments never give a subnormal *intermediate that matters*: [`exp`]
//! returns 0 below 2^-126, so a driver that flushes subnormals agrees. Polynomials are own weighted minimax
//! fits; the error bound in each docstring is what the tests at the end hold, in both kinds of multiply-add,
//! measured against f64.

use crate::numerics::Madd;

/// One kind of the multiply-add primitive, as a zero-sized type, so that a kernel is compiled once per kind.
pub trait MulAdd: Copy + Send + Sync + 'static {
    /// The kind's run-time name.
    const KIND: Madd;
    /// `a * b + c`, rounded as the kind says.
    fn madd(a: f32, b: f32, c: f32) -> f32;
}

/// `a * b + c` with one rounding: the default contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FusedMadd;

/// `a * b + c` with the product rounded first: what WGSL can promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeparateMadd;

impl MulAdd for FusedMadd {
    const KIND: Madd = Madd::Fused;
    #[inline(always)]
    fn madd(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl MulAdd for SeparateMadd {
    const KIND: Madd = Madd::Separate;
    #[inline(always)]
    fn madd(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Smallest argument of [`exp`] with a non-zero result: the f32 just above `ln 2^-126`.
pub const EXP_MIN: f32 = -87.336_54;
/// Arguments of [`exp`] above this count as this; the result stays finite.
pub const EXP_MAX: f32 = 88.72;

/// Adding and subtracting 1.5 * 2^23 rounds a small f32 to the nearest integer, ties to even.
const ROUND: f32 = 12_582_912.0;

/// `v` limited to `[lo, hi]`; NaN passes (unlike `f32::clamp` in a vectorised loop, by construction: two
/// selects).
#[inline(always)]
pub fn clamp(v: f32, lo: f32, hi: f32) -> f32 {
    let v = if v < lo { lo } else { v };
    if v > hi { hi } else { v }
}

/// `e^x`; exactly 0 for `x < EXP_MIN`, `e^88.72` (finite) for `x > 88.72`. Error at most 1 ulp in between.
///
/// Cody-Waite reduction `x = n ln 2 + r`, `e^r = 1 + (r + r^2 q(r))` with q of degree 5, scaled by `2^n` in
/// two exact steps.
#[inline(always)]
pub fn exp<M: MulAdd>(x: f32) -> f32 {
    // ln 2 in two parts; the first has 15 significant bits, so n * LN2_HI is exact in both kinds.
    const LN2_HI: f32 = 0.693_145_75;
    const LN2_LO: f32 = 1.428_606_8e-6;
    let xc = clamp(x, EXP_MIN, EXP_MAX);
    let shifted = M::madd(xc, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = M::madd(n, -LN2_LO, M::madd(n, -LN2_HI, xc));
    let p = 1.0 + M::madd(r * r, exp_tail::<M>(r), r);
    // The integer n stands in the low bits of `shifted`; two halves keep both scale factors normal for n =
    // -126..128.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let e = p * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    let e = if x < EXP_MIN { 0.0 } else { e };
    // The bits of a NaN would make a meaningless n: state the result.
    if x.is_nan() { x } else { e }
}

/// `q(r)` of [`exp`].
#[inline(always)]
fn exp_tail<M: MulAdd>(r: f32) -> f32 {
    let q = M::madd(r, 1.979_034_7e-4, 1.394_466e-3);
    let q = M::madd(r, q, 8.333_497e-3);
    let q = M::madd(r, q, 4.166_629_5e-2);
    let q = M::madd(r, q, 0.166_666_66);
    M::madd(r, q, 0.5)
}

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Hyperbolic tangent; error at most 2 ulp. Odd, +-1 beyond 10.
///
/// `x + x u P(u)` with `u = x^2` below 0.625, `1 - 2 / (e^2|x| + 1)` above.
#[inline(always)]
pub fn tanh<M: MulAdd>(x: f32) -> f32 {
    let a = if x.abs() > 10.0 { 10.0 } else { x.abs() };
    let u = a * a;
    let p = M::madd(u, 2.147_537e-3, -8.182_674e-3);
    let p = M::madd(u, p, 2.170_296_8e-2);
    let p = M::madd(u, p, -5.394_720_3e-2);
    let p = M::madd(u, p, 0.133_332_1);
    let p = M::madd(u, p, -0.333_333_3);
    let small = M::madd(a * u, p, a);
    let large = 1.0 - 2.0 / (exp::<M>(a + a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// Error function; error at most 2 ulp. Odd, +-1 beyond 4.
///
/// `x P(x^2)` below 0.9, `1 - e^-p(|x|)` above, where p fits `-ln(1 - erf)` on `[0.9, 4]`.
#[inline(always)]
pub fn erf<M: MulAdd>(x: f32) -> f32 {
    let a = if x.abs() > 4.0 { 4.0 } else { x.abs() };
    let u = a * a;
    let s = M::madd(u, 8.409_921e-5, -8.152_628e-4);
    let s = M::madd(u, s, 5.201_960_4e-3);
    let s = M::madd(u, s, -2.685_98e-2);
    let s = M::madd(u, s, 0.112_837_03);
    let s = M::madd(u, s, -0.376_126_35);
    // c0 = 1 + 0.128379...: adding the whole part last saves most of a rounding.
    let small = M::madd(a, M::madd(u, s, 0.128_379_17), a);
    let p = M::madd(a, 2.082_861_8e-5, -4.313_935_6e-4);
    let p = M::madd(a, p, 4.156_254_7e-3);
    let p = M::madd(a, p, -2.508_061_6e-2);
    let p = M::madd(a, p, 0.108_220_38);
    let p = M::madd(a, p, 0.633_400_86);
    let p = M::madd(a, p, 1.129_488_3);
    let p = M::madd(a, p, -1.692_051_2e-4);
    let large = 1.0 - exp::<M>(-p);
    (if a < 0.9 { small } else { large }).copysign(x)
}

/// `1 / sqrt(x)` by two correctly rounded steps; error at most 1.5 ulp.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// `1 / (1 + e^-x)`; arguments below -87 count as -87. Error at most 3 ulp.
#[inline(always)]
pub fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<M>(-(if x < -87.0 { -87.0 } else { x })))
}

/// `x / (1 + e^-x)`, also named swish. Error at most 3 ulp (the exponent is clamped at -87).
#[inline(always)]
pub fn silu<M: MulAdd>(x: f32) -> f32 {
    x / (1.0 + exp::<M>(-(if x < -87.0 { -87.0 } else { x })))
}

/// `0.5 x (1 + erf(x / sqrt 2))`. Error at most `2^-22 max(|x|, 2^-126)`.
#[inline(always)]
pub fn gelu_erf<M: MulAdd>(x: f32) -> f32 {
    (0.5 * x) * (1.0 + erf::<M>(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`. Error at most `2^-22 max(|x|, 2^-126)`.
///
/// Order: `t = madd((x * x) * 0.044715, x, x) * sqrt(2 / pi)`, with x limited to +-10 inside (tanh is 1
/// there).
#[inline(always)]
pub fn gelu_tanh<M: MulAdd>(x: f32) -> f32 {
    let c = clamp(x, -10.0, 10.0);
    let t = M::madd((c * c) * 0.044_715, c, c) * 0.797_884_6;
    (0.5 * x) * (1.0 + tanh::<M>(t))
}

/// `x sigmoid(1.702 x)`. Error at most `2^-21 |x|`.
#[inline(always)]
pub fn quick_gelu<M: MulAdd>(x: f32) -> f32 {
    x * sigmoid::<M>(1.702 * x)
}

/// `ln(1 + e^x)` as `max(x, 0) + ln(1 + e^-|x|)`; 0 below [`EXP_MIN`]. Error at most 4 ulp above -87.
///
/// `ln(1 + e) = 2 artanh(z)`, `z = e / (2 + e)` at most 1/3, of its series up to the 15th power.
#[inline(always)]
pub fn softplus<M: MulAdd>(x: f32) -> f32 {
    let e = exp::<M>(-x.abs());
    let z = e / (2.0 + e);
    let u = z * z;
    let s = M::madd(u, 1.0 / 15.0, 1.0 / 13.0);
    let s = M::madd(u, s, 1.0 / 11.0);
    let s = M::madd(u, s, 1.0 / 9.0);
    let s = M::madd(u, s, 1.0 / 7.0);
    let s = M::madd(u, s, 0.2);
    let s = M::madd(u, s, 1.0 / 3.0);
    let half = M::madd(z * u, s, z);
    (if x > 0.0 { x } else { 0.0 }) + (half + half)
}

/// `(clamp(u, -limit, limit) + shift) (g' sigmoid(slope g'))`, `g' = min(g, limit)`. NaN passes. The error of
/// the sigmoid's factor is at most `2^-21 |g|` for slopes up to 2; the sum and both products round once.
#[inline(always)]
pub fn clamped<M: MulAdd>(g: f32, u: f32, (slope, limit, shift): (f32, f32, f32)) -> f32 {
    let g = if g > limit { limit } else { g };
    let u = if u > limit { limit } else { u };
    let u = if u < -limit { -limit } else { u };
    (u + shift) * (g * sigmoid::<M>(slope * g))
}

/// `max(x, 0)`; NaN passes, -0 gives -0.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `max(x, 0)^2`, rounded once; NaN passes.
#[inline(always)]
pub fn relu_squared(x: f32) -> f32 {
    let positive = relu(x);
    positive * positive
}

/// `e^x - 1 - x` for `x <= 0`. Error at most `2^-21 |x|`.
///
/// Above -11/32 the polynomial of [`exp`], exact in 1 and x; below, where both differences are large.
#[inline(always)]
pub fn exp_remainder<M: MulAdd>(x: f32) -> f32 {
    let near = x * x * exp_tail::<M>(x);
    let far = (exp::<M>(x) - 1.0) - x;
    if x > -0.34375 { near } else { far }
}

/// xIELU (arXiv 2411.13010) of `[p, n, b, e]`: `p x^2 + b x` for `x > 0`, else `n (e^m - 1 - x) + b x` with
/// `m = min(x, e)`. NaN passes. Error at most `2^-21 (n |m| + p x^2 + |b x|)`.
#[inline(always)]
pub fn xielu<M: MulAdd>(x: f32, [p, n, b, e]: [f32; 4]) -> f32 {
    let m = if x < e { x } else { e };
    let line = b * x;
    let below = M::madd(n, exp_remainder::<M>(m) + (m - x), line);
    let above = M::madd(p * x, x, line);
    if x > 0.0 { above } else { below }
}

/// Frequency of RoPE pair `i` of a rotation over `dims` dimensions: `base^(-2 i / dims)`, in f64.
pub fn rope_frequency(base: f64, i: usize, dims: usize) -> f64 {
    libm::pow(base, -((2 * i) as f64) / dims as f64)
}

/// `(sin, cos)` of an angle in f64, the same bits on every platform.
pub fn sin_cos(angle: f64) -> (f64, f64) {
    (libm::sin(angle), libm::cos(angle))
}

/// `base^exponent` in f64, the same bits on every platform (RoPE scaling rules).
pub fn pow(base: f64, exponent: f64) -> f64 {
    libm::pow(base, exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points of a sweep over bit patterns: all exponents and signs, 2^23 points with an odd step.
    const STEP: usize = 509;

    fn ulp(v: f64) -> f64 {
        let e = libm::floor(libm::log2(v.abs().max(f64::from(f32::MIN_POSITIVE))));
        libm::exp2(e - 23.0)
    }

    /// Worst error of `f` in the unit that `unit` gives for (argument, exact value).
    fn worst(
        f: impl Fn(f32) -> f32,
        exact: impl Fn(f64) -> f64,
        unit: impl Fn(f64, f64) -> f64,
        lo: f32,
        hi: f32,
    ) -> f64 {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(STEP) {
            let x = f32::from_bits(bits);
            if !(lo..=hi).contains(&x) {
                continue;
            }
            let want = exact(f64::from(x));
            let e = (f64::from(f(x)) - want).abs() / unit(f64::from(x), want);
            assert!(!e.is_nan(), "NaN at {x}");
            if e > worst.0 {
                worst = (e, x);
            }
        }
        println!("worst {:.3} at {:e}", worst.0, worst.1);
        worst.0
    }

    fn in_ulp(_: f64, want: f64) -> f64 {
        ulp(want)
    }

    fn in_argument(x: f64, _: f64) -> f64 {
        x.abs().max(f64::from(f32::MIN_POSITIVE))
    }

    fn errors_hold<M: MulAdd>() {
        let big = f32::MAX;
        assert!(worst(exp::<M>, libm::exp, in_ulp, EXP_MIN, EXP_MAX) <= 1.0);
        assert!(worst(tanh::<M>, libm::tanh, in_ulp, -big, big) <= 2.0);
        assert!(worst(erf::<M>, libm::erf, in_ulp, -big, big) <= 2.0);
        let sig = |x: f64| 1.0 / (1.0 + libm::exp(-x));
        assert!(worst(sigmoid::<M>, sig, in_ulp, -87.0, big) <= 3.0);
        let softplus_of = |x: f64| x.max(0.0) + libm::log1p(libm::exp(-x.abs()));
        assert!(worst(softplus::<M>, softplus_of, in_ulp, -87.0, big) <= 4.0);
        assert!(worst(silu::<M>, |x| x * sig(x), in_ulp, -87.0, big) <= 3.0);
        let gelu = |x: f64| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        assert!(worst(gelu_erf::<M>, gelu, in_argument, -big, big) <= libm::exp2(-22.0));
        let tanh_gelu = |x: f64| {
            let t = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + libm::tanh(t))
        };
        assert!(worst(gelu_tanh::<M>, tanh_gelu, in_argument, -big, big) <= libm::exp2(-22.0));
        let remainder = |x: f64| libm::expm1(x) - x;
        assert!(worst(exp_remainder::<M>, remainder, in_argument, -big, -1e-30) <= libm::exp2(-21.0));
        assert!(worst(quick_gelu::<M>, |x| x * sig(1.702 * x), in_argument, -big, big) <= libm::exp2(-21.0));
    }

    #[test]
    fn errors_hold_fused() {
        errors_hold::<FusedMadd>();
    }

    #[test]
    fn errors_hold_separate() {
        errors_hold::<SeparateMadd>();
    }

    #[test]
    fn rsqrt_is_within_its_bound() {
        assert!(worst(rsqrt, |x| 1.0 / x.sqrt(), in_ulp, f32::MIN_POSITIVE, f32::MAX) <= 1.5);
    }

    fn edges<M: MulAdd>() {
        let all: [fn(f32) -> f32; 9] = [
            exp::<M>,
            tanh::<M>,
            erf::<M>,
            sigmoid::<M>,
            softplus::<M>,
            silu::<M>,
            gelu_erf::<M>,
            gelu_tanh::<M>,
            quick_gelu::<M>,
        ];
        for f in all {
            assert!(f(f32::NAN).is_nan());
            for x in [
                0.0,
                -0.0,
                f32::MIN_POSITIVE,
                -1e-40,
                1e30,
                -1e30,
                90.0,
                -90.0,
                f32::MAX / 2.0,
                f32::MIN / 2.0,
            ] {
                assert!(f(x).is_finite(), "{x} gives {}", f(x));
            }
        }
        let curve = [0.3, 0.7, 0.5, -1e-6];
        assert!(relu(f32::NAN).is_nan() && xielu::<M>(f32::NAN, curve).is_nan());
        assert_eq!(xielu::<M>(2.0, [0.25, 0.7, 0.5, -1e-6]), 2.0);
        assert!(xielu::<M>(-1e30, curve).is_finite());
        assert_eq!(exp::<M>(0.0), 1.0);
        assert_eq!(exp::<M>(-1e30), 0.0);
        assert_eq!(exp::<M>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<M>(f32::INFINITY).is_finite());
        assert!(exp::<M>(EXP_MIN) >= f32::MIN_POSITIVE);
        let below = f32::from_bits(EXP_MIN.to_bits() + 1);
        assert!(below < EXP_MIN && exp::<M>(below) == 0.0);
        assert_eq!((tanh::<M>(1e30), tanh::<M>(-1e30)), (1.0, -1.0));
        assert_eq!((erf::<M>(4.0), erf::<M>(-5.0)), (1.0, -1.0));
        assert!(erf::<M>(-0.0).is_sign_negative() && tanh::<M>(-0.0).is_sign_negative());
    }

    #[test]
    fn edges_are_as_stated() {
        edges::<FusedMadd>();
        edges::<SeparateMadd>();
    }

    #[test]
    fn fused_and_separate_differ_as_named() {
        let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
        assert_ne!(FusedMadd::madd(a, b, -1.0), 0.0);
        assert_eq!(SeparateMadd::madd(a, b, -1.0), 0.0);
    }

    #[test]
    fn rope_frequencies_are_powers() {
        assert_eq!(rope_frequency(10_000.0, 0, 64), 1.0);
        assert!((rope_frequency(10_000.0, 16, 64) - 0.01).abs() < 1e-17);
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }
}
