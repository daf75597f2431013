//! Keys and values in eight bits: a head's row at a position becomes codes with one scale.
//!
//! ```text
//! top   = max |x|
//! scale = top * (1 / 127) for int8, top * (1 / 448) for fp8, each rounded;
//!         then to 16 significant bits, the nearer one, of two the larger
//! code  = round(x * (1 / scale)), ties to even: an integer, or the nearest e4m3 (saturating)
//! value = code * scale
//! ```
//!
//! Every backend computes these bits. A scale below 2^-100 is zero, and so are its codes: `1 / scale` must be
//! a number, and nothing may depend on subnormals, which some drivers flush. A scale that is not at most
//! 2^100 (a value was not finite, or close to it) is NaN with codes of zero: the whole row is NaN.
//!
//! Why 16 bits: a code has at most 7 significant bits, so that `code * scale` is exact in f32. The largest
//! code is then the end of the range for every row, and from the values of a row come its scale and codes
//! again, bit for bit (tested below for every significand). So plain rows of f32 carry a cache to wherever it
//! is kept, and an appended copy is the same cache.
//!
//! Why e4m3 has a scale, too: without one, keys beyond 448 would saturate (models with biases have such), and
//! values below 2^-6 would lose their bits one after the other. With it the two formats differ in their codes
//! alone. Integers lose less of a row whose columns are of one size, e4m3 less of the small columns of a row
//! with a large one.

use super::small_float::{e4m3, to_e4m3};
use crate::mem::KvCode;

/// Scales below count as zero.
pub const LEAST: f32 = f32::from_bits((127 - 100) << 23);
/// Scales beyond are not kept.
pub const MOST: f32 = f32::from_bits((127 + 100) << 23);

/// `1 / 127` and `1 / 448`, rounded.
pub const fn step(code: KvCode) -> f32 {
    match code {
        KvCode::Int8 => 1.0 / 127.0,
        KvCode::Fp8 => 1.0 / 448.0,
    }
}

/// The larger magnitude's bits: magnitudes order as their bits do, and a NaN is above all.
#[inline(always)]
pub fn larger(top: u32, v: f32) -> u32 {
    top.max(v.to_bits() & 0x7fff_ffff)
}

/// The scale of a row whose largest magnitude has the bits `top`, and its inverse, which is 0 where all codes
/// are.
#[inline(always)]
pub fn scale(code: KvCode, top: u32) -> (f32, f32) {
    let exact = f32::from_bits(top) * step(code);
    // An infinity stays one.
    let scale = f32::from_bits((exact.to_bits() & 0x7fff_ffff).saturating_add(0x80) & 0xffff_ff00);
    match scale {
        _ if exact.is_nan() => (f32::NAN, 0.0),
        _ if scale < LEAST => (0.0, 0.0),
        _ if scale <= MOST => (scale, 1.0 / scale),
        _ => (f32::NAN, 0.0),
    }
}

/// The code of a value, times the inverse of its row's scale.
#[inline(always)]
pub fn encode_one(code: KvCode, v: f32, inverse: f32) -> u8 {
    // Without multiplying: of a row that is not finite `v * 0` is not either.
    if inverse == 0.0 {
        return 0;
    }
    match code {
        KvCode::Int8 => (v * inverse).round_ties_even() as i32 as i8 as u8,
        KvCode::Fp8 => to_e4m3(v * inverse),
    }
}

/// The value of a code.
#[inline(always)]
pub fn decode_one(code: KvCode, byte: u8, scale: f32) -> f32 {
    match code {
        KvCode::Int8 => f32::from(byte as i8) * scale,
        KvCode::Fp8 => e4m3(byte) * scale,
    }
}

/// Rounds a row; returns its scale. `codes` has a place for every value.
pub fn encode(code: KvCode, values: &[f32], codes: &mut [u8]) -> f32 {
    let (scale, inverse) = scale(code, values.iter().fold(0, |top, v| larger(top, *v)));
    for (to, v) in codes.iter_mut().zip(values) {
        *to = encode_one(code, *v, inverse);
    }
    scale
}

/// Widens a row.
pub fn decode(code: KvCode, scale: f32, codes: &[u8], values: &mut [f32]) {
    for (to, byte) in values.iter_mut().zip(codes) {
        *to = decode_one(code, *byte, scale);
    }
}

/// Rows of `width` values one after the other, each as its scale (little endian) and its codes: how they are
/// kept outside of a device.
pub fn pack(code: KvCode, width: usize, values: &[f32]) -> Vec<u8> {
    let rows = values.chunks_exact(width.max(1));
    let mut packed = Vec::with_capacity(rows.len() * (width + 4));
    let mut codes = vec![0; width];
    for row in rows {
        packed.extend(encode(code, row, &mut codes).to_le_bytes());
        packed.extend(&codes);
    }
    packed
}

/// The values of such rows. Bytes that no row gave mean something else, and nothing that is out of range.
pub fn unpack(code: KvCode, width: usize, packed: &[u8]) -> Vec<f32> {
    let rows = packed.chunks_exact(width + 4);
    let mut values = vec![0.0; rows.len() * width];
    for (to, row) in values.chunks_exact_mut(width.max(1)).zip(rows) {
        if let Some((scale, codes)) = row.split_first_chunk() {
            decode(code, f32::from_le_bytes(*scale), codes, to);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [KvCode; 2] = [KvCode::Int8, KvCode::Fp8];

    fn encoded(code: KvCode, values: &[f32]) -> (f32, Vec<u8>) {
        let mut codes = vec![99; values.len()];
        (encode(code, values, &mut codes), codes)
    }

    fn decoded(code: KvCode, (scale, codes): &(f32, Vec<u8>)) -> Vec<f32> {
        let mut values = vec![9.0; codes.len()];
        decode(code, *scale, codes, &mut values);
        values
    }

    /// The largest magnitude runs over every significand of 16 bits and those halfway between; the second
    /// value over all codes.
    #[test]
    fn a_row_of_decoded_values_has_its_own_scale_and_codes() {
        for code in BOTH {
            for i in 0..1 << 17 {
                let top = f32::from_bits(0x3f80_0000 + (i << 6) + (i % 3)) * [1.0, 1e-6, 3e5][i as usize % 3];
                let row = [top, top * ((i % 509) as f32 / 509.0), -top * ((i % 97) as f32 / 97.0), 0.0];
                let first = encoded(code, &row);
                let values = decoded(code, &first);
                for (value, byte) in values.iter().zip(&first.1) {
                    let exact = f64::from(decode_one(code, *byte, 1.0)) * f64::from(first.0);
                    assert_eq!(f64::from(*value), exact, "{code:?} {row:?}");
                }
                assert_eq!(encoded(code, &values), first, "{code:?} {row:?}");
                let end = if code == KvCode::Int8 { 127 } else { 0x7e };
                assert_eq!(first.1[0], end, "{code:?} {row:?}");
            }
        }
    }

    /// Half a step of integers; of e4m3 a 16th of the value, or half of its least step.
    #[test]
    fn errors_are_within_half_a_step() {
        for i in 0..20_000 {
            let x = |n: f64| ((f64::from(i) * 0.731 + n * 1.37).sin() * 3.0) as f32;
            let row: Vec<f32> = (0..33).map(|n| x(f64::from(n))).collect();
            for code in BOTH {
                let coded = encoded(code, &row);
                for (v, got) in row.iter().zip(decoded(code, &coded)) {
                    let most = match code {
                        KvCode::Int8 => 0.5 * coded.0,
                        KvCode::Fp8 => (v.abs() / 16.0).max(coded.0 / 1024.0),
                    };
                    assert!((v - got).abs() <= most * 1.0001 + coded.0 * 0.002, "{code:?} {v} {got}");
                }
            }
        }
    }

    #[test]
    fn rows_at_the_ends_of_the_range() {
        for code in BOTH {
            assert_eq!(encoded(code, &[0.0, -0.0]), (0.0, vec![0, 0]));
            assert_eq!(encoded(code, &[]), (0.0, vec![]));
            let small = LEAST / step(code);
            assert_eq!(encoded(code, &[small / 2.0, -1e-38]), (0.0, vec![0, 0]));
            let kept = encoded(code, &[small, -small]);
            assert_eq!((kept.0, kept.1[0]), (LEAST, if code == KvCode::Int8 { 127 } else { 0x7e }));
            let large = encoded(code, &[MOST, 1.0]);
            assert!(large.0.is_finite() && decoded(code, &large)[0].is_finite());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::from_bits(0xffff_ffff)] {
                let row = encoded(code, &[1.0, bad, 2.0]);
                assert_eq!((row.0.to_bits(), row.1.as_slice()), (f32::NAN.to_bits(), &[0, 0, 0][..]));
                assert!(decoded(code, &row).iter().all(|v| v.is_nan()));
                let again = encoded(code, &decoded(code, &row));
                assert_eq!((again.0.to_bits(), &again.1), (row.0.to_bits(), &row.1));
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_integers_have_no_negative_zero() {
        // The scale is 1.
        let row = encoded(KvCode::Int8, &[127.0, 0.5, 1.5, -2.5, -0.25, 63.49]);
        assert_eq!(row, (1.0, vec![127, 0, 2, 254, 0, 63]));
        let row = encoded(KvCode::Fp8, &[448.0, 17.0, 19.0, -0.0, 1.0 / 1024.0]);
        assert_eq!(row, (1.0, vec![0x7e, 0x58, 0x5a, 0x80, 0]));
    }

    #[test]
    fn packed_rows_come_back() {
        let values: Vec<f32> = (0..35).map(|i| (i as f32 - 11.0) * 0.37).collect();
        for code in BOTH {
            let packed = pack(code, 7, &values);
            assert_eq!(packed.len(), 5 * 11);
            let wide = unpack(code, 7, &packed);
            assert_eq!((wide.len(), pack(code, 7, &wide)), (35, packed));
            assert_eq!((pack(code, 0, &[]), unpack(code, 0, &[])), (vec![], vec![]));
        }
    }
}
