//! Weights in file layout for the tests, and what they stand for.

use crate::machine::{Dice, Type};
use engraft_core::mem::{Block, GroupBits, Groups};
use engraft_core::quant;
use engraft_kernels::params::Format;
use half::f16;

/// A weight as a file holds it, and its values.
pub struct Weight {
    pub format: Format,
    pub group: usize,
    pub n: usize,
    pub k: usize,
    pub file: Vec<u8>,
    pub values: Vec<f64>,
}

/// `(bits of a code, an offset, GGUF's order of nibbles)`.
fn about(format: Format) -> (u32, bool, bool) {
    match format {
        Format::Q8_0 | Format::Int8 => (8, false, false),
        Format::Int8a => (8, true, false),
        Format::Q4_0 => (4, false, true),
        Format::Q4_1 => (4, true, true),
        Format::Q5_0 => (5, false, true),
        Format::Q5_1 => (5, true, true),
        Format::Int4 => (4, false, false),
        Format::Int4a => (4, true, false),
        _ => (16, false, false),
    }
}

/// Values that rows are multiples of.
pub fn whole(format: Format) -> usize {
    match format {
        Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 32,
        Format::Q4K | Format::Q5K | Format::Q6K => 256,
        _ => 1,
    }
}

/// Random codes and scales; `group` 0 is a row.
pub fn random(format: Format, group: usize, n: usize, k: usize, dice: &mut Dice) -> Weight {
    match format {
        Format::Q4K => return large(format, Block::Q4K, n, k, dice),
        Format::Q5K => return large(format, Block::Q5K, n, k, dice),
        Format::Q6K => return large(format, Block::Q6K, n, k, dice),
        Format::Fp8 => return floats(format, (GroupBits::E4m3, group), n, k, dice),
        Format::Fp4 => return floats(format, (GroupBits::E2m1, group), n, k, dice),
        Format::Mxfp4 => return floats(format, (GroupBits::Mx, group), n, k, dice),
        _ => {}
    }
    let mut w = Weight { format, group, n, k, file: Vec::new(), values: Vec::new() };
    let (bits, offset, split) = about(format);
    if bits == 16 {
        let ty = if format == Format::F16 { Type::F16 } else { Type::Bf16 };
        let values: Vec<f32> = (0..n * k).map(|_| ty.round(dice.unit())).collect();
        w.file = ty.write(&values);
        w.values = values.iter().map(|v| f64::from(*v)).collect();
        return w;
    }
    let size = match format {
        _ if whole(format) == 32 => 32,
        _ if group == 0 => k,
        _ => group,
    };
    for _ in 0..n {
        for first in (0..k).step_by(size) {
            random_group(&mut w, size.min(k - first), bits, offset, split, dice);
        }
    }
    w
}

/// K-quants: all bytes are random but for the f16 scales.
fn large(format: Format, of: Block, n: usize, k: usize, dice: &mut Dice) -> Weight {
    let mut file: Vec<u8> = (0..n * k / of.values() * of.bytes()).map(|_| dice.bits() as u8).collect();
    for raw in file.chunks_mut(of.bytes()) {
        let at = if of == Block::Q6K { [208, 208] } else { [2, 0] };
        for (at, size) in at.into_iter().zip([64.0, 512.0]) {
            raw[at..at + 2].copy_from_slice(&f16::from_f32(dice.unit() / size).to_le_bytes());
        }
    }
    let mut values = vec![0.0; n * k];
    quant::block::decode(of, &file, &mut values);
    Weight { format, group: 0, n, k, file, values: values.into_iter().map(f64::from).collect() }
}

/// Small floats: all codes but e4m3's NaN, scales of 24 significant bits, or powers of two.
fn floats(format: Format, (bits, group): (GroupBits, usize), n: usize, k: usize, dice: &mut Dice) -> Weight {
    let groups = Groups::floats(bits, group as u32);
    let mut file = Vec::new();
    for (_, first) in (0..n).flat_map(|row| (0..k).step_by(groups.group(k)).map(move |at| (row, at))) {
        match format {
            Format::Mxfp4 => {
                file.push(if dice.bits().is_multiple_of(9) { 0 } else { 116 + (dice.bits() % 12) as u8 })
            }
            Format::Fp8 => file.extend((dice.unit() / 300.0).to_le_bytes()),
            _ => file.extend(dice.unit().to_le_bytes()),
        }
        let values = groups.group(k).min(k - first);
        for i in 0..if format == Format::Fp8 { values } else { values.div_ceil(2) } {
            let code = dice.bits() as u8;
            // Nibbles beyond a row's end are zero.
            let last = format != Format::Fp8 && 2 * i + 1 == values;
            file.push(if last {
                code & 15
            } else {
                code & if code & 127 == 127 && format == Format::Fp8 { 0xfe } else { 0xff }
            });
        }
    }
    let mut values = vec![0.0; n * k];
    quant::group::decode(groups, k, &file, &mut values);
    Weight { format, group, n, k, file, values: values.into_iter().map(f64::from).collect() }
}

fn random_group(w: &mut Weight, values: usize, bits: u32, offset: bool, split: bool, dice: &mut Dice) {
    let d = f16::from_f32(dice.unit() / 8.0);
    let m = f16::from_f32(dice.unit());
    w.file.extend(d.to_le_bytes());
    if offset {
        w.file.extend(m.to_le_bytes());
    }
    let codes: Vec<u8> = (0..values).map(|_| dice.bits() as u8 & ((1u32 << bits) - 1) as u8).collect();
    match (bits, split) {
        (8, _) => w.file.extend(&codes),
        (_, true) => {
            if bits == 5 {
                let fifths = codes.iter().rev().fold(0u32, |all, code| all << 1 | u32::from(code >> 4));
                w.file.extend(fifths.to_le_bytes());
            }
            w.file.extend((0..16).map(|j| codes[j] & 15 | codes[j + 16] << 4));
        }
        _ => w.file.extend(codes.chunks(2).map(|c| c[0] | c.get(1).unwrap_or(&0) << 4)),
    }
    for code in codes {
        let q = match (bits, offset) {
            (8, _) => f64::from(code as i8),
            (_, false) => f64::from(code) - f64::from(1 << (bits - 1)),
            (_, true) => f64::from(code),
        };
        let value = d.to_f64() * q + if offset { m.to_f64() } else { 0.0 };
        // Rounded once, as the contract says.
        w.values.push(f64::from(value as f32));
    }
}
