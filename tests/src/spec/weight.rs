//! Random weights in every format, as their bytes lie in files.

use crate::device::Matrix;
use crate::dice::{Dice, to_bytes};
use engraft_core::mem::{Block, Float, WeightFormat};
use half::f16;

/// Every format that a product takes.
pub const FORMATS: [WeightFormat; 8] = [
    WeightFormat::Plain(Float::F32),
    WeightFormat::Plain(Float::F16),
    WeightFormat::Plain(Float::Bf16),
    WeightFormat::Block(Block::Q4_0),
    WeightFormat::Block(Block::Q4_1),
    WeightFormat::Block(Block::Q5_0),
    WeightFormat::Block(Block::Q5_1),
    WeightFormat::Block(Block::Q8_0),
];

/// Columns that `format` can have, near `cols`: blocks hold 32.
pub fn columns(format: WeightFormat, cols: usize) -> usize {
    match format {
        WeightFormat::Block(_) => cols.div_ceil(32) * 32,
        _ => cols,
    }
}

/// A random weight of magnitude `scale`.
pub fn random(dice: &mut Dice, rows: usize, cols: usize, format: WeightFormat, scale: f32) -> Matrix {
    let bytes = match format {
        WeightFormat::Block(block) => {
            let blocks = rows * cols / Block::VALUES;
            (0..blocks).flat_map(|_| random_block(dice, block, scale)).collect()
        }
        WeightFormat::Plain(dtype) => to_bytes(&dice.values(rows * cols, scale, dtype), dtype),
        // Formats that come later bring their own case.
        _ => Vec::new(),
    };
    Matrix { rows, cols, format, bytes }
}

/// Scale, perhaps minimum, then codes of any value: every bit pattern of codes is valid.
fn random_block(dice: &mut Dice, block: Block, scale: f32) -> Vec<u8> {
    let mut raw: Vec<u8> = (0..block.bytes()).map(|_| dice.bits() as u8).collect();
    let top = if block == Block::Q8_0 { 127.0 } else { 16.0 };
    raw[..2].copy_from_slice(&f16::from_f32(dice.unit() * scale / top).to_le_bytes());
    if matches!(block, Block::Q4_1 | Block::Q5_1) {
        raw[2..4].copy_from_slice(&f16::from_f32(dice.unit() * scale).to_le_bytes());
    }
    raw
}
