//! Own formats: groups of values along the inputs share a scale, and in the asymmetric formats an offset.
//!
//! Here are the integers; `float_group` has codes of small floats and tables.
//!
//! | format | bytes of a group of n values | value |
//! | --- | --- | --- |
//! | int8 | `d` f16, n signed bytes | `d * q`, q from -127 to 127 |
//! | int8 asymmetric | `d` f16, `m` f16, n signed bytes | `d * q + m`, q from -128 to 127 |
//! | int4 | `d` f16, n nibbles | `d * (q - 8)`, q from 1 to 15 |
//! | int4 asymmetric | `d` f16, `m` f16, n nibbles | `d * q + m`, q from 0 to 15 |
//!
//! Value 2j of a group is the low nibble of byte j, value 2j + 1 the high one. Groups begin anew in every
//! row, and the last one of a row may be shorter (a tail group). `d * q` has at most 11 + 8 significant bits
//! and is exact in f32; the asymmetric variants round once, in the addition, so a fused multiply-add gives
//! the same bits.
//!
//! A group whose values are all the same needs no special case: symmetric, its value takes the largest code;
//! asymmetric, `d` is zero and `m` the value. Nothing is ever divided by a zero scale.

use super::float_group;
use super::small_float::finite_f16;
use crate::mem::{GroupBits, Groups};
use half::f16;

/// Decodes rows of `cols` values.
pub fn decode(format: Groups, cols: usize, bytes: &[u8], out: &mut [f32]) {
    let row_bytes = format.row_bytes(cols).max(1);
    for (raw, row) in bytes.chunks_exact(row_bytes).zip(out.chunks_mut(cols.max(1))) {
        let mut raw = raw;
        for values in row.chunks_mut(format.group(cols)) {
            let (group, rest) = raw.split_at(format.group_bytes(values.len()));
            raw = rest;
            if !format.bits.is_integer() {
                let d = float_group::scale(format, group);
                for (i, v) in values.iter_mut().enumerate() {
                    *v = d * float_group::value(format.bits, float_group::code(format, group, i));
                }
                continue;
            }
            let (d, m) = scale(format, group);
            for (i, v) in values.iter_mut().enumerate() {
                let q = code(format, group, i) as f32;
                *v = if format.asymmetric { d * q + m } else { d * q };
            }
        }
    }
}

/// The `d` of a group of integers, and its `m` or zero, widened.
pub fn scale(format: Groups, group: &[u8]) -> (f32, f32) {
    let half = |at: usize| f16::from_le_bytes([group[at], group[at + 1]]).to_f32();
    (half(0), if format.asymmetric { half(2) } else { 0.0 })
}

/// Code `i` of a group of integers, with the format's zero subtracted.
pub fn code(format: Groups, group: &[u8], i: usize) -> i32 {
    let codes = &group[format.head()..];
    match format.bits {
        GroupBits::Eight => i32::from(codes[i] as i8),
        _ => i32::from(codes[i / 2] >> (i % 2 * 4) & 15) - if format.asymmetric { 0 } else { 8 },
    }
}

/// Encodes rows of `cols` values. Codes are rounded to nearest, halves upwards, against the rounded `d` and
/// `m`; a group of four bits with a minimum takes the smallest and largest value for its ends, or a step that
/// has zero among its codes: whichever gives the smaller squared error. NaN encodes as code 0, values beyond
/// f16's range as the largest that the group can hold.
pub fn encode(format: Groups, cols: usize, values: &[f32], out: &mut [u8]) {
    let row_bytes = format.row_bytes(cols).max(1);
    for (row, raw) in values.chunks(cols.max(1)).zip(out.chunks_exact_mut(row_bytes)) {
        let mut raw = raw;
        for values in row.chunks(format.group(cols)) {
            let (group, rest) = raw.split_at_mut(format.group_bytes(values.len()));
            encode_group(format, values, group);
            raw = rest;
        }
    }
}

fn encode_group(format: Groups, values: &[f32], group: &mut [u8]) {
    if !format.bits.is_integer() {
        return float_group::encode(format, values, group);
    }
    let (d, m) = choose(format, values);
    group[..2].copy_from_slice(&d.to_le_bytes());
    if format.asymmetric {
        group[2..4].copy_from_slice(&m.to_le_bytes());
    }
    let (d, m) = (d.to_f32(), m.to_f32());
    let codes = &mut group[format.head()..];
    codes.fill(0);
    for (i, v) in values.iter().enumerate() {
        let q = nearest(format, d, m, *v);
        match format.bits {
            GroupBits::Eight => codes[i] = q as i8 as u8,
            _ => codes[i / 2] |= ((q - low_nibble(format)) as u8 & 15) << (i % 2 * 4),
        }
    }
}

/// Smallest and largest code.
fn range(format: Groups) -> (i32, i32) {
    match (format.bits, format.asymmetric) {
        (GroupBits::Eight, false) => (-127, 127),
        (GroupBits::Eight, true) => (-128, 127),
        (_, false) => (-7, 7),
        (_, true) => (0, 15),
    }
}

/// The code that a zero nibble stands for.
fn low_nibble(format: Groups) -> i32 {
    if format.asymmetric { 0 } else { -8 }
}

fn choose(format: Groups, values: &[f32]) -> (f16, f16) {
    let (low, high) = values
        .iter()
        .filter(|v| !v.is_nan())
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    if low > high {
        return (f16::ZERO, f16::ZERO);
    }
    let (first, last) = range(format);
    if !format.asymmetric {
        return (finite_f16(low.abs().max(high.abs()) / last as f32), f16::ZERO);
    }
    let limit = f16::MAX.to_f32();
    let (low, high) = (low.clamp(-limit, limit), high.clamp(-limit, limit));
    let d = finite_f16((high - low) / (last - first) as f32);
    let exact = (d, finite_f16(low - first as f32 * d.to_f32()));
    if format.bits == GroupBits::Eight || low >= 0.0 || high <= 0.0 {
        return exact;
    }
    let zero = with_zero(last, low, high);
    if squared_error(format, zero, values) < squared_error(format, exact, values) { zero } else { exact }
}

/// Step and minimum for which one of the codes 0 to `last` is zero, over at least `low` to `high` (of either
/// sign). Where a group is long, most of its values are small against the step: without a zero all of them
/// move by half a step.
fn with_zero(last: i32, low: f32, high: f32) -> (f16, f16) {
    let code = libm::roundf(last as f32 * -low / (high - low)).clamp(1.0, (last - 1) as f32);
    let d = finite_f16((-low / code).max(high / (last as f32 - code)));
    (d, finite_f16(-code * d.to_f32()))
}

fn squared_error(format: Groups, (d, m): (f16, f16), values: &[f32]) -> f64 {
    let (d, m) = (d.to_f32(), m.to_f32());
    let error = |v: &f32| f64::from(v - (m + d * nearest(format, d, m, *v) as f32));
    values.iter().filter(|v| !v.is_nan()).map(error).map(|e| e * e).sum()
}

/// The code of a value.
fn nearest(format: Groups, d: f32, m: f32, v: f32) -> i32 {
    let (low, high) = range(format);
    if d == 0.0 { 0 } else { (libm::floorf((v - m) / d + 0.5) as i32).clamp(low, high) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn formats() -> impl Iterator<Item = Groups> {
        [GroupBits::Eight, GroupBits::Four].into_iter().flat_map(|bits| {
            [false, true]
                .into_iter()
                .flat_map(move |asymmetric| [0, 32, 64, 128].map(|size| Groups { bits, size, asymmetric }))
        })
    }

    fn round_trip(format: Groups, cols: usize, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut bytes = vec![0xa5; values.len() / cols * format.row_bytes(cols)];
        encode(format, cols, values, &mut bytes);
        let mut out = vec![f32::NAN; values.len()];
        decode(format, cols, &bytes, &mut out);
        (bytes, out)
    }

    #[test]
    fn every_code_at_every_place_decodes_by_the_formula() {
        for format in formats().filter(|f| f.size == 32) {
            let (low, high) =
                (if format.bits == GroupBits::Eight { -128 } else { low_nibble(format) }, range(format).1);
            for place in 0..32 {
                for q in low..=high {
                    let mut group = vec![0u8; format.group_bytes(32)];
                    group[..2].copy_from_slice(&f16::from_f32(-0.375).to_le_bytes());
                    if format.asymmetric {
                        group[2..4].copy_from_slice(&f16::from_f32(11.25).to_le_bytes());
                    }
                    match format.bits {
                        GroupBits::Eight => group[format.head() + place] = q as i8 as u8,
                        _ => {
                            group[format.head() + place / 2] =
                                ((q - low_nibble(format)) as u8) << (place % 2 * 4);
                        }
                    }
                    let mut out = [0.0; 32];
                    decode(format, 32, &group, &mut out);
                    let want = -0.375 * q as f32 + if format.asymmetric { 11.25 } else { 0.0 };
                    assert_eq!(out[place], want, "{format:?} {place} {q}");
                }
            }
        }
    }

    #[test]
    fn constant_groups_and_odd_values() {
        for format in formats() {
            for v in [0.0f32, 1.0, -3.5, 1e-3, 60000.0] {
                let (_, got) = round_trip(format, 40, &[v; 80]);
                for g in got {
                    assert!((g - v).abs() <= v.abs() / 1000.0, "{format:?}: {v} became {g}");
                }
            }
            for v in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-30] {
                assert!(round_trip(format, 40, &[v; 40]).1.iter().all(|g| g.is_finite()), "{format:?} {v}");
                let mut mixed = [0.5f32; 40];
                mixed[7] = v;
                assert!(round_trip(format, 40, &mixed).1.iter().all(|g| g.is_finite()), "{format:?} {v}");
            }
        }
    }

    /// Weights of a trained matrix: most are small, a few are large, on both sides.
    #[test]
    fn a_minimum_is_no_worse_than_none_whatever_the_group() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let values: Vec<f32> = (0..16 * 576)
            .map(|i| {
                let bell: f32 = (0..6).map(|_| uniform()).sum();
                if i % 97 == 0 { 8.0 * bell } else { bell }
            })
            .collect();
        for size in [32, 64, 128, 0] {
            let error = |asymmetric| {
                let (_, got) = round_trip(Groups { bits: GroupBits::Four, size, asymmetric }, 576, &values);
                values.iter().zip(got).map(|(v, g)| f64::from(v - g).powi(2)).sum::<f64>()
            };
            let (with, without) = (error(true), error(false));
            assert!(with < without, "groups of {size}: {with} with a minimum, {without} without");
        }
    }

    #[test]
    fn rows_have_whole_groups_and_a_tail() {
        let format = Groups { bits: GroupBits::Four, size: 32, asymmetric: true };
        assert_eq!(format.row_bytes(64), 2 * (4 + 16));
        assert_eq!(format.row_bytes(69), 2 * (4 + 16) + 4 + 3);
        let row = Groups { size: 0, ..format };
        assert_eq!((row.row_bytes(69), row.group(69)), (4 + 35, 69));
    }

    proptest! {
        #[test]
        fn off_by_half_a_step_and_then_a_fixed_point(
            values in prop::collection::vec(-1.0f32..1.0, 3 * 77), offset in -2.0f32..2.0, exponent in -6i32..6,
        ) {
            let values: Vec<f32> = values.iter().map(|v| (v + offset) * 2f32.powi(exponent)).collect();
            for format in formats() {
                let (bytes, got) = round_trip(format, 77, &values);
                let (low, high) = range(format);
                for (i, (x, y)) in values.iter().zip(&got).enumerate() {
                    let (row, col) = (i / 77, i % 77);
                    let size = format.group(77);
                    let start = col / size * format.group_bytes(size) + row * format.row_bytes(77);
                    let (d, m) = scale(format, &bytes[start..]);
                    // Rounding d moves the far end by its whole range times 2^-11, rounding m everything.
                    let slack = d.abs() * (high - low) as f32 * 2f32.powi(-11) + m.abs() * 2f32.powi(-11) + d.abs() * 1e-3;
                    prop_assert!((x - y).abs() <= d.abs() / 2.0 + slack, "{format:?}: {x} became {y}, step {d}");
                }
                let (again, same) = round_trip(format, 77, &got);
                if !format.asymmetric {
                    prop_assert_eq!(&same, &got, "{:?}", format);
                    prop_assert_eq!(again.len(), bytes.len());
                }
            }
        }
    }
}
