//! Every shape against a plain matmul in f64, with fragments filled by the formulas of the PTX manual,
//! written out here shape by shape and not derived from the module's one rule.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bits;
mod mma;
mod pipeline;
pub mod ptx;
mod ptx_wgmma;
mod tile;
mod wgmma;

use crate::number::{BF16, E4M3, E5M2, F16, Format, Overflow, Rounding};

use super::element::{Accumulator, Element};

/// A generator of test data.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number near one with a full fraction.
    pub fn real(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// A matrix of small integers that every element type holds exactly.
    pub fn integers(&mut self, kind: Element, rows: usize, columns: usize) -> Vec<Vec<f64>> {
        let (low, count) = match kind {
            Element::U8 => (0, 256),
            Element::U4 => (0, 16),
            Element::S8 => (-128, 256),
            Element::S4 => (-8, 16),
            _ => (-8, 17),
        };
        (0..rows).map(|_| (0..columns).map(|_| (low + self.below(count) as i64) as f64).collect()).collect()
    }

    /// A matrix of numbers that use all bits of the element type.
    pub fn reals(&mut self, kind: Element, rows: usize, columns: usize) -> Vec<Vec<f64>> {
        let mut one = || decode(kind, encode(kind, self.real()));
        (0..rows).map(|_| (0..columns).map(|_| one()).collect()).collect()
    }
}

fn format(kind: Element) -> Option<Format> {
    Some(match kind {
        Element::F16 => F16,
        Element::Bf16 => BF16,
        Element::E4m3 => E4M3,
        Element::E5m2 => E5M2,
        Element::Tf32 => crate::number::TF32,
        _ => return None,
    })
}

/// The code of a value; tf32 gets junk in the bits that do not count.
pub fn encode(kind: Element, value: f64) -> u64 {
    match (kind, format(kind)) {
        (Element::Tf32, Some(format)) => {
            format.from_f64(value, Rounding::Even, Overflow::Infinity) << 13 | 0x155
        }
        (_, Some(format)) => format.from_f64(value, Rounding::Even, Overflow::Infinity),
        (Element::F64, _) => value.to_bits(),
        _ => value as i64 as u64 & ((1 << kind.bits()) - 1),
    }
}

pub fn decode(kind: Element, code: u64) -> f64 {
    match (kind, format(kind)) {
        (Element::Tf32, Some(format)) => format.to_f64(code >> 13),
        (_, Some(format)) => format.to_f64(code),
        (Element::F64, _) => f64::from_bits(code),
        (Element::S8, _) => f64::from(code as i8),
        (Element::S4, _) => f64::from((code as i8) << 4 >> 4),
        _ => code as f64,
    }
}

/// The code of an accumulator element.
pub fn encode_sum(kind: Accumulator, value: f64) -> u64 {
    match kind {
        Accumulator::F32 => u64::from((value as f32).to_bits()),
        Accumulator::F16 => F16.from_f64(value, Rounding::Even, Overflow::Infinity),
        Accumulator::S32 => u64::from(value as i64 as i32 as u32),
        Accumulator::F64 => value.to_bits(),
    }
}

pub fn decode_sum(kind: Accumulator, code: u64) -> f64 {
    match kind {
        Accumulator::F32 => f64::from(f32::from_bits(code as u32)),
        Accumulator::F16 => F16.to_f64(code),
        Accumulator::S32 => f64::from(code as u32 as i32),
        Accumulator::F64 => f64::from_bits(code),
    }
}

/// The plain matmul, `a[m][k] b[k][n] + c[m][n]`.
pub fn matmul(a: &[Vec<f64>], b: &[Vec<f64>], c: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut d = c.to_vec();
    for (d, a) in d.iter_mut().zip(a) {
        for (a, b) in a.iter().zip(b) {
            for (d, b) in d.iter_mut().zip(b) {
                *d += a * b;
            }
        }
    }
    d
}

/// The stated model, element by element: f32 from the accumulator on, ascending k.
pub fn chain(a: &[Vec<f64>], b: &[Vec<f64>], c: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut d = c.to_vec();
    for (m, row) in d.iter_mut().enumerate() {
        for (n, d) in row.iter_mut().enumerate() {
            let mut sum = *d as f32;
            for (k, b) in b.iter().enumerate() {
                sum += (a[m][k] as f32) * (b[n] as f32);
            }
            *d = f64::from(sum);
        }
    }
    d
}
