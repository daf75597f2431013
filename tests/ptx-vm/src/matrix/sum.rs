//! How a matrix instruction adds its products.
//!
//! [`Summation::Plain`] is this machine's stated model (see the head of [`super`]). The other two are what
//! has been found on hardware by others: the sum of a block of products and the accumulator is *fused*: each
//! term is truncated (toward zero) to a multiple of `2^(E - F)`, where `E` is the largest exponent among the
//! terms, the truncated terms are added exactly, and the result is truncated to f32 or rounded to f16. Blocks
//! follow each other in ascending `k`.
//!
//! | | block of k | F | result in f32 |
//! | --- | --- | --- | --- |
//! | [`Summation::Ampere`] | 16 bytes of A | 24 | truncated to 24 bits |
//! | [`Summation::Hopper`], `mma.sync` and 16-bit `wgmma` | 32 bytes of A | 25 | truncated to 24 bits |
//! | [`Summation::Hopper`], fp8 `wgmma` | 32 bytes of A | 13 | truncated to 14 bits |
//!
//! Exponents are those of the operands added, without normalising the product. Sources: P. Xie et al.,
//! "MMA-Sim", arXiv 2511.10909; F. Khattak and M. Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv
//! 2512.07004. On an H200 Hopper's rule for 16-bit operands gave every one of 122,880 outputs of one step,
//! and chains over 4,096 values (`bench/runs/2026-11-26-h200/numerics-model.txt`); that of fp8 and Ampere's
//! are not checked by us.

use super::element::{Accumulator, Element};
use crate::number::half;

/// Order and rounding of sums of products; integers are exact in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Summation {
    /// f32, ascending `k`, starting at the accumulator, each addition rounded to nearest even.
    #[default]
    Plain,
    /// Blocks with truncation as on compute capability 8.x.
    Ampere,
    /// Blocks with truncation as on compute capability 9.0.
    Hopper,
}

/// The parameters of one instruction's fused sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fused {
    /// Products per block.
    block: usize,
    /// Fraction bits kept below the largest exponent.
    fraction: i32,
    /// Significant bits of a result in f32.
    result: u32,
}

impl Summation {
    /// The fused sum of an instruction, `None` for the plain one.
    pub(crate) fn fused(self, element: Element, warpgroup: bool) -> Option<Fused> {
        let low = warpgroup && matches!(element, Element::E4m3 | Element::E5m2);
        let (bytes, fraction) = match self {
            Self::Plain => return None,
            Self::Ampere => (16, 24),
            Self::Hopper => (32, if low { 13 } else { 25 }),
        };
        Some(Fused { block: bytes * 8 / element.bits(), fraction, result: if low { 14 } else { 24 } })
    }
}

/// Terms of a block at most: 32 products of 8 bits and the accumulator.
const MOST: usize = 33;

/// Exponent of the leading bit, not below `least`; zero's is the least of f32.
fn exponent(value: f32, least: i32) -> i32 {
    let field = (value.to_bits() >> 23 & 0xff) as i32;
    // An f32 subnormal (a bf16 or tf32 one) lies below every least exponent.
    (field - 127).max(least)
}

impl Fused {
    /// `c + sum over k of a[k] b[k]`, block after block; `b` is read with a stride.
    pub(crate) fn dot(
        &self,
        kinds: (Element, Element),
        a: &[f32],
        b: impl Fn(usize) -> f32,
        start: f32,
        to: Accumulator,
    ) -> f32 {
        let mut sum = start;
        let mut terms = [(0.0, 0); MOST];
        for block in (0..a.len()).step_by(self.block) {
            let least = if to == Accumulator::F16 { -14 } else { -126 };
            terms[0] = (f64::from(sum), if sum == 0.0 { -126 } else { exponent(sum, least) });
            let end = a.len().min(block + self.block);
            for (k, &x) in a.iter().enumerate().take(end).skip(block) {
                let y = b(k);
                let term = f64::from(x) * f64::from(y);
                let (ex, ey) = (exponent(x, kinds.0.least_exponent()), exponent(y, kinds.1.least_exponent()));
                terms[1 + k - block] = (term, if term == 0.0 { -126 } else { ex + ey });
            }
            sum = self.add(&terms[..=end - block], to);
        }
        sum
    }

    fn add(&self, terms: &[(f64, i32)], to: Accumulator) -> f32 {
        if terms.iter().any(|(value, _)| !value.is_finite()) {
            return terms.iter().map(|(value, _)| value).sum::<f64>() as f32;
        }
        let top = terms.iter().map(|&(_, exponent)| exponent).max().unwrap_or(0);
        // Products of bf16 numbers reach 2^-252: every power of two here is a normal f64.
        let unit = power(top - self.fraction);
        let total: i64 = terms.iter().map(|(value, _)| (value / unit) as i64).sum();
        let value = total as f64 * unit;
        match to {
            Accumulator::F16 => half::f32_from_f16(half::f16_from_f32(half::odd_f32(value))),
            _ => truncate(value, self.result),
        }
    }
}

fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023).clamp(1, 2046) as u64) << 52)
}

/// Toward zero to `bits` significant bits (fewer below f32's normal range); beyond f32 it is infinity.
fn truncate(value: f64, bits: u32) -> f32 {
    let magnitude = value.abs();
    if magnitude >= power(128) {
        return f32::INFINITY.copysign(value as f32);
    }
    let top = (magnitude.to_bits() >> 52) as i32 - 1023;
    let unit = power(top.max(-126) - (bits as i32 - 1));
    ((value / unit).trunc() * unit) as f32
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn dot(sum: Summation, element: Element, warpgroup: bool, a: &[f32], b: &[f32], c: f32) -> f32 {
        let fused = sum.fused(element, warpgroup).unwrap();
        fused.dot((element, element), a, |k| b[k], c, Accumulator::F32)
    }

    #[test]
    fn small_terms_are_truncated_before_they_are_added() {
        // Fifteen terms of 2^-26 next to a one: each is below F = 25 bits and vanishes; at 2^-25 each counts.
        let ones = [1.0; 16];
        let with = |tiny: f32| [vec![1.0], vec![tiny; 15]].concat();
        let hopper = |a: &[f32], c| dot(Summation::Hopper, Element::Bf16, false, a, &ones, c);
        assert_eq!(hopper(&with(2f32.powi(-26)), 0.0), 1.0);
        assert_eq!(hopper(&with(2f32.powi(-24)), 0.0), 1.0 + 7.0 * 2f32.powi(-23));
        // Ampere keeps one bit less and sums eight at a time: after the first block the rest is far below.
        let ampere = |a: &[f32]| dot(Summation::Ampere, Element::Bf16, false, a, &ones, 0.0);
        assert_eq!(ampere(&with(2f32.powi(-25))), 1.0);
        assert_eq!(ampere(&with(2f32.powi(-24))), 1.0 + 3.0 * 2f32.powi(-23) + 4.0 * 2f32.powi(-23));
    }

    #[test]
    fn results_are_truncated_not_rounded_and_signs_are_symmetric() {
        let a = [1.0, 1.5 * 2f32.powi(-23)];
        assert_eq!(dot(Summation::Hopper, Element::Tf32, false, &a, &[1.0, 1.0], 0.0), 1.0 + 2f32.powi(-23));
        assert_eq!(
            dot(Summation::Hopper, Element::Tf32, false, &a, &[-1.0, -1.0], 0.0),
            -1.0 - 2f32.powi(-23)
        );
    }

    #[test]
    fn fp8_warpgroup_mma_keeps_fourteen_bits() {
        let fp8 = |group, c| dot(Summation::Hopper, Element::E4m3, group, &[1.0; 32], &[1.0; 32], c);
        assert_eq!(fp8(true, 65536.0), 65536.0, "32 ones, each below 2^16-13 = 8, are truncated to nothing");
        assert_eq!(fp8(false, 65536.0), 65568.0);
    }

    #[test]
    fn infinities_and_subnormals() {
        let hopper = |a: &[f32], b: &[f32]| dot(Summation::Hopper, Element::Bf16, false, a, b, 0.0);
        assert_eq!(hopper(&[f32::INFINITY, 1.0], &[1.0, 1.0]), f32::INFINITY);
        assert!(hopper(&[f32::INFINITY, f32::INFINITY], &[1.0, -1.0]).is_nan());
        assert_eq!(hopper(&[f32::MAX, f32::MAX], &[2.0, 2.0]), f32::INFINITY);
        let tiny = f32::from_bits(3);
        assert_eq!(hopper(&[tiny], &[1.0]), tiny);
        assert_eq!(hopper(&[0.0], &[-1.0]), 0.0);
    }
}
