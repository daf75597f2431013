//! The values of a stored weight, decoded independently of the engine's codecs.

use crate::device::Matrix;
use crate::dice::from_bytes;
use engraft_core::mem::{Block, Float, GroupBits, Groups, WeightFormat};

/// All values `[rows, cols]`, row by row.
pub fn values(m: &Matrix) -> Vec<f32> {
    match m.format {
        WeightFormat::Plain(dtype) => {
            (0..m.rows * m.cols).map(|i| from_bytes(&m.bytes, i * dtype.bytes(), dtype)).collect()
        }
        WeightFormat::Group(format) => {
            let row = m.bytes.len() / m.rows.max(1);
            m.bytes.chunks(row.max(1)).flat_map(|raw| groups(format, m.cols, raw)).collect()
        }
        blocks => {
            let block = blocks.block().unwrap_or(Block::Q8_0);
            m.bytes.chunks(block.bytes()).flat_map(|raw| decode(block, raw)).collect()
        }
    }
}

/// The values of a row of groups.
fn groups(format: Groups, cols: usize, mut raw: &[u8]) -> Vec<f32> {
    if !format.bits.is_integer() {
        return floats(format, cols, raw);
    }
    let (four, head) = (format.bits == GroupBits::Four, if format.asymmetric { 4 } else { 2 });
    let size = if format.size == 0 { cols } else { format.size as usize };
    let mut values = Vec::new();
    while values.len() < cols {
        let n = size.min(cols - values.len());
        for i in 0..n {
            let q = match (four, format.asymmetric) {
                (true, true) => f32::from(raw[head + i / 2] >> (4 * (i % 2)) & 15),
                (true, false) => f32::from(raw[head + i / 2] >> (4 * (i % 2)) & 15) - 8.0,
                (false, _) => f32::from(raw[head + i] as i8),
            };
            let scaled = from_bytes(raw, 0, Float::F16) * q;
            values.push(if format.asymmetric { scaled + from_bytes(raw, 2, Float::F16) } else { scaled });
        }
        raw = &raw[head + if four { n.div_ceil(2) } else { n }..];
    }
    values
}

/// The values of a row of small floats, by the formulas of their specifications: `d * value`, rounded once.
fn floats(format: Groups, cols: usize, mut raw: &[u8]) -> Vec<f32> {
    // Bits of a code, of its mantissa, and the bias.
    let (bits, mantissa, bias) = match format.bits {
        GroupBits::E4m3 => (8, 3, 7),
        GroupBits::E5m2 => (8, 2, 15),
        GroupBits::E3m2 => (6, 2, 3),
        _ => (4, 1, 1),
    };
    let value = |code: u32| -> f64 {
        if format.bits == GroupBits::Nf4 {
            return NF4[code as usize];
        }
        let size = code % (1 << (bits - 1));
        let (exponent, part) = ((size >> mantissa) as i32, f64::from(size % (1 << mantissa)));
        let part = part / f64::from(1 << mantissa);
        let size = match exponent {
            0 => part * f64::powi(2.0, 1 - bias),
            _ => (1.0 + part) * f64::powi(2.0, exponent - bias),
        };
        if code >> (bits - 1) == 1 { -size } else { size }
    };
    let size = if format.size == 0 { cols } else { format.size as usize };
    let head = if format.bits == GroupBits::Mx { 1 } else { 4 };
    let mut values = Vec::new();
    while values.len() < cols {
        let n = size.min(cols - values.len());
        let d = match head {
            1 => f64::powi(2.0, i32::from(raw[0]) - 127),
            _ => f64::from(f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])),
        };
        for i in 0..n {
            let bit = |b: usize| u32::from(raw[head + (i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b;
            // Exact in f64: 24 and at most 24 bits.
            values.push((d * value((0..bits).map(bit).sum())) as f32);
        }
        raw = &raw[head + (n * bits).div_ceil(8)..];
    }
    values
}

/// NF4's table as QLoRA prints it: values of f32, in as many digits as f64 needs to name them.
const NF4: [f64; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// The values of one block, bit by bit.
fn decode(block: Block, raw: &[u8]) -> Vec<f32> {
    let half = |at| from_bytes(raw, at, Float::F16);
    let nibble = |from: usize, j: usize| match j {
        0..16 => raw[from + j] % 16,
        _ => raw[from + j - 16] / 16,
    };
    let fifth = |from: usize, j: usize| (raw[from + j / 8] >> (j % 8)) % 2 * 16;
    let value = |j: usize| match block {
        Block::Q4_0 => half(0) * (f32::from(nibble(2, j)) - 8.0),
        Block::Q4_1 => half(0) * f32::from(nibble(4, j)) + half(2),
        Block::Q5_0 => half(0) * (f32::from(nibble(6, j) + fifth(2, j)) - 16.0),
        Block::Q5_1 => half(0) * f32::from(nibble(8, j) + fifth(4, j)) + half(2),
        Block::Q8_0 => half(0) * f32::from(raw[2 + j] as i8),
        Block::Iq4Nl => half(0) * IQ4[usize::from(nibble(2, j))],
        _ => large(block, raw, j),
    };
    (0..block.values()).map(value).collect()
}

/// `kvalues_iq4nl` of ggml.
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Value `j` of a block of 256: its code put together from single bits of the block, whose places are written
/// down here as (first bit of the code's low part, width, first bit of its high part).
fn large(block: Block, raw: &[u8], j: usize) -> f32 {
    let half = |at| from_bytes(raw, at, Float::F16);
    let bits = |first: usize, count: usize| -> i32 {
        (0..count).map(|i| i32::from(raw[(first + i) / 8] >> ((first + i) % 8) & 1) << i).sum()
    };
    let (run, l) = (j / 32, j % 32);
    // Six-bit scales of Q4_K and Q5_K: the last four of eight have their top bits above the first four.
    let six = |which: usize| {
        let (at, top) = (32 + run % 4 * 8, 32 + (run % 4 + 4 * which) * 8);
        match run < 4 {
            true => bits(at + 32 * which, 6),
            false => bits(at + 64 + 4 * which, 4) + 16 * bits(top + 6, 2),
        }
    };
    let (q, scale, min) = match block {
        Block::Q2K => {
            let q = bits((16 + run / 4 * 32 + l) * 8 + run % 4 * 2, 2);
            (q, half(80) * bits(j / 16 * 8, 4) as f32, half(82) * bits(j / 16 * 8 + 4, 4) as f32)
        }
        Block::Q3K => {
            let q = bits((32 + run / 4 * 32 + l) * 8 + run % 4 * 2, 2) + 4 * bits(l * 8 + run, 1) - 4;
            let p = j / 16;
            let low = bits((96 + p % 8) * 8 + p / 8 * 4, 4);
            (q, half(108) * (low + 16 * bits((104 + p % 4) * 8 + p / 4 * 2, 2) - 32) as f32, 0.0)
        }
        Block::Q4K => (
            bits((16 + run / 2 * 32 + l) * 8 + run % 2 * 4, 4),
            half(0) * six(0) as f32,
            half(2) * six(1) as f32,
        ),
        Block::Q5K => {
            let q = bits((48 + run / 2 * 32 + l) * 8 + run % 2 * 4, 4) + 16 * bits((16 + l) * 8 + run, 1);
            (q, half(0) * six(0) as f32, half(2) * six(1) as f32)
        }
        Block::Iq4Xs => {
            let place = bits((8 + run * 16 + l % 16) * 8 + l / 16 * 4, 4);
            let small = bits(32 + run * 4, 4) + 16 * bits(16 + run * 2, 2) - 32;
            (IQ4[place as usize] as i32, half(0) * small as f32, 0.0)
        }
        _ => {
            let (h, r) = (run / 4, run % 4);
            let q = bits((h * 64 + r % 2 * 32 + l) * 8 + r / 2 * 4, 4)
                + 16 * bits((128 + h * 32 + l) * 8 + r * 2, 2)
                - 32;
            (q, half(208) * f32::from(raw[192 + j / 16] as i8), 0.0)
        }
    };
    scale * q as f32 - min
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_the_engines_codec() {
        for format in [
            "int8:32",
            "int8a",
            "int4",
            "int4:64",
            "int4a:32",
            "fp8",
            "fp8:64",
            "fp8-e5m2:32",
            "fp6",
            "fp6:32",
            "fp4",
            "fp4:64",
            "mxfp4",
            "nf4",
        ] {
            let format: WeightFormat = format.parse().unwrap_or(WeightFormat::Plain(Float::F32));
            let cols = 111;
            let bytes =
                (0..format.bytes(2, cols)).map(|i| (i * 37 + i / 7 * 101 + 13) as u8 & 0x3f).collect();
            let m = Matrix { rows: 2, cols, format, bytes };
            let mut got = vec![f32::NAN; 2 * cols];
            assert!(engraft_core::quant::decode_rows(format, cols, &m.bytes, &mut got).is_ok());
            assert_eq!(values(&m), got, "{format}");
        }
    }

    #[test]
    fn k_quants_bit_by_bit_and_by_the_engines_codec() {
        for block in [Block::Q2K, Block::Q3K, Block::Q4K, Block::Q5K, Block::Q6K, Block::Iq4Xs] {
            let mut raw: Vec<u8> = (0..block.bytes()).map(|i| (i * 37 + i / 7 * 101 + 13) as u8).collect();
            let places: &[usize] = match block {
                Block::Q2K => &[80, 82],
                Block::Q3K => &[108],
                Block::Q6K => &[208],
                Block::Iq4Xs => &[0],
                _ => &[0, 2],
            };
            places.iter().for_each(|at| raw[*at..*at + 2].copy_from_slice(&[0x66, 0x2a + *at as u8 % 3]));
            let mut got = vec![f32::NAN; 256];
            engraft_core::quant::block::decode(block, &raw, &mut got);
            assert_eq!(decode(block, &raw), got, "{}", block.name());
        }
    }
}
