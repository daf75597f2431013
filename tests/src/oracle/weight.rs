//! The values of a stored weight, decoded independently of the engine's codecs.

use crate::device::Matrix;
use crate::dice::from_bytes;
use engraft_core::mem::{Block, Float, WeightFormat};

/// All values `[rows, cols]`, row by row.
pub fn values(m: &Matrix) -> Vec<f32> {
    match m.format {
        WeightFormat::Plain(dtype) => {
            (0..m.rows * m.cols).map(|i| from_bytes(&m.bytes, i * dtype.bytes(), dtype)).collect()
        }
        WeightFormat::Block(block) => {
            m.bytes.chunks(block.bytes()).flat_map(|raw| decode(block, raw)).collect()
        }
        _ => Vec::new(),
    }
}

/// The 32 values of one block, bit by bit.
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
    };
    (0..Block::VALUES).map(value).collect()
}
