//! Every tolerance of the suite, each with its derivation. Loosening one needs a note in the CHANGELOG.
//!
//! A comparison passes when `|got - want| <= slack + half_ulp(|want| + slack)`: `want` comes from an f64
//! oracle, `slack` is what f32 arithmetic may cost, and `half_ulp` is what the one rounding to the output's
//! element type costs after it, wherever the arithmetic ended. Slack is always computed from the *condition
//! of the case* (sums of magnitudes), never from a fixed relative error: a sum that cancels may lose all its
//! digits in correct code, and a sum that does not may lose hardly any.

use engraft_core::mem::{Float, KvCode};
use engraft_core::params::Act;

/// Unit roundoff of f32: the arithmetic inside ops.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Sums of products: `|error| <= C_SUM * U * sum|a_i b_i|`.
///
/// The worst case grows with the chain's length; over 4000 random vectors per K in 64..=16384 the error of a
/// serial f32 sum never exceeded 4.3 of these units, that of 32 lanes 1.0. 8 leaves lie between.
pub const C_SUM: f64 = 8.0;

/// The same of a chain of tensor-core steps over `k` values, which drop what they cannot keep instead of
/// rounding it, so that errors add up: `24 sqrt(k / 16384)` units, at least [`C_SUM`]. Over 2000 vectors of
/// normal numbers (Hopper's rule, docs/numerics.md) the error never exceeded 7.3 at k = 1024, 8.5 at 4096,
/// over 600 15.5 at 16384; a test repeats a part of it. Leaves are an eighth as long: 1.7 at most.
pub fn chain(condition: f64, k: usize) -> f64 {
    (24.0 * (k as f64 / 16384.0).sqrt()).max(C_SUM) * U * condition
}

/// Goldens in f32: the reference's own f32 run is within 2.5e-6 of the f64 one, a wrong constant is orders
/// outside.
pub const GOLDEN_F32: f64 = 2e-5;
/// Goldens with f16 activations and KV: a few dozen roundings of 2^-11.
pub const GOLDEN_F16: f64 = 2e-2;
/// Goldens with bf16 activations and KV: the same roundings at 2^-8, partly averaged out.
pub const GOLDEN_BF16: f64 = 5e-2;

/// Trained models, see the table in `golden/real/README.md`: the reference's f32 logits are off by up to 6e-5
/// (SmolLM2, values to 36) and 1.2e-5 (the two small models, values to 19); other orders of summation stay
/// within.
pub const REAL_SMOLLM2: f64 = 5e-4;
/// See [`REAL_SMOLLM2`].
pub const REAL_SMALL: f64 = 1e-4;

/// Golden tolerance of an activation element type, relative to `max(1, max|want|)` of the tensor.
pub fn golden(dtype: Float) -> f64 {
    match dtype {
        Float::F32 => GOLDEN_F32,
        Float::F16 => GOLDEN_F16,
        Float::Bf16 => GOLDEN_BF16,
    }
}

/// Goldens over a cache of codes, relative as [`golden`]. Half a step of int8 is 2^-8 of the row's largest
/// value, where one of bf16 is 2^-9 of every value, of activations, too: no more than bf16. Half a step of
/// e4m3 is 2^-4 of a value, 32 times that of bf16, of keys and values alone: ten times bf16. Measured over
/// the suite's decoders without experts: at most 0.043 and 0.32.
pub fn golden_of_codes(code: KvCode) -> f64 {
    match code {
        KvCode::Int8 => 5e-2,
        KvCode::Fp8 => 0.5,
    }
}

/// Half the distance of neighbours of `dtype` around `v`: significand bits 24, 11 and 8, subnormals included.
pub fn half_ulp(dtype: Float, v: f64) -> f64 {
    let (bits, min_exp) = match dtype {
        Float::F32 => (24, -126),
        Float::F16 => (11, -14),
        Float::Bf16 => (8, -126),
    };
    let exp = if v == 0.0 { min_exp } else { libm::ilogb(v).max(min_exp) };
    libm::ldexp(1.0, exp - bits)
}

/// A sum of products whose magnitudes add up to `condition`.
pub fn sum(condition: f64) -> f64 {
    C_SUM * U * condition
}

/// Activation `act(x) = value`, x exact: the docstrings of `core::math` promise at most 4 ulp for tanh, erf
/// and sigmoid each (2 U per ulp at worst), QuickGELU at most 8 U of x, and the GELUs add 1 to a value near
/// -1 before they multiply by x: an absolute error of the size of x. One product each on top. Results below
/// 2^-126 may be flushed.
pub fn activation(x: f64, value: f64) -> f64 {
    8.0 * U * value.abs() + 8.0 * U * x.abs().min(8.0) + f64::from(f32::MIN_POSITIVE)
}

/// `e^m - 1 - m`, within 8 U of m as `core::math` promises, plus `gap`, itself a difference, which becomes
/// `sum`: two roundings.
pub fn exp_remainder(m: f64, gap: f64, sum: f64) -> f64 {
    8.0 * U * m.abs() + U * (gap.abs() + sum.abs())
}

/// How an error `off` of the argument passes on: the largest slope of any activation but one (GELU's 1.129,
/// SiLU's 1.100); that of a square is twice the argument's.
pub fn of_argument(act: Act, x: f64, off: f64) -> f64 {
    if act == Act::ReluSquared { (2.0 * x.abs() + off) * off } else { 1.13 * off }
}

/// A router's weight: exponential or sigmoid (4 ulp, 8 U) of an argument whose difference from the largest of
/// `count` logits, `spread`, rounds once; a sum of at most `count` such scores, whose error is theirs and
/// that of the chain; a division and a product. Scores below 2^-126 of the largest may be flushed.
pub fn routed(weight: f64, spread: f64, count: usize, scale: f64) -> f64 {
    let chain = (count as f64).min(C_SUM * 8.0);
    (2.0 * spread + 2.0 * 8.0 + chain + 4.0) * U * weight.abs() + scale * f64::from(f32::MIN_POSITIVE)
}

/// `cap * tanh(y / cap)` of `y = factor * x`, which rounds once: the reciprocal and the product round, tanh
/// is within 4 ulp (8 U), its slope is at most 1, the last product rounds.
pub fn capped(y: f64, value: f64) -> f64 {
    3.0 * U * y.abs() + 10.0 * U * value.abs() + f64::from(f32::MIN_POSITIVE)
}

/// A product of two inexact factors: `(a +- ea) (b +- eb)`, rounded once.
pub fn multiplied(a: f64, ea: f64, b: f64, eb: f64) -> f64 {
    a.abs() * eb + b.abs() * ea + ea * eb + 2.0 * U * (a * b).abs()
}

/// Relative error of a sum of `n` squares, in units of `U`.
///
/// Terms of one sign do not cancel: partial sums grow, and with them each addition's rounding. Up to 1,024
/// terms [`C_SUM`] holds. Beyond, errors grow with the root of `n`, as a random walk's; values of 16 bits
/// have few squares, so that roundings repeat and average out late: 70 were measured over 16,384 values of
/// bf16, where the root is 128.
fn squares(n: usize) -> f64 {
    if n <= 1024 { C_SUM } else { (n as f64).sqrt() }
}

/// RMS norm over `n` values of one that becomes `y`: the root of the mean square has half of its relative
/// error; root, reciprocal, two products and the addition of eps round once each (5 U).
pub fn rms(n: usize, y: f64) -> f64 {
    (squares(n) / 2.0 + 6.0) * U * y.abs()
}

/// Layer norm over `n` values of one of them: `c` its distance from the mean, `r = 1 / sqrt(var + eps)`, `w`
/// its weight, `y` the result.
///
/// The mean is off by `d = C_SUM U mean|x|`, which shifts every distance; the variance feels it only as
/// `d^2`, because distances add up to zero. The rest is as in [`rms`], and the bias is added with one
/// rounding.
pub fn layer(n: usize, (c, r, w): (f64, f64, f64), y: f64, mean_abs: f64) -> f64 {
    let d = C_SUM * U * mean_abs;
    let shifted = (d + U * c.abs()) * r * w.abs();
    let relative = (squares(n) / 2.0 + 6.0) * U + d * d * r * r / 2.0;
    shifted + (c * r * w).abs() * relative + 2.0 * U * y.abs()
}

/// What is left of a value above a cutoff, `mean + k std` over `n` values: `y`. The mean is off by
/// `d = C_SUM U mean|x|`, and the deviation by no more than that next to what [`rms`] says of a root; cutoff
/// and difference round once each.
pub fn above_cutoff(n: usize, (mean, mean_abs): (f64, f64), spread: f64, k: f64, y: f64) -> f64 {
    let (d, cutoff) = (C_SUM * U * mean_abs, mean + k * spread);
    d * (1.0 + k.abs()) + (squares(n) / 2.0 + 6.0) * U * (k * spread).abs() + U * (cutoff.abs() + y.abs())
}

/// A value times the quotient of two roots of mean squares over `n` values: `y`, by what [`rms`] says of
/// each.
pub fn matched(n: usize, y: f64) -> f64 {
    2.0 * rms(n, y)
}

/// A rotated pair's component `x cos - y sin`: two products and a difference.
pub fn rotation(xc: f64, ys: f64) -> f64 {
    2.0 * U * (xc.abs() + ys.abs())
}

/// Attention: `scores_off` is the largest error of a score, `weighted = sum_j p_j |v_j|`.
///
/// A score that is off by e changes its weight by a factor e^e; numerator and denominator both feel it (2 e).
/// The exponential (1 ulp), rescaling when the maximum moves (one product per chunk), both sums and the
/// division are 16 more.
///
/// `reach` is the sum of `|v|` over visible keys: a weight below 2^-126 of the largest counts as zero
/// (contract 5), at most once in its chunk and once in the merge.
pub fn attention(scores_off: f64, weighted: f64, reach: f64) -> f64 {
    (2.0 * scores_off + (2.0 * C_SUM + 16.0) * U) * weighted + 2.0 * libm::ldexp(reach, -126)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// `v` without what is below `2^bit`.
    fn dropped(v: f64, bit: i32) -> f64 {
        libm::ldexp(libm::trunc(libm::ldexp(v, -bit)), bit)
    }

    /// One step of Hopper's rule: terms and accumulator keep 25 bits behind the largest exponent, their sum
    /// is truncated to f32.
    fn step(accumulator: f64, terms: &[f64]) -> f64 {
        let all = || std::iter::once(&accumulator).chain(terms);
        let largest = all().fold(0.0f64, |m, v| m.max(v.abs()));
        if largest == 0.0 {
            return 0.0;
        }
        let sum: f64 = all().map(|v| dropped(*v, libm::ilogb(largest) - 25)).sum();
        if sum == 0.0 { 0.0 } else { dropped(sum, libm::ilogb(sum) - 23) }
    }

    #[test]
    fn truncating_chains_are_within_their_budget_and_need_it() {
        let mut dice = Dice::new(3);
        for (k, least) in [(1024, 1.0), (4096, 3.0)] {
            let mut worst = 0.0f64;
            for _ in 0..200 {
                let (a, b) = (dice.values(k, 1.0, Float::F16), dice.values(k, 1.0, Float::F16));
                let terms: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).collect();
                let condition: f64 = terms.iter().map(|t| t.abs()).sum();
                let got = terms.chunks(16).fold(0.0, step);
                worst = worst.max((got - terms.iter().sum::<f64>()).abs() / (U * condition));
            }
            let allowed = chain(1.0, k) / U;
            assert!(worst <= allowed && worst > least, "k = {k}: {worst}, allowed {allowed}");
        }
    }

    #[test]
    fn half_ulps_of_the_three_types() {
        assert_eq!(half_ulp(Float::F32, 1.0), U);
        assert_eq!(half_ulp(Float::F16, 20.0), 0.0078125);
        assert_eq!(half_ulp(Float::Bf16, 20.0), 0.0625);
        assert_eq!(half_ulp(Float::F16, 0.0), libm::ldexp(1.0, -25), "subnormals of f16 are 2^-24 apart");
        assert_eq!(half_ulp(Float::F32, 1e-45), libm::ldexp(1.0, -150));
    }
}
