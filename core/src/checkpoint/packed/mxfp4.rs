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
        let blocks = codes.as_chunks::<16>().0.iter().zip(scales.iter().copied());
        blocks_of_q5_0(&self.scales.name, blocks, |byte| [2 * byte, 2 * byte + 1])
    }
}

/// Bytes of a block of MXFP4 in a GGUF file.
pub(in crate::checkpoint) const GGUF_BLOCK: usize = 17;

/// Blocks of Q5_0 with the values of GGUF's blocks of MXFP4: a scale, then codes, the second half of them in
/// the upper bits.
///
/// # Errors
/// `Tensor` for a factor that f16 does not have.
pub(in crate::checkpoint) fn of_gguf(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let blocks = bytes.as_chunks::<GGUF_BLOCK>().0.iter().map(|[scale, codes @ ..]| (codes, *scale));
    blocks_of_q5_0(name, blocks, |byte| [byte, byte + Block::VALUES / 2])
}

/// Blocks of Q5_0 with the values of codes, whose places in a block `places` says of every byte, and scales.
fn blocks_of_q5_0<'a>(
    name: &str,
    blocks: impl ExactSizeIterator<Item = (&'a [u8; 16], u8)>,
    places: impl Fn(usize) -> [usize; 2],
) -> Result<Vec<u8>> {
    let size = Block::Q5_0.bytes();
    let mut out = vec![0; blocks.len() * size];
    let whole = small_float::E2M1.map(|value| (2.0 * value) as i32);
    for ((codes, scale), out) in blocks.zip(out.chunks_exact_mut(size)) {
        let mut values = [0; Block::VALUES];
        for (i, byte) in codes.iter().enumerate() {
            let [low, high] = places(i);
            (values[low], values[high]) = (whole[usize::from(byte & 15)], whole[usize::from(byte >> 4)]);
        }
        block::write(Block::Q5_0, factor(name, scale, &values)?, &values, out);
    }
    Ok(out)
}

/// Half of a block's power of two.
fn factor(name: &str, scale: u8, values: &[i32]) -> Result<f16> {
    let exponent = i32::from(scale) - BIAS - 1;
    // Of zeros no factor matters.
    if values.iter().all(|value| *value == 0) {
        return Ok(f16::ZERO);
    }
    match exponent {
        -24..=15 => Ok(f16::from_f64(libm::exp2(f64::from(exponent)))),
        _ => {
            let what = format!("a scale of 2^{}; allowed: 2^-23 to 2^16", exponent + 1);
            Err(Error::tensor(name, what))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tests::File;
    use super::*;
    use crate::mem::WeightFormat;
    use crate::quant::decode_rows;
    use safetensors::tensor::Dtype;
    use serde_json::{Value, json};

    const SHAPE: [usize; 4] = [2, 3, 2, 16];

    /// Every code with every neighbour, and powers of two around one.
    fn file(scale: impl Fn(usize) -> u8) -> File {
        let codes = (0..192).map(|i| (i * 37 + i / 16) as u8).collect();
        let scales = (0..12).map(scale).collect();
        File::default().with("e.up_blocks", Dtype::U8, &SHAPE, codes).with(
            "e.up_scales",
            Dtype::U8,
            &SHAPE[..3],
            scales,
        )
    }

    fn said() -> Value {
        json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    }

    #[test]
    fn values_are_those_of_the_format() {
        let (scale, file) = (|i: usize| 127 - 6 + i as u8, file(|i| 127 - 6 + i as u8));
        let source = file.open(said()).unwrap();
        let info = source.find("e.up.weight").unwrap();
        assert_eq!((&info.shape[..], info.stored), (&[2, 3, 64][..], Stored::Block(Block::Q5_0)));
        let (mut got, bytes) = (vec![0.0; 384], source.bytes("e.up.weight").unwrap());
        decode_rows(WeightFormat::Block(Block::Q5_0), 64, &bytes, &mut got).unwrap();
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (i, got) in got.iter().enumerate() {
            let byte = (i / 2 * 37 + i / 2 / 16) as u8;
            let code = usize::from(if i % 2 == 0 { byte & 15 } else { byte >> 4 });
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let want = sign * magnitudes[code % 8] * 2f64.powi(i32::from(scale(i / 32)) - 127);
            assert_eq!(f64::from(*got), want, "{i}");
        }
        assert!(source.notes()[0].contains("1 matrices of 4-bit floats of all experts (mxfp4)"));
    }

    #[test]
    fn blocks_of_gguf_have_their_second_half_above() {
        let codes: [u8; 32] = std::array::from_fn(|i| (i * 7 % 16) as u8);
        let pairs: [u8; 16] = std::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4);
        let halves: [u8; 16] = std::array::from_fn(|i| codes[i] | codes[i + 16] << 4);
        for scale in [120, 127, 131] {
            let block: Vec<u8> = std::iter::once(scale).chain(halves).collect();
            let want = blocks_of_q5_0("w", std::iter::once((&pairs, scale)), |i| [2 * i, 2 * i + 1]);
            assert_eq!(of_gguf("w", &block).unwrap(), want.unwrap(), "scale {scale}");
        }
        let error = of_gguf("blk.0.ffn_up_exps.weight", &[255; 17]).unwrap_err().to_string();
        assert!(error.contains("blk.0.ffn_up_exps.weight") && error.contains("2^128"), "{error}");
    }

    #[test]
    fn what_f16_cannot_scale_and_other_shapes_are_refused() {
        // The least and the largest factor.
        for exponent in [127 - 23, 127 + 16] {
            let source = file(|_| exponent).open(said()).unwrap();
            source.bytes("e.up.weight").unwrap();
        }
        for exponent in [127 - 24, 127 + 17, 0, 255] {
            let source = file(|_| exponent).open(said()).unwrap();
            let error = source.bytes("e.up.weight").unwrap_err().to_string();
            assert!(error.contains("e.up_scales") && error.contains("allowed: 2^-23 to 2^16"), "{error}");
        }
        let zeros = file(|_| 0).with("e.up_blocks", Dtype::U8, &SHAPE, vec![0x80; 192]);
        let source = zeros.open(said()).unwrap();
        assert!(source.bytes("e.up.weight").unwrap().chunks(22).all(|block| block[..2] == [0, 0]));
        let whole = || file(|_| 127);
        for (file, name, what) in [
            (whole().without("e.up_scales"), "e.up_scales", "is missing"),
            (whole().with("e.up_scales", Dtype::U8, &[12], vec![0; 12]), "e.up_scales", "shape [12]"),
            (whole().with("e.up_scales", Dtype::I8, &SHAPE[..3], vec![0; 12]), "e.up_scales", "type i8"),
            (whole().with("e.up_blocks", Dtype::U8, &[192], vec![0; 192]), "e.up_blocks", "shape [192]"),
        ] {
            let error = file.error(said());
            assert!(error.contains(name) && error.contains(what), "{error}");
        }
    }
}
