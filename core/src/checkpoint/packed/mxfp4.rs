//! MXFP4 (OCP Microscaling Formats 1.0): 4-bit floats in blocks of 32 inputs that share a power of two, of
//! all experts in one tensor.
//!
//! A value is one of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with a sign: twice that is a whole number up to 12, so that a
//! block of Q5_0 with half the factor holds the same values wherever f16 has that factor.

use super::part::Part;
use crate::checkpoint::Source;
use crate::mem::{Block, Stored};
use crate::quant::{block, small_float};
use crate::{Error, Result};
use half::f16;

/// What is added to the exponent of a factor.
const BIAS: i32 = 127;

/// Matrices `[experts, rows, cols]`.
#[derive(Debug, Clone)]
pub(super) struct Mxfp4 {
    /// Experts, outputs, inputs.
    pub(super) shape: [usize; 3],
    codes: Part,
    scales: Part,
}

impl Mxfp4 {
    /// Codes `[experts, rows, blocks, 16]`, two in a byte, and scales `[experts, rows, blocks]`.
    ///
    /// # Errors
    /// `Tensor` for other element types or shapes.
    pub(super) fn new(codes: Part, scales: Part) -> Result<Self> {
        codes.is_one_of(&[Stored::U8])?;
        scales.is_one_of(&[Stored::U8])?;
        let ([experts, rows, blocks, 16], of_scales) = (&codes.shape[..], &scales.shape[..]) else {
            let what = format!("shape {:?}; [experts, rows, blocks, 16] is expected", codes.shape);
            return Err(Error::tensor(&codes.name, what));
        };
        if of_scales != [*experts, *rows, *blocks] || codes.elements == 0 {
            let what = format!("shape {of_scales:?} for codes {:?}", codes.shape);
            return Err(Error::tensor(&scales.name, what));
        }
        // The codes are there, so their number fits; twice as many inputs may not.
        let cols = blocks.checked_mul(Block::VALUES);
        let cols = cols.ok_or_else(|| Error::tensor(&codes.name, format!("{blocks} blocks of 32 inputs")))?;
        Ok(Self { shape: [*experts, *rows, cols], codes, scales })
    }

    /// The tensors that they are made of.
    pub(super) fn parts(&self) -> Vec<&Part> {
        vec![&self.codes, &self.scales]
    }

    /// Blocks of Q5_0 with the same values.
    ///
    /// # Errors
    /// `Tensor` for a factor that f16 does not have; what reading raises.
    pub(super) fn read(&self, source: &dyn Source) -> Result<Vec<u8>> {
        let (codes, scales) = (source.bytes(&self.codes.name)?, source.bytes(&self.scales.name)?);
        let size = Block::Q5_0.bytes();
        let mut out = vec![0; scales.len() * size];
        let whole = small_float::E2M1.map(|value| (2.0 * value) as i32);
        let blocks = codes.as_chunks::<16>().0.iter().zip(scales.iter()).zip(out.chunks_exact_mut(size));
        for ((codes, scale), out) in blocks {
            let mut values = [0; Block::VALUES];
            for (pair, byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *pair = [byte & 15, byte >> 4].map(|code| whole[usize::from(code)]);
            }
            block::write(Block::Q5_0, self.factor(*scale, &values)?, &values, out);
        }
        Ok(out)
    }

    /// Half of a block's power of two.
    fn factor(&self, scale: u8, values: &[i32]) -> Result<f16> {
        let exponent = i32::from(scale) - BIAS - 1;
        // Of zeros no factor matters.
        if values.iter().all(|value| *value == 0) {
            return Ok(f16::ZERO);
        }
        match exponent {
            -24..=15 => Ok(f16::from_f64(libm::exp2(f64::from(exponent)))),
            _ => {
                let what = format!("a scale of 2^{}; allowed: 2^-23 to 2^16", exponent + 1);
                Err(Error::tensor(&self.scales.name, what))
            }
        }
    }
}
