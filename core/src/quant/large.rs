//! GGUF's blocks of 256 values: the K-quants Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, and IQ4_XS.
//!
//! A block has one f16 scale `d` (and in three formats one f16 scale of minima `e`); parts of 16 or 32 values
//! have small whole numbers `s` and `t` that these are multiplied with.
//!
//! | format | parts | bytes in order | value |
//! | --- | --- | --- | --- |
//! | Q2_K | 16 x 16 | `s` and `t` as nibbles of 16 bytes, 64 bytes of codes, `d`, `e` | `d s q - e t` |
//! | Q3_K | 16 x 16 | 32 bytes of third bits, 64 bytes of codes, 12 bytes of 6-bit `s`, `d` | `d (s - 32) (q - 4)` |
//! | Q4_K | 8 x 32 | `d`, `e`, 12 bytes of 6-bit `s` and `t`, 128 bytes of nibbles | `d s q - e t` |
//! | Q5_K | 8 x 32 | `d`, `e`, 12 bytes of 6-bit `s` and `t`, 32 bytes of fifth bits, 128 bytes of nibbles | `d s q - e t` |
//! | Q6_K | 16 x 16 | 128 bytes of nibbles, 64 bytes of upper bits, 16 signed `s`, `d` | `d s (q - 32)` |
//! | IQ4_XS | 8 x 32 | `d`, 2 upper bits of each `s`, their nibbles in 4 bytes, 128 bytes of nibbles | `d (s - 32) table[q]` |
//!
//! `d s`, `e t` and `(d s) q` are exact in f32 (11 + 6 + 7 bits at most); the formats with minima round once,
//! in the subtraction, so a fused multiply-add gives the same bits. Which bit of which byte belongs to value
//! i is in [`code`] and [`scale`], and for the way back in [`put_code`] and [`put_scale`]; what makes these
//! formats good is the search for scales (`large_encode.rs`). Source: `block_q*_K` and `dequantize_row_q*_K`
//! in ggml.

use super::small_float::IQ4;
use crate::mem::Block;
use half::f16;

/// Values that share a scale at least.
pub const PART: usize = 16;

/// Decodes whole blocks; what is left over in the longer of the two is not touched.
pub fn decode(block: Block, bytes: &[u8], out: &mut [f32]) {
    for (raw, out) in bytes.chunks_exact(block.bytes()).zip(out.chunks_exact_mut(Block::LARGE)) {
        for (p, values) in out.chunks_exact_mut(PART).enumerate() {
            let (d, m) = scale(block, raw, p);
            for (i, v) in values.iter_mut().enumerate() {
                *v = d * code(block, raw, p * PART + i) as f32 - m;
            }
        }
    }
}

fn half(raw: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([raw[at], raw[at + 1]]).to_f32()
}

/// Where `d` and, in formats with minima, `e` lie.
const fn halves(block: Block) -> (usize, Option<usize>) {
    match block {
        Block::Q2K => (80, Some(82)),
        Block::Q3K => (108, None),
        Block::Q6K => (208, None),
        Block::Iq4Xs => (0, None),
        _ => (0, Some(2)),
    }
}

/// Factor and minimum of part `p` of 16 values: a value is `factor * code - minimum`.
pub fn scale(block: Block, raw: &[u8], p: usize) -> (f32, f32) {
    let (s, t) = scale_codes(block, raw, p);
    let (d, e) = halves(block);
    let (d, e) = (half(raw, d), e.map_or(0.0, |at| half(raw, at)));
    (d * f32::from(s), e * f32::from(t))
}

/// The whole numbers `s` (with the format's zero subtracted) and `t` of part `p` of 16 values.
pub fn scale_codes(block: Block, raw: &[u8], p: usize) -> (i8, i8) {
    match block {
        Block::Q2K => ((raw[p] & 15) as i8, (raw[p] >> 4) as i8),
        Block::Q3K => {
            let s = &raw[96..108];
            let low = if p < 8 { s[p] & 15 } else { s[p - 8] >> 4 };
            let high = s[8 + p % 4] >> (p / 4 * 2) & 3;
            ((low | high << 4) as i8 - 32, 0)
        }
        Block::Q4K | Block::Q5K => {
            let (s, j) = (&raw[4..16], p / 2);
            let (scale, min) = if j < 4 {
                (s[j] & 63, s[j + 4] & 63)
            } else {
                (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
            };
            (scale as i8, min as i8)
        }
        Block::Q6K => (raw[192 + p] as i8, 0),
        Block::Iq4Xs => {
            let (run, high) = (p / 2, u16::from_le_bytes([raw[2], raw[3]]));
            let low = raw[4 + run / 2] >> (run % 2 * 4) & 15;
            let upper = (high >> (2 * run) & 3) as u8 * 16;
            ((low | upper) as i8 - 32, 0)
        }
        _ => (0, 0),
    }
}

/// Code of value `i` with the format's zero subtracted.
pub fn code(block: Block, raw: &[u8], i: usize) -> i32 {
    // Two halves of 128 values, four runs of 32 in each.
    let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
    if block.is_table() {
        let place = raw[8 + i / 32 * 16 + l % 16] >> (l / 16 * 4) & 15;
        return IQ4[usize::from(place)] as i32;
    }
    let q = match block {
        Block::Q2K => raw[16 + half * 32 + l] >> (run * 2) & 3,
        Block::Q3K => raw[32 + half * 32 + l] >> (run * 2) & 3 | (raw[l] >> (i / 32) & 1) << 2,
        Block::Q4K => raw[16 + i / 64 * 32 + l] >> (run % 2 * 4) & 15,
        Block::Q5K => raw[48 + i / 64 * 32 + l] >> (run % 2 * 4) & 15 | (raw[16 + l] >> (i / 32) & 1) << 4,
        Block::Q6K => {
            raw[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15
                | (raw[128 + half * 32 + l] >> (run * 2) & 3) << 4
        }
        _ => 0,
    };
    i32::from(q) - zero(block)
}

/// Writes `d` and, in formats with minima, `e`.
pub fn put_halves(block: Block, raw: &mut [u8], d: f16, e: f16) {
    let (d_at, e_at) = halves(block);
    raw[d_at..d_at + 2].copy_from_slice(&d.to_le_bytes());
    if let Some(at) = e_at {
        raw[at..at + 2].copy_from_slice(&e.to_le_bytes());
    }
}

/// Writes `s` and `t` of part `p` of 16 values, as [`scale_codes`] gives them, into bytes that are zero
/// there; where 32 values share them, part `p` is the first of two.
pub fn put_scale(block: Block, raw: &mut [u8], p: usize, (s, t): (i32, i32)) {
    let (s, t) = ((s + scale_zero(block)) as u8, t as u8);
    match block {
        Block::Q2K => raw[p] = s | t << 4,
        Block::Q3K => {
            raw[96 + p % 8] |= (s & 15) << (p / 8 * 4);
            raw[104 + p % 4] |= (s >> 4) << (p / 4 * 2);
        }
        Block::Q4K | Block::Q5K => {
            let (raw, j) = (&mut raw[4..16], p / 2);
            if j < 4 {
                raw[j] |= s;
                raw[j + 4] |= t;
            } else {
                raw[j + 4] |= s & 15 | t << 4;
                raw[j - 4] |= s >> 4 << 6;
                raw[j] |= t >> 4 << 6;
            }
        }
        Block::Q6K => raw[192 + p] = s,
        Block::Iq4Xs => {
            let run = p / 2;
            raw[4 + run / 2] |= (s & 15) << (run % 2 * 4);
            raw[2 + run / 4] |= (s >> 4) << (run % 4 * 2);
        }
        _ => {}
    }
}

/// Writes the code of value `i`, without a zero subtracted, into bits that are zero.
pub fn put_code(block: Block, raw: &mut [u8], i: usize, q: u8) {
    let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
    match block {
        Block::Q2K => raw[16 + half * 32 + l] |= q << (run * 2),
        Block::Q3K => {
            raw[32 + half * 32 + l] |= (q & 3) << (run * 2);
            raw[l] |= (q >> 2) << (i / 32);
        }
        Block::Q4K => raw[16 + i / 64 * 32 + l] |= q << (run % 2 * 4),
        Block::Q5K => {
            raw[48 + i / 64 * 32 + l] |= (q & 15) << (run % 2 * 4);
            raw[16 + l] |= (q >> 4) << (i / 32);
        }
        Block::Q6K => {
            raw[half * 64 + run % 2 * 32 + l] |= (q & 15) << (run / 2 * 4);
            raw[128 + half * 32 + l] |= (q >> 4) << (run * 2);
        }
        Block::Iq4Xs => raw[8 + i / 32 * 16 + l % 16] |= q << (l / 16 * 4),
        _ => {}
    }
}

/// What is subtracted from a stored `s`.
const fn scale_zero(block: Block) -> i32 {
    match block {
        Block::Q3K | Block::Iq4Xs => 32,
        _ => 0,
    }
}

/// What is subtracted from a stored code.
pub const fn zero(block: Block) -> i32 {
    match block {
        Block::Q3K => 4,
        Block::Q6K => 32,
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    const ALL: [Block; 6] = [Block::Q2K, Block::Q3K, Block::Q4K, Block::Q5K, Block::Q6K, Block::Iq4Xs];

    /// Walks a block in the order of ggml's loops: byte after byte with running shifts, not value by value.
    fn by_loops(block: Block, raw: &[u8]) -> Vec<f32> {
        let f = |at: usize| f16::from_le_bytes([raw[at], raw[at + 1]]).to_f32();
        let mut out = Vec::new();
        match block {
            Block::Q2K | Block::Q3K => {
                let three = block == Block::Q3K;
                let codes = if three { &raw[32..96] } else { &raw[16..80] };
                let mut scales = Vec::new();
                if three {
                    let s = &raw[96..108];
                    let word = |i: usize| u32::from_le_bytes(s[4 * i..4 * i + 4].try_into().unwrap());
                    let (low, high, top) = (word(0), word(1), word(2));
                    for (w, shift) in [(low, 0), (high, 2), (low >> 4, 4), (high >> 4, 6)] {
                        let four = w & 0x0f0f_0f0f | (top >> shift & 0x0303_0303) << 4;
                        scales.extend(four.to_le_bytes());
                    }
                } else {
                    scales.extend(&raw[..16]);
                }
                let mut is = 0;
                for (half, q) in codes.chunks(32).enumerate() {
                    for j in 0..4 {
                        for part in 0..2 {
                            let s = scales[is];
                            is += 1;
                            for l in part * 16..part * 16 + 16 {
                                let two = i32::from(q[l] >> (2 * j) & 3);
                                out.push(if three {
                                    let bit = raw[l] & 1 << (half * 4 + j) != 0;
                                    f(108) * (f32::from(s) - 32.0) * (two - if bit { 0 } else { 4 }) as f32
                                } else {
                                    f(80) * f32::from(s & 15) * two as f32 - f(82) * f32::from(s >> 4)
                                });
                            }
                        }
                    }
                }
            }
            Block::Q4K | Block::Q5K => {
                let five = block == Block::Q5K;
                let s = &raw[4..16];
                let codes = if five { &raw[48..176] } else { &raw[16..144] };
                for (g, q) in codes.chunks(32).enumerate() {
                    for side in 0..2 {
                        let j = 2 * g + side;
                        let (sc, m) = match j {
                            0..4 => (s[j] & 63, s[j + 4] & 63),
                            _ => ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4),
                        };
                        for l in 0..32 {
                            let mut code = q[l] >> (4 * side) & 15;
                            if five && raw[16 + l] & 1 << j != 0 {
                                code += 16;
                            }
                            out.push(f(0) * f32::from(sc) * f32::from(code) - f(2) * f32::from(m));
                        }
                    }
                }
            }
            Block::Iq4Xs => {
                let mut high = u16::from_le_bytes([raw[2], raw[3]]);
                for (ib, qs) in raw[8..].chunks(16).enumerate() {
                    let low = if ib % 2 == 0 { raw[4 + ib / 2] & 15 } else { raw[4 + ib / 2] >> 4 };
                    let ls = i32::from(low) + i32::from(high % 4) * 16;
                    high /= 4;
                    let dl = f(0) * (ls - 32) as f32;
                    out.extend(qs.iter().map(|q| dl * IQ4[usize::from(q % 16)]));
                    out.extend(qs.iter().map(|q| dl * IQ4[usize::from(q / 16)]));
                }
            }
            _ => {
                out = vec![0.0; 256];
                for n in 0..2 {
                    let (ql, qh, sc) = (&raw[64 * n..], &raw[128 + 32 * n..], &raw[192 + 8 * n..]);
                    for l in 0..32 {
                        let four = [ql[l] & 15, ql[l + 32] & 15, ql[l] >> 4, ql[l + 32] >> 4];
                        for (k, low) in four.into_iter().enumerate() {
                            let q = i32::from(low | (qh[l] >> (2 * k) & 3) << 4) - 32;
                            let s = sc[l / 16 + 2 * k] as i8;
                            out[128 * n + 32 * k + l] = f(208) * f32::from(s) * q as f32;
                        }
                    }
                }
            }
        }
        out
    }

    fn random(block: Block, state: &mut u64) -> Vec<u8> {
        let mut raw: Vec<u8> = (0..block.bytes())
            .map(|_| {
                *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (*state >> 33) as u8
            })
            .collect();
        // Finite scales.
        for at in match block {
            Block::Q2K => vec![80, 82],
            Block::Q3K => vec![108],
            Block::Q6K => vec![208],
            Block::Iq4Xs => vec![0],
            _ => vec![0, 2],
        } {
            raw[at + 1] &= 0xbb;
        }
        raw
    }

    #[test]
    fn by_value_and_by_loops_are_the_same() {
        let mut state = 1;
        for block in ALL {
            for _ in 0..300 {
                let raw = random(block, &mut state);
                let mut got = [f32::NAN; 256];
                decode(block, &raw, &mut got);
                let want = by_loops(block, &raw);
                assert!(
                    got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits() || a == b),
                    "{}",
                    block.name()
                );
            }
        }
    }

    /// What is written is what is read, next to neighbours of every other bit.
    #[test]
    fn what_is_put_is_found() {
        for block in ALL {
            let (scales, minima, codes) = match block {
                Block::Q2K => (0..=15, 15, 3),
                Block::Q3K => (-32..=31, 0, 7),
                Block::Q4K => (0..=63, 63, 15),
                Block::Q5K => (0..=63, 63, 31),
                Block::Q6K => (-128..=127, 0, 63),
                _ => (-32..=31, 0, 15),
            };
            // Of 32 values that share a scale the first part of two is named.
            let step = if matches!(block, Block::Q4K | Block::Q5K | Block::Iq4Xs) { 2 } else { 1 };
            let (least, most) = (*scales.start(), *scales.end());
            for s in scales {
                for part in (0..16).step_by(step) {
                    // Of this part one number, of all others its opposite.
                    let t = (s - least) * minima / (most - least);
                    let of = |p: usize| if p == part { (s, t) } else { (most + least - s, minima - t) };
                    let mut raw = vec![0; block.bytes()];
                    put_halves(block, &mut raw, f16::ZERO, f16::ZERO);
                    (0..16).step_by(step).for_each(|p| put_scale(block, &mut raw, p, of(p)));
                    for p in 0..16 {
                        let (got, want) = (scale_codes(block, &raw, p), of(p / step * step));
                        assert_eq!((i32::from(got.0), i32::from(got.1)), want, "{} {s} {p}", block.name());
                    }
                    let outside = (0..256).all(|i| code(block, &raw, i) == code(block, &[0; 256], i));
                    assert!(outside, "{}: scales change codes", block.name());
                }
            }
            for q in 0..=codes {
                for place in 0..256 {
                    let of = |i: usize| if i == place { q } else { codes - q };
                    let mut raw = vec![0; block.bytes()];
                    (0..256).for_each(|i| put_code(block, &mut raw, i, of(i)));
                    for i in 0..256 {
                        let stored =
                            if block.is_table() { IQ4[usize::from(of(i))] as i32 } else { of(i).into() };
                        assert_eq!(code(block, &raw, i), stored - zero(block), "{} {i}", block.name());
                    }
                    assert_eq!(scale_codes(block, &raw, 3), scale_codes(block, &[0; 256], 3));
                }
            }
            let mut raw = vec![0; block.bytes()];
            (0..16).step_by(step).for_each(|p| put_scale(block, &mut raw, p, (1, (minima > 0).into())));
            put_halves(block, &mut raw, f16::from_f32(3.0), f16::from_f32(5.0));
            let minimum = if minima > 0 { 5.0 } else { 0.0 };
            assert!((0..16).all(|p| scale(block, &raw, p) == (3.0, minimum)), "{}", block.name());
        }
    }

    #[test]
    fn every_bit_of_a_block_matters_and_none_twice() {
        // Flipping one bit of the codes changes exactly one value's code.
        for block in ALL {
            let raw = random(block, &mut 7);
            let codes = |raw: &[u8]| -> Vec<i32> { (0..256).map(|i| code(block, raw, i)).collect() };
            let scales = |raw: &[u8]| -> Vec<(f32, f32)> { (0..16).map(|p| scale(block, raw, p)).collect() };
            let (base, base_scales) = (codes(&raw), scales(&raw));
            let mut code_bits = 0;
            for bit in 0..raw.len() * 8 {
                let mut other = raw.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let changed = codes(&other).iter().zip(&base).filter(|(a, b)| a != b).count();
                assert!(changed <= 1, "{} bit {bit}", block.name());
                code_bits += changed;
                let moved = scales(&other) != base_scales;
                assert!(changed == 1 || moved, "{} bit {bit} means nothing", block.name());
            }
            let width = match block {
                Block::Q2K => 2,
                Block::Q3K => 3,
                Block::Q4K | Block::Iq4Xs => 4,
                Block::Q5K => 5,
                _ => 6,
            };
            assert_eq!(code_bits, 256 * width, "{}", block.name());
        }
    }

    #[test]
    fn scaled_codes_are_exact_and_the_minimum_rounds_once() {
        let mut state = 3;
        for block in ALL {
            for _ in 0..100 {
                let raw = random(block, &mut state);
                for i in 0..256 {
                    let (d, m) = scale(block, &raw, i / PART);
                    let q = code(block, &raw, i) as f32;
                    assert_eq!(f64::from(d * q), f64::from(d) * f64::from(q), "{}", block.name());
                    assert_eq!((d * q - m).to_bits(), libm::fmaf(d, q, -m).to_bits());
                }
            }
        }
    }
}
