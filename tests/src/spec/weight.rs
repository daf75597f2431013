//! Random weights in every format, as their bytes lie in files.

use crate::device::Matrix;
use crate::dice::{Dice, to_bytes};
use engraft_core::mem::{Block, Float, GroupBits, Groups, WeightFormat};
use half::f16;

/// Every format that a matmul takes.
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

/// The K-quants and the own integer formats: they cost most to decode, and drivers most to compile, so they
/// have cases of their own (`packed`). Neighbours differ most, for runs of few cases.
pub const PACKED: [WeightFormat; 22] = [
    WeightFormat::Block(Block::Q4K),
    own(GroupBits::Four, 64, true),
    WeightFormat::Block(Block::Q2K),
    own(GroupBits::Eight, 0, false),
    WeightFormat::Block(Block::Q6K),
    own(GroupBits::Four, 32, false),
    WeightFormat::Block(Block::Q3K),
    own(GroupBits::Eight, 32, true),
    WeightFormat::Block(Block::Q5K),
    own(GroupBits::Four, 0, true),
    own(GroupBits::Eight, 64, false),
    own(GroupBits::Four, 0, false),
    own(GroupBits::E4m3, 0, false),
    own(GroupBits::E2m1, 16, false),
    own(GroupBits::E5m2, 32, false),
    own(GroupBits::Nf4, 64, false),
    own(GroupBits::E3m2, 0, false),
    own(GroupBits::Mx, 32, false),
    own(GroupBits::E4m3, 128, false),
    own(GroupBits::E3m2, 32, false),
    WeightFormat::Block(Block::Iq4Nl),
    WeightFormat::Block(Block::Iq4Xs),
];

const fn own(bits: GroupBits, size: u32, asymmetric: bool) -> WeightFormat {
    WeightFormat::Group(Groups { bits, size, asymmetric })
}

/// Columns that `format` can have, near `cols`: blocks hold 32, those of the K-quants 256.
pub fn columns(format: WeightFormat, cols: usize) -> usize {
    format.block().map_or(cols, |block| cols.next_multiple_of(block.values()))
}

/// Columns next to 4,096 that `format` can have: one less or more by turn, or a block more.
pub fn long(format: WeightFormat, turn: usize) -> usize {
    format.block().map_or([4095, 4097][turn % 2], |block| 4096 + block.values())
}

/// Case `at` of matmuls of models in so many formats: the number of its format, and rows and outputs. Few
/// outputs of as many rows as wgpu's lanes serve, one less and one more, and of more than a tile has; then
/// thousands of outputs of a row.
pub fn sized(at: usize, formats: usize) -> (usize, [usize; 2]) {
    let turn = at % formats;
    (turn, if at < formats { [[3, 4, 5, 9][turn % 4], 66] } else { [1, 4097] })
}

/// A random weight of magnitude `scale`.
pub fn random(dice: &mut Dice, rows: usize, cols: usize, format: WeightFormat, scale: f32) -> Matrix {
    let bytes = match format {
        WeightFormat::Plain(dtype) => to_bytes(&dice.values(rows * cols, scale, dtype), dtype),
        WeightFormat::Group(format) => {
            (0..rows).flat_map(|_| random_row(dice, format, cols, scale)).collect()
        }
        blocks => {
            let block = blocks.block().unwrap_or(Block::Q8_0);
            let count = rows * cols / block.values();
            (0..count).flat_map(|_| random_block(dice, block, scale)).collect()
        }
    };
    Matrix { rows, cols, format, bytes }
}

/// Groups of a row: scale, perhaps offset, then codes of any value; the last group may be shorter.
fn random_row(dice: &mut Dice, format: Groups, cols: usize, scale: f32) -> Vec<u8> {
    let (mut row, mut left) = (Vec::new(), cols);
    while left > 0 {
        let n = format.group(cols).min(left);
        if !format.bits.is_integer() {
            row.extend(random_floats(dice, format, n, scale));
            left -= n;
            continue;
        }
        let mut raw: Vec<u8> = (0..format.group_bytes(n)).map(|_| dice.bits() as u8).collect();
        let top = if format.bits == GroupBits::Eight { 127.0 } else { 16.0 };
        raw[..2].copy_from_slice(&f16::from_f32(dice.unit() * scale / top).to_le_bytes());
        if format.asymmetric {
            raw[2..4].copy_from_slice(&f16::from_f32(dice.unit() * scale).to_le_bytes());
        }
        row.extend(raw);
        left -= n;
    }
    row
}

/// A scale, then codes that are finite.
fn random_floats(dice: &mut Dice, format: Groups, n: usize, scale: f32) -> Vec<u8> {
    let mut raw: Vec<u8> = (0..format.group_bytes(n)).map(|_| dice.bits() as u8).collect();
    let top = match format.bits {
        GroupBits::E4m3 => 448.0,
        GroupBits::E5m2 => 57344.0,
        GroupBits::E3m2 => 28.0,
        GroupBits::Nf4 => 1.0,
        _ => 6.0,
    };
    let d = dice.unit() * scale / top;
    let head = format.head();
    match head {
        1 => raw[0] = (d.abs().to_bits() >> 23) as u8,
        _ => raw[..4].copy_from_slice(&d.to_le_bytes()),
    }
    for code in &mut raw[head..] {
        // Bytes of FP8 that are no numbers lose their highest bit of exponent.
        if matches!(format.bits, GroupBits::E4m3) && *code & 127 == 127
            || matches!(format.bits, GroupBits::E5m2) && *code & 127 >= 0x7c
        {
            *code &= 0xbf;
        }
    }
    raw
}

/// Where a K-quant has its f16 scales, and what the largest small scale times the largest code is.
fn large(block: Block) -> (&'static [usize], f32) {
    match block {
        Block::Q2K => (&[80, 82], 45.0),
        Block::Q3K => (&[108], 128.0),
        Block::Q4K => (&[0, 2], 945.0),
        Block::Q5K => (&[0, 2], 1953.0),
        Block::Iq4Xs => (&[0], 4064.0),
        _ => (&[208], 4096.0),
    }
}

/// Scale, perhaps minimum, then codes of any value: every bit pattern of codes is valid.
fn random_block(dice: &mut Dice, block: Block, scale: f32) -> Vec<u8> {
    let mut raw: Vec<u8> = (0..block.bytes()).map(|_| dice.bits() as u8).collect();
    if block.is_large() {
        let (places, top) = large(block);
        for at in places {
            raw[*at..at + 2].copy_from_slice(&f16::from_f32(dice.unit() * scale / top).to_le_bytes());
        }
        return raw;
    }
    let top = if matches!(block, Block::Q8_0 | Block::Iq4Nl) { 127.0 } else { 16.0 };
    raw[..2].copy_from_slice(&f16::from_f32(dice.unit() * scale / top).to_le_bytes());
    if matches!(block, Block::Q4_1 | Block::Q5_1) {
        raw[2..4].copy_from_slice(&f16::from_f32(dice.unit() * scale).to_le_bytes());
    }
    raw
}
