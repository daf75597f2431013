//! Groups of small floats and of codes of a table: `d * value(code)`, rounded once in f32.
//!
//! | format | scale `d` | codes |
//! | --- | --- | --- |
//! | fp8, fp8-e5m2 | f32 | bytes of e4m3 or e5m2 |
//! | fp6 | f32 | e3m2: code i is bits 6i to 6i + 5 of the codes' bytes, the lowest bit of a byte first |
//! | fp4 | f32 | nibbles of e2m1 |
//! | mxfp4 | e8m0, one byte | nibbles of e2m1 |
//! | nf4 | f32 | nibbles, places in NF4's table |
//!
//! Scales are zero or from 2^-100 to 2^100: kernels move powers of two between codes and scales, and these
//! leave room for them. Codes are finite: encoders write no other, and checkpoints with other ones are
//! refused, so what kernels make of NaN is not said.
//!
//! FP8 of blocks of 128 x 128 is groups of 128: the scale of a block stands in each of its rows (3 % more
//! bytes), so rows stay independent, as everything that shards and packs weights wants it. For NVFP4, whose
//! scales of four bits of exponent go with one factor of the tensor, the product is the scale.

use super::small_float::{E2M1, NF4, e3m2, e4m3, e5m2, e8m0, to_e2m1, to_e3m2, to_e4m3, to_e5m2, to_nf4};
use crate::mem::{GroupBits, Groups};

/// The least scale that is not zero, and the largest.
pub const SCALES: [f32; 2] = [1.0 / (1u128 << 100) as f32, (1u128 << 100) as f32];

/// What a code stands for; of integers nothing.
pub fn value(bits: GroupBits, code: u8) -> f32 {
    match bits {
        GroupBits::Eight | GroupBits::Four => f32::NAN,
        GroupBits::E4m3 => e4m3(code),
        GroupBits::E5m2 => e5m2(code),
        GroupBits::E3m2 => e3m2(code),
        GroupBits::E2m1 | GroupBits::Mx => E2M1[usize::from(code & 15)],
        GroupBits::Nf4 => NF4[usize::from(code & 15)],
    }
}

/// Code `i` of a group, as it lies there.
pub fn code(format: Groups, group: &[u8], i: usize) -> u8 {
    let codes = &group[format.head()..];
    match format.bits.count() {
        8 => codes[i],
        6 => {
            let (at, shift) = (i * 6 / 8, i * 6 % 8);
            let high = codes.get(at + 1).copied().unwrap_or(0);
            (u16::from_le_bytes([codes[at], high]) >> shift) as u8 & 63
        }
        _ => codes[i / 2] >> (i % 2 * 4) & 15,
    }
}

/// Adds code `i` to a group whose codes are still zero.
pub fn put(format: Groups, group: &mut [u8], i: usize, code: u8) {
    let codes = &mut group[format.head()..];
    let bits = format.bits.count();
    let (at, shift) = (i * bits / 8, i * bits % 8);
    let [low, high] = (u16::from(code) << shift).to_le_bytes();
    codes[at] |= low;
    if high > 0 {
        codes[at + 1] |= high;
    }
}

/// A group's scale.
pub fn scale(format: Groups, group: &[u8]) -> f32 {
    match format.bits {
        GroupBits::Mx => e8m0(group[0]),
        _ => f32::from_le_bytes([group[0], group[1], group[2], group[3]]),
    }
}

/// Encodes a group: its largest value takes the largest code; of MXFP4's powers of two it is that of the
/// specification, or the next, whichever gives the smaller squared error. NaN encodes as zero, what is beyond
/// the largest scale as the largest value.
pub fn encode(format: Groups, values: &[f32], group: &mut [u8]) {
    let largest = values.iter().filter(|v| !v.is_nan()).fold(0f32, |top, v| top.max(v.abs()));
    let d = match format.bits {
        GroupBits::Mx => power(values, largest),
        bits => largest / top(bits),
    };
    let d = if d < SCALES[0] { 0.0 } else { d.min(SCALES[1]) };
    match format.bits {
        GroupBits::Mx => group[0] = (d.to_bits() >> 23) as u8,
        _ => group[..4].copy_from_slice(&d.to_le_bytes()),
    }
    group[format.head()..].fill(0);
    for (i, v) in values.iter().enumerate() {
        put(format, group, i, nearest(format.bits, if d == 0.0 || v.is_nan() { 0.0 } else { v / d }));
    }
}

/// The largest code's value.
fn top(bits: GroupBits) -> f32 {
    match bits {
        GroupBits::E4m3 => 448.0,
        GroupBits::E5m2 => 57344.0,
        GroupBits::E3m2 => 28.0,
        GroupBits::E2m1 | GroupBits::Mx => 6.0,
        _ => 1.0,
    }
}

fn nearest(bits: GroupBits, v: f32) -> u8 {
    match bits {
        GroupBits::Eight | GroupBits::Four => 0,
        GroupBits::E4m3 => to_e4m3(v),
        GroupBits::E5m2 => to_e5m2(v),
        GroupBits::E3m2 => to_e3m2(v),
        GroupBits::E2m1 | GroupBits::Mx => to_e2m1(v),
        GroupBits::Nf4 => to_nf4(v),
    }
}

/// MXFP4's power of two for a largest value: two below that of the value itself, so that it lies among the
/// largest codes, or one below, so that it does not exceed them.
fn power(values: &[f32], largest: f32) -> f32 {
    let size = largest.clamp(4.0 * SCALES[0], 2.0 * SCALES[1]);
    let low = f32::from_bits(size.to_bits() >> 23 << 23) / 4.0;
    let error = |d: f32| -> f64 {
        let of = |v: &f32| f64::from(v - d * value(GroupBits::Mx, to_e2m1(v / d)));
        values.iter().filter(|v| !v.is_nan()).map(of).map(|e| e * e).sum()
    };
    match largest < SCALES[0] {
        true => 0.0,
        false if error(2.0 * low) < error(low) => 2.0 * low,
        false => low,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::quant::group;
    use proptest::prelude::*;

    fn formats() -> impl Iterator<Item = Groups> {
        [
            (GroupBits::E4m3, 0),
            (GroupBits::E4m3, 128),
            (GroupBits::E5m2, 0),
            (GroupBits::E5m2, 64),
            (GroupBits::E3m2, 0),
            (GroupBits::E3m2, 32),
            (GroupBits::E2m1, 16),
            (GroupBits::E2m1, 0),
            (GroupBits::Mx, 32),
            (GroupBits::Nf4, 64),
            (GroupBits::Nf4, 0),
        ]
        .into_iter()
        .map(|(bits, size)| Groups::floats(bits, size))
    }

    fn round_trip(format: Groups, cols: usize, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut bytes = vec![0xa5; values.len() / cols * format.row_bytes(cols)];
        group::encode(format, cols, values, &mut bytes);
        let mut out = vec![f32::NAN; values.len()];
        group::decode(format, cols, &bytes, &mut out);
        (bytes, out)
    }

    #[test]
    fn every_code_at_every_place_decodes_by_the_formula() {
        for format in formats() {
            for n in [1, 2, 3, 5, 16, 31] {
                for place in 0..n {
                    for q in 0..1u32 << format.bits.count() {
                        let mut group = vec![0; format.group_bytes(n)];
                        match format.bits {
                            GroupBits::Mx => group[0] = 130,
                            _ => group[..4].copy_from_slice(&8f32.to_le_bytes()),
                        }
                        put(format, &mut group, place, q as u8);
                        let bit = place * format.bits.count();
                        let at = format.head() + bit / 8;
                        let word = u32::from(group[at]) | u32::from(*group.get(at + 1).unwrap_or(&0)) << 8;
                        assert_eq!(word >> (bit % 8) & ((1 << format.bits.count()) - 1), q);
                        assert_eq!(u32::from(code(format, &group, place)), q);
                        let (got, want) = (
                            scale(format, &group) * value(format.bits, code(format, &group, place)),
                            8.0 * value(format.bits, q as u8),
                        );
                        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn constant_groups_and_odd_values() {
        for format in formats() {
            for v in [0.0f32, 1.0, -3.5, 1e-3, 60000.0] {
                let (_, got) = round_trip(format, 40, &[v; 80]);
                // A power of two does not make every value a code.
                let slack = if format.bits == GroupBits::Mx { v.abs() / 6.0 } else { v.abs() * 1e-6 };
                assert!(got.iter().all(|g| (g - v).abs() <= slack), "{format}: {v} became {}", got[0]);
            }
            for v in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-38, 1e-45] {
                let mut mixed = [0.5f32; 40];
                mixed[7] = v;
                for values in [[v; 40], mixed] {
                    let (bytes, got) = round_trip(format, 40, &values);
                    assert!(got.iter().all(|g| g.is_finite()), "{format} {v}");
                    let d = scale(format, &bytes);
                    assert!(d == 0.0 || (SCALES[0]..=SCALES[1]).contains(&d) || format.bits == GroupBits::Mx);
                }
            }
        }
    }

    /// DeepSpeed asks for sizes that its tiles divide.
    #[test]
    fn six_bits_take_rows_of_any_length() {
        for (cols, bytes) in [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (111, 84)] {
            assert_eq!(Groups::floats(GroupBits::E3m2, 0).row_bytes(cols), 4 + bytes);
        }
        let format = Groups::floats(GroupBits::E3m2, 32);
        assert_eq!(format.row_bytes(69), 2 * (4 + 24) + 4 + 4);
        let scaled = Groups::floats(GroupBits::E2m1, 16);
        assert_eq!(scaled.row_bytes(37), 2 * (4 + 8) + 4 + 3);
        assert_eq!(Groups::floats(GroupBits::Mx, 32).row_bytes(64), 34);
    }

    proptest! {
        #[test]
        fn off_by_half_a_step_and_then_a_fixed_point(
            values in prop::collection::vec(-1.0f32..1.0, 2 * 77), exponent in -20i32..20,
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(exponent)).collect();
            for format in formats() {
                let (_, got) = round_trip(format, 77, &values);
                let size = format.group(77);
                for row in 0..2 {
                    let rows = (&values[row * 77..][..77], &got[row * 77..][..77]);
                    for (x, y) in rows.0.chunks(size).zip(rows.1.chunks(size)) {
                        let top = x.iter().fold(0f32, |t, v| t.max(v.abs()));
                        for (x, y) in x.iter().zip(y) {
                            // Half a step: of the value, or of the largest where codes are subnormal.
                            let (of_value, of_top) = match format.bits {
                                GroupBits::E4m3 => (1.0 / 16.0, 2f32.powi(-10) / 448.0),
                                GroupBits::E5m2 => (1.0 / 8.0, 2f32.powi(-17) / 57344.0),
                                GroupBits::E3m2 => (1.0 / 8.0, 1.0 / 32.0 / 28.0),
                                GroupBits::E2m1 => (1.0 / 4.0, 0.25 / 6.0),
                                GroupBits::Mx => (1.0 / 4.0, 0.5 / 4.0),
                                _ => (0.0, (1.0 - 0.6961928) / 2.0),
                            };
                            let allowed = (x.abs() * of_value).max(top * of_top) * 1.001;
                            prop_assert!((x - y).abs() <= allowed, "{format}: {x} became {y}, top {top}");
                        }
                    }
                }
                if format.bits != GroupBits::Mx {
                    prop_assert_eq!(&round_trip(format, 77, &got).1, &got, "{}", format);
                }
            }
        }
    }
}
