//! Weights in file layout for the tests, and what they stand for.

use crate::machine::{Dice, Type};
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

/// Random codes and scales; `group` 0 is a row.
pub fn random(format: Format, group: usize, n: usize, k: usize, dice: &mut Dice) -> Weight {
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
        Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 32,
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
