//! GGUF's blocks of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL. [`decode`] and [`encode`] take those of
//! 256 as well (`large.rs`, `large_encode.rs`).
//!
//! | format | bytes | value |
//! | --- | --- | --- |
//! | Q4_0 | `d` f16, 16 bytes of nibbles | `d * (q - 8)` |
//! | Q4_1 | `d` f16, `m` f16, 16 bytes of nibbles | `d * q + m` |
//! | Q5_0 | `d` f16, 32 high bits, 16 bytes of nibbles | `d * (q - 16)` |
//! | Q5_1 | `d` f16, `m` f16, 32 high bits, 16 bytes of nibbles | `d * q + m` |
//! | Q8_0 | `d` f16, 32 signed bytes | `d * q` |
//! | IQ4_NL | `d` f16, 16 bytes of nibbles | `d * table[q]`, whole numbers from -127 to 113 |
//!
//! Nibble byte j holds value j in its low and value j + 16 in its high half; bit j of the high bits
//! (little-endian) is the fifth bit of value j. `d` and `m` widen exactly; `d * q` has at most 11 + 8
//! significant bits and is exact in f32; the `_1` formats round once, in the addition, so a fused
//! multiply-add gives the same bits. Source: `block_q*` in ggml's `ggml-common.h`.

use super::small_float::{IQ4, finite_f16};
use crate::mem::Block;
use half::f16;

const VALUES: usize = Block::VALUES;
const NIBBLES: usize = VALUES / 2;

/// Scale and codes of run `run` of 32 values in a block whose codes are places in [`IQ4`].
pub fn places(block: Block, raw: &[u8], run: usize) -> (f32, [u8; VALUES]) {
    let (d, codes) = match block {
        Block::Iq4Xs => (super::large::scale(block, raw, 2 * run).0, &raw[8 + run * NIBBLES..]),
        _ => (scale(block, raw).0, &raw[2..]),
    };
    (d, std::array::from_fn(|j| codes[j % NIBBLES] >> (j / NIBBLES * 4) & 15))
}

/// Where a block's parts begin, and how its codes read.
#[derive(Clone, Copy)]
struct BlockFormat {
    /// Bytes before the codes: `d`, perhaps `m`, perhaps the high bits.
    minimum: bool,
    fifth_bits: bool,
    /// Subtracted from a code.
    zero: i32,
    /// Largest code.
    top: i32,
}

const fn format(block: Block) -> BlockFormat {
    match block {
        Block::Q4_0 => BlockFormat { minimum: false, fifth_bits: false, zero: 8, top: 15 },
        Block::Q4_1 => BlockFormat { minimum: true, fifth_bits: false, zero: 0, top: 15 },
        Block::Q5_0 => BlockFormat { minimum: false, fifth_bits: true, zero: 16, top: 31 },
        Block::Q5_1 => BlockFormat { minimum: true, fifth_bits: true, zero: 0, top: 31 },
        // The K-quants have codecs of their own and never come here.
        _ => BlockFormat { minimum: false, fifth_bits: false, zero: 0, top: 127 },
    }
}

/// Decodes whole blocks of any format: `bytes` has `n * block.bytes()` bytes, `out` `n * block.values()`
/// values. What is left over in the longer of the two is not touched.
pub fn decode(block: Block, bytes: &[u8], out: &mut [f32]) {
    if block.is_large() {
        return super::large::decode(block, bytes, out);
    }
    let (values, _) = out.as_chunks_mut::<VALUES>();
    for (raw, out) in bytes.chunks_exact(block.bytes()).zip(values) {
        let (d, m) = scale(block, raw);
        let codes = codes(block, raw);
        if format(block).minimum {
            for (v, q) in out.iter_mut().zip(codes) {
                *v = d * q as f32 + m;
            }
        } else {
            for (v, q) in out.iter_mut().zip(codes) {
                *v = d * q as f32;
            }
        }
    }
}

/// A block's `d`, and its `m` or zero, widened.
pub fn scale(block: Block, raw: &[u8]) -> (f32, f32) {
    let half = |at: usize| f16::from_le_bytes([raw[at], raw[at + 1]]).to_f32();
    (half(0), if format(block).minimum { half(2) } else { 0.0 })
}

/// A block's 32 codes in the order of the values, with the format's zero subtracted.
pub fn codes(block: Block, raw: &[u8]) -> [i32; VALUES] {
    let format = format(block);
    let mut at = if format.minimum { 4 } else { 2 };
    let mut out = [0; VALUES];
    if block.is_table() {
        return places(block, raw, 0).1.map(|code| IQ4[usize::from(code)] as i32);
    }
    if block == Block::Q8_0 {
        for (q, &byte) in out.iter_mut().zip(&raw[at..at + VALUES]) {
            *q = i32::from(byte as i8);
        }
        return out;
    }
    let mut fifth = 0;
    if format.fifth_bits {
        fifth = u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        at += 4;
    }
    for (j, &byte) in raw[at..at + NIBBLES].iter().enumerate() {
        out[j] = i32::from(byte & 15);
        out[j + NIBBLES] = i32::from(byte >> 4);
    }
    for (j, q) in out.iter_mut().enumerate() {
        *q += ((fifth >> j & 1) << 4) as i32 - format.zero;
    }
    out
}

/// Encodes whole blocks: `values` has `n * block.values()` values, `out` `n * block.bytes()` bytes; what is
/// left over in the longer of the two is not touched.
///
/// Of formats with 32 values `d` and `m` are chosen as llama.cpp does (largest magnitude to the end of the
/// symmetric range, minimum and maximum to the ends of the other), rounded to f16 and kept finite; codes are
/// then rounded to nearest, halves upwards, against the rounded `d` and `m`. A value is off by at most half a
/// step, or by one step where the short side of Q4_0 and Q5_0 clamps (codes reach from -8 to 7), plus what
/// rounding `m` to f16 costs. NaN encodes as code 0.
pub fn encode(block: Block, values: &[f32], out: &mut [u8]) {
    if block.is_large() {
        return super::large_encode::encode(block, values, out);
    }
    let (values, _) = values.as_chunks::<VALUES>();
    for (values, raw) in values.iter().zip(out.chunks_exact_mut(block.bytes())) {
        encode_one(block, values, raw);
    }
}

/// IQ4_NL: the value of largest magnitude takes either end of the table, whichever gives the smaller squared
/// error; the others the nearest entry.
fn encode_places(values: &[f32; VALUES], raw: &mut [u8]) {
    let numbers = values.map(|v| if v.is_nan() { 0.0 } else { v });
    let extreme = numbers.iter().fold(0f32, |most, v| if v.abs() > most.abs() { *v } else { most });
    let nearest = |v: f32| {
        let off = |place: &usize| (IQ4[*place] - v).abs();
        (0..IQ4.len()).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0)
    };
    let with = |end: f32| {
        let d = finite_f16(extreme / end);
        let codes = numbers.map(|v| if d == f16::ZERO { 0 } else { nearest(v / d.to_f32()) });
        let off = |(v, code): (&f32, &usize)| f64::from(v - d.to_f32() * IQ4[*code]).powi(2);
        (numbers.iter().zip(&codes).map(off).sum::<f64>(), d, codes)
    };
    let (low, high) = (with(IQ4[0]), with(IQ4[15]));
    let (_, d, codes) = if high.0 < low.0 { high } else { low };
    raw[..2].copy_from_slice(&d.to_le_bytes());
    for j in 0..NIBBLES {
        raw[2 + j] = (codes[j] | codes[j + NIBBLES] << 4) as u8;
    }
}

fn encode_one(block: Block, values: &[f32; VALUES], raw: &mut [u8]) {
    if block.is_table() {
        return encode_places(values, raw);
    }
    let format = format(block);
    let (d, m) = choose(block, values);
    let low = if block == Block::Q8_0 { -format.top } else { -format.zero };
    let (step, minimum) = (d.to_f32(), m.to_f32());
    // 0 / 0 and NaN become code 0 by the saturating cast.
    let code =
        |v: f32| (libm::floorf((v - minimum) / step + 0.5) as i32).clamp(low, format.top - format.zero);
    put(block, (d, m), &values.map(code), raw);
}

/// A block of `d` and codes as [`codes`] gives them, each within the format's range; `m`, where there is one,
/// is zero.
pub fn write(block: Block, d: f16, codes: &[i32; VALUES], raw: &mut [u8]) {
    put(block, (d, f16::ZERO), codes, raw);
}

fn put(block: Block, (d, m): (f16, f16), codes: &[i32; VALUES], raw: &mut [u8]) {
    let format = format(block);
    raw[..2].copy_from_slice(&d.to_le_bytes());
    let mut at = 2;
    if format.minimum {
        raw[2..4].copy_from_slice(&m.to_le_bytes());
        at = 4;
    }
    if block == Block::Q8_0 {
        for (byte, code) in raw[at..].iter_mut().zip(codes) {
            *byte = *code as i8 as u8;
        }
        return;
    }
    let mut fifth = 0u32;
    let nibbles = if format.fifth_bits { at + 4 } else { at };
    for j in 0..NIBBLES {
        let [low, high] = [codes[j], codes[j + NIBBLES]].map(|code| (code + format.zero) as u32);
        raw[nibbles + j] = (low & 15 | (high & 15) << 4) as u8;
        fifth |= low >> 4 << j | high >> 4 << (j + NIBBLES);
    }
    if format.fifth_bits {
        raw[at..nibbles].copy_from_slice(&fifth.to_le_bytes());
    }
}

/// `d` and `m` of a block.
fn choose(block: Block, values: &[f32; VALUES]) -> (f16, f16) {
    let format = format(block);
    let (low, high) =
        values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    if format.minimum {
        return (finite_f16((high - low) / format.top as f32), finite_f16(low));
    }
    if block == Block::Q8_0 {
        return (finite_f16(low.abs().max(high.abs()) / format.top as f32), f16::ZERO);
    }
    let extreme = if -low >= high { low } else { high };
    (finite_f16(extreme / -format.zero as f32), f16::ZERO)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Block; 5] = [Block::Q4_0, Block::Q4_1, Block::Q5_0, Block::Q5_1, Block::Q8_0];

    /// A block from its parts; codes are stored ones (zero not subtracted; two's complement for Q8_0).
    fn pack(block: Block, d: f32, m: f32, codes: &[u32; 32]) -> Vec<u8> {
        let mut raw = f16::from_f32(d).to_le_bytes().to_vec();
        if matches!(block, Block::Q4_1 | Block::Q5_1) {
            raw.extend(f16::from_f32(m).to_le_bytes());
        }
        if block == Block::Q8_0 {
            raw.extend(codes.iter().map(|&q| q as u8));
            return raw;
        }
        if matches!(block, Block::Q5_0 | Block::Q5_1) {
            let fifth = codes.iter().enumerate().fold(0u32, |bits, (j, q)| bits | (q >> 4 & 1) << j);
            raw.extend(fifth.to_le_bytes());
        }
        raw.extend((0..16).map(|j| (codes[j] & 15 | (codes[j + 16] & 15) << 4) as u8));
        raw
    }

    fn decoded(block: Block, raw: &[u8]) -> [f32; 32] {
        let mut out = [f32::NAN; 32];
        decode(block, raw, &mut out);
        out
    }

    #[test]
    fn every_code_at_every_place_decodes_by_the_formula() {
        for block in ALL {
            let count = match block {
                Block::Q4_0 | Block::Q4_1 => 16,
                Block::Q5_0 | Block::Q5_1 => 32,
                _ => 256,
            };
            let (d, m) = (-0.375f32, 11.25f32);
            for place in 0..32 {
                for q in 0..count {
                    // Neighbours hold the complement, so a bit taken from the wrong place shows.
                    let mut codes = [!q & (count - 1); 32];
                    codes[place] = q;
                    let raw = pack(block, d, m, &codes);
                    assert_eq!(raw.len(), block.bytes());
                    let got = decoded(block, &raw);
                    for (j, &code) in codes.iter().enumerate() {
                        let want = match block {
                            Block::Q4_0 => d * (code as i32 - 8) as f32,
                            Block::Q5_0 => d * (code as i32 - 16) as f32,
                            Block::Q4_1 | Block::Q5_1 => d * code as f32 + m,
                            _ => d * f32::from(code as u8 as i8),
                        };
                        assert_eq!(got[j], want, "{} place {j}, code {code}", block.name());
                    }
                }
            }
        }
    }

    #[test]
    fn places_of_a_table_at_every_place_and_their_rounding() {
        for place in 0..32 {
            for q in 0..16u32 {
                let mut codes = [q ^ 15; 32];
                codes[place] = q;
                let raw = pack(Block::Iq4Nl, -0.375, 0.0, &codes);
                let want = codes.map(|q| -0.375 * IQ4[q as usize]);
                assert_eq!(decoded(Block::Iq4Nl, &raw), want, "{place} {q}");
            }
        }
        // d = 0.5; the ends, what is nearest to zero, and a value between two entries.
        let mut values = [0.0f32; 32];
        (values[0], values[5], values[31]) = (-63.5, 12.0, 56.5);
        let mut raw = vec![0; 18];
        encode(Block::Iq4Nl, &values, &mut raw);
        let got = decoded(Block::Iq4Nl, &raw);
        assert_eq!((got[0], got[5], got[31], got[1]), (-63.5, 12.5, 56.5, 0.5));
        // Turned around, the largest magnitude is positive and takes the same end.
        encode(Block::Iq4Nl, &values.map(|v| -v), &mut raw);
        assert_eq!(decoded(Block::Iq4Nl, &raw)[0], 63.5);
        for values in [[0.0; 32], [f32::NAN; 32], [f32::INFINITY; 32], [f32::MAX; 32], [1e-30; 32]] {
            encode(Block::Iq4Nl, &values, &mut raw);
            assert!(decoded(Block::Iq4Nl, &raw).iter().all(|v| v.is_finite()), "{}", values[0]);
        }
    }

    #[test]
    fn scale_times_code_is_exact_for_every_scale() {
        for bits in (0..=u16::MAX).filter(|b| f16::from_bits(*b).is_finite()) {
            let d = f16::from_bits(bits).to_f32();
            for q in [-128, -127, -16, -8, -1, 0, 1, 7, 15, 31, 127] {
                let scaled = d * q as f32;
                assert_eq!(f64::from(scaled), f64::from(d) * f64::from(q), "d {d}, q {q}");
            }
        }
    }

    #[test]
    fn the_minimum_is_added_with_one_rounding() {
        let mut state = 1u32;
        for _ in 0..2000 {
            let mut next = || {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                (state >> 16) as u16 & 0x7bff
            };
            let (d, m) = (f16::from_bits(next()), -f16::from_bits(next()));
            let codes = std::array::from_fn(|j| j as u32);
            let got = decoded(Block::Q5_1, &pack(Block::Q5_1, d.to_f32(), m.to_f32(), &codes));
            for (q, got) in got.iter().enumerate() {
                // The product is exact, so rounding once (fused) and after the addition are the same.
                assert_eq!(got.to_bits(), libm::fmaf(d.to_f32(), q as f32, m.to_f32()).to_bits());
            }
        }
    }

    #[test]
    fn a_known_block_reads_as_in_ggml() {
        // d = 0.5; byte 0 = 0xf1: value 0 has code 1, value 16 code 15.
        let mut raw = vec![0x00, 0x38];
        raw.push(0xf1);
        raw.extend([0x88; 15]);
        let got = decoded(Block::Q4_0, &raw);
        assert_eq!((got[0], got[16], got[1], got[17]), (-3.5, 3.5, 0.0, 0.0));
    }

    #[test]
    fn several_blocks_and_leftovers() {
        let raw = pack(Block::Q8_0, 1.0, 0.0, &[1; 32]).repeat(3);
        let mut out = [9.0; 70];
        decode(Block::Q8_0, &raw, &mut out);
        assert!(out[..64].iter().all(|&v| v == 1.0) && out[64..].iter().all(|&v| v == 9.0));
        let mut short = [9.0; 128];
        decode(Block::Q8_0, &raw, &mut short);
        assert!(short[..96].iter().all(|&v| v == 1.0) && short[96..].iter().all(|&v| v == 9.0));
    }

    #[test]
    fn odd_values_encode_without_harm() {
        for block in ALL {
            for values in [[0.0; 32], [f32::NAN; 32], [f32::INFINITY; 32], [f32::MAX; 32], [1e-30; 32]] {
                let mut raw = vec![0; block.bytes()];
                encode(block, &values, &mut raw);
                assert!(decoded(block, &raw).iter().all(|v| v.is_finite()), "{} {}", block.name(), values[0]);
            }
            let mut raw = vec![0; block.bytes()];
            encode(block, &[0.0; 32], &mut raw);
            assert!(decoded(block, &raw).iter().all(|&v| v == 0.0));
        }
    }

    /// Values whose offset is at most a few times their spread, as weights are.
    fn values() -> impl Strategy<Value = [f32; 32]> {
        (prop::array::uniform32(-1.0f32..1.0), -2.0f32..2.0, -6i32..6).prop_map(
            |(mut v, offset, exponent)| {
                // Two fixed ends keep the spread wide enough for the bound below.
                (v[3], v[20]) = (-1.0, 0.9);
                v.map(|x| (x + offset) * 2f32.powi(exponent))
            },
        )
    }

    proptest! {
        #[test]
        fn encoding_is_off_by_half_a_step_and_then_a_fixed_point(values in values()) {
            for block in ALL {
                let mut raw = vec![0; block.bytes()];
                encode(block, &values, &mut raw);
                let got = decoded(block, &raw);
                let (d, m) = scale(block, &raw);
                let step = d.abs();
                let format = format(block);
                // Rounding d moves the far end by top * 2^-11 steps, rounding m everything by |m| * 2^-11.
                let slack = step * format.top as f32 * 2f32.powi(-11) + m.abs() * 2f32.powi(-11) + step * 1e-3;
                for (x, y) in values.iter().zip(got) {
                    let clamps = format.zero > 0 && x / d > (format.top - format.zero) as f32;
                    let bound = if clamps { step } else { step / 2.0 };
                    prop_assert!((x - y).abs() <= bound + slack, "{}: {x} became {y}, step {step}", block.name());
                }
                let mut again = vec![0; block.bytes()];
                encode(block, &got, &mut again);
                prop_assert_eq!(decoded(block, &again), got, "{}", block.name());
            }
        }
    }
}
