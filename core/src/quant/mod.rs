//! Quantization codecs: pure functions between stored bytes and values, without a backend or a file in sight.
//!
//! `block` has GGUF's blocks of 32 values, `large` its blocks of 256 (the K-quants, IQ4_XS; `large_encode`
//! rounds to them), `group` the own formats (integers; `float_group` those of small floats and tables);
//! `activation` the rows that `w8a8` multiplies them with; `kv_row` cached keys and values; `small_float`
//! floats of eight, six and four bits; `plain` widens every stored type to f32. Kernels that multiply packed
//! weights must equal `decode` followed by the same multiplication.
pub mod activation;
pub mod block;
pub mod float_group;
pub mod group;
pub mod kv_row;
pub mod large;
pub mod large_encode;
pub mod plain;
pub mod small_float;

use crate::mem::{Block, Float, WeightFormat};
use crate::{Error, Result};

/// Decodes whole rows of `cols` values of any format into `out`, which has one place per value.
///
/// # Errors
/// `Error::Internal` if bytes and values do not go together.
pub fn decode_rows(format: WeightFormat, cols: usize, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    let rows = out.len().checked_div(cols).unwrap_or(0);
    if format.bytes(rows, cols) != bytes.len() || rows * cols != out.len() {
        let what = format!("{} bytes of {format} for {} values in rows of {cols}", bytes.len(), out.len());
        return Err(Error::internal(what));
    }
    match format {
        WeightFormat::Plain(dtype) => plain::to_f32(dtype.into(), bytes, out)?,
        WeightFormat::Block(format) => block::decode(format, bytes, out),
        WeightFormat::Group(format) => group::decode(format, cols, bytes, out),
        WeightFormat::W8A8 => block::decode(Block::Q8_0, bytes, out),
    }
    Ok(())
}

/// Rounds whole rows of `cols` values to any format; `out` has exactly their bytes.
pub fn encode_rows(format: WeightFormat, cols: usize, values: &[f32], out: &mut [u8]) {
    match format {
        WeightFormat::Plain(Float::F32) => each(values, out, f32::to_le_bytes),
        WeightFormat::Plain(Float::F16) => each(values, out, |v| half::f16::from_f32(v).to_le_bytes()),
        WeightFormat::Plain(Float::Bf16) => each(values, out, |v| half::bf16::from_f32(v).to_le_bytes()),
        WeightFormat::Block(format) => block::encode(format, values, out),
        WeightFormat::Group(format) => group::encode(format, cols, values, out),
        WeightFormat::W8A8 => block::encode(Block::Q8_0, values, out),
    }
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (to, v) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *to = bytes(*v);
    }
}
