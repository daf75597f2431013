//! Stored elements of any type to f32, from bytes without alignment.

use super::{block, group, small_float};
use crate::{Error, Result, mem::Stored};
use half::{bf16, f16};

/// Widens (or, from f64 and wide integers, rounds once) `bytes` into `out`, which has one place per element.
///
/// # Errors
/// `Error::Internal` if the bytes are not exactly as many as `out` needs.
pub fn to_f32(stored: Stored, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if stored.bytes(out.len()) != Some(bytes.len()) {
        return Err(Error::internal(format!("{} bytes of {stored} for {} values", bytes.len(), out.len())));
    }
    match stored {
        Stored::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        Stored::F32 => each(bytes, out, f32::from_le_bytes),
        Stored::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Stored::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Stored::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        Stored::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        Stored::I16 => each(bytes, out, |b| i16::from_le_bytes(b).into()),
        Stored::I8 => each(bytes, out, |b| i8::from_le_bytes(b).into()),
        Stored::U8 => each(bytes, out, |[b]: [u8; 1]| b.into()),
        Stored::Bool => each(bytes, out, |[b]: [u8; 1]| if b == 0 { 0.0 } else { 1.0 }),
        Stored::F8E4m3 => each(bytes, out, |[b]: [u8; 1]| small_float::e4m3(b)),
        Stored::F8E5m2 => each(bytes, out, |[b]: [u8; 1]| small_float::e5m2(b)),
        Stored::Block(format) => block::decode(format, bytes, out),
        Stored::Group(format, cols) => group::decode(format, cols as usize, bytes, out),
    }
    Ok(())
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    for (value, raw) in out.iter_mut().zip(chunks) {
        *value = read(*raw);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    fn one(stored: Stored, bytes: &[u8]) -> f32 {
        // One byte off, so that nothing is aligned.
        let shifted = [&[0], bytes].concat();
        let mut out = [0.0];
        to_f32(stored, &shifted[1..], &mut out).unwrap();
        out[0]
    }

    #[test]
    fn every_type_is_widened() {
        assert_eq!(one(Stored::F64, &(-1.5f64).to_le_bytes()), -1.5);
        assert_eq!(one(Stored::F32, &0.1f32.to_le_bytes()), 0.1);
        assert_eq!(one(Stored::F16, &f16::from_f32(-0.25).to_le_bytes()), -0.25);
        assert_eq!(one(Stored::Bf16, &bf16::from_f32(3.0).to_le_bytes()), 3.0);
        assert_eq!(one(Stored::I64, &(-7i64).to_le_bytes()), -7.0);
        assert_eq!(one(Stored::I32, &(1i32 << 20).to_le_bytes()), 1048576.0);
        assert_eq!(one(Stored::I16, &(-300i16).to_le_bytes()), -300.0);
        assert_eq!(one(Stored::I8, &[0x80]), -128.0);
        assert_eq!(one(Stored::U8, &[0x80]), 128.0);
        assert_eq!(one(Stored::Bool, &[1]), 1.0);
        assert_eq!(one(Stored::F8E4m3, &[0x38]), 1.0);
        assert_eq!(one(Stored::F8E5m2, &[0xbc]), -1.0);
    }

    #[test]
    fn every_f16_and_bf16_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let wide = one(Stored::F16, &bits.to_le_bytes());
            assert!(wide.to_bits() == f.to_f32().to_bits() || f.is_nan() && wide.is_nan());
            let wide = one(Stored::Bf16, &bits.to_le_bytes());
            assert!(wide.to_bits() == u32::from(bits) << 16 || b.is_nan() && wide.is_nan());
        }
    }

    #[test]
    fn a_wrong_length_is_refused() {
        assert!(to_f32(Stored::F32, &[0; 7], &mut [0.0; 2]).is_err());
        assert!(to_f32(Stored::Block(crate::mem::Block::Q8_0), &[0; 34], &mut [0.0; 31]).is_err());
    }
}
