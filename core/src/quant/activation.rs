//! Activations of `w8a8`: 32 consecutive values of a row become signed bytes with one scale.
//!
//! Every backend computes the same codes and scales from the same values, bit for bit: the definition below
//! takes a maximum, one division, and products that round once. Rows are quantized each by itself, so batch
//! mates change nothing. The order of the sums that follow is in `docs/numerics.md`.

use crate::mem::Block;

/// Values that share a scale.
pub const SPAN: usize = Block::VALUES;
/// Blocks whose largest magnitude is below this count as zero: `127 / top` must not overflow, and nothing may
/// depend on subnormals, which some drivers flush.
pub const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// `1 / 127`, rounded.
pub const STEP: f32 = 1.0 / 127.0;

/// `top = max |x|`; `codes = round(x * (127 / top))`, ties to even; returns the scale `top * (1 / 127)`.
///
/// A block with `top < 2^-100` has the scale 0 and codes 0. Where a value is not finite the scale is not
/// either, so that the products show it.
#[inline(always)]
pub fn encode(values: &[f32; SPAN], codes: &mut [i8; SPAN]) -> f32 {
    // Magnitudes order as their bits do; a NaN is above all.
    let top = f32::from_bits(values.iter().fold(0, |top, v| top.max(v.to_bits() & 0x7fff_ffff)));
    if top < LEAST {
        codes.fill(0);
        return 0.0;
    }
    let factor = 127.0 / top;
    for (code, v) in codes.iter_mut().zip(values) {
        // At most 127 and a rounding; NaN, and whatever stands next to an infinity, is 0.
        *code = (v * factor).round_ties_even() as i32 as i8;
    }
    top * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: [f32; SPAN]) -> (f32, [i8; SPAN]) {
        let mut codes = [99; SPAN];
        (encode(&values, &mut codes), codes)
    }

    #[test]
    fn codes_are_within_half_a_step_and_reach_both_ends() {
        let values: [f32; SPAN] = std::array::from_fn(|i| (i as f32 * 0.7).sin() * 3.0);
        let (scale, codes) = encoded(values);
        for (v, q) in values.iter().zip(codes) {
            assert!((v - f32::from(q) * scale).abs() <= 0.5001 * scale, "{v} {q} {scale}");
        }
        assert!(codes.iter().any(|q| q.abs() == 127));
        let (_, ends) = encoded(std::array::from_fn(|i| if i % 2 == 0 { -2.0 } else { 2.0 }));
        assert!(ends.iter().enumerate().all(|(i, q)| *q == if i % 2 == 0 { -127 } else { 127 }));
    }

    #[test]
    fn ties_go_to_even_and_scales_stay_normal() {
        // 127 / top is 1: codes are the values rounded.
        let mut values = [0.0; SPAN];
        values[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, 63.49]);
        assert_eq!(encoded(values).1[..5], [127, 0, 2, -2, 63]);
        let (scale, codes) = encoded([LEAST; SPAN]);
        assert!(scale.is_normal() && codes == [127; SPAN]);
        assert_eq!(encoded([LEAST / 2.0; SPAN]), (0.0, [0; SPAN]));
        assert_eq!(encoded([0.0; SPAN]), (0.0, [0; SPAN]));
    }

    #[test]
    fn what_is_not_finite_shows_in_the_scale() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; SPAN];
            values[7] = bad;
            let (scale, codes) = encoded(values);
            assert!(!scale.is_finite());
            // What a sum makes of it: a block whose products are all zero must not hide it.
            let sum: i32 = codes.iter().map(|q| i32::from(*q)).sum();
            assert!(!(sum as f32 * scale).is_finite() || sum == 0 && (0.0 * scale).is_nan());
        }
    }
}
