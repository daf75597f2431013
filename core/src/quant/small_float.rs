//! Floats of eight and four bits.
//!
//! | type | sign, exponent, mantissa | bias | without infinities |
//! | --- | --- | --- | --- |
//! | e4m3 | 1, 4, 3 | 7 | yes: 0x7f and 0xff are NaN, the largest value is 448 |
//! | e5m2 | 1, 5, 2 | 15 | no: f16 without its last eight bits |
//! | e2m1 | 1, 2, 1 | 1 | yes, and no NaN |
//!
//! All widen to f32 exactly. Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for the first two
//! (e4m3 is what files call `F8_E4M3`, `float8_e4m3fn`); OCP Microscaling Formats (MX) 1.0 for the last.

use half::f16;

/// What the codes of e2m1 stand for.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A value of e4m3.
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), u32::from(byte & 7));
    let size = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if byte & 128 == 0 { size } else { -size }
}

/// A value of e5m2.
pub fn e5m2(byte: u8) -> f32 {
    f16::from_bits(u16::from(byte) << 8).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the formula of the specification.
    fn by_formula(byte: u8, exponent_bits: u32, bias: i32) -> f64 {
        let mantissa_bits = 7 - exponent_bits;
        let mantissa =
            f64::from(u32::from(byte) & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let exponent = (u32::from(byte) & 127) >> mantissa_bits;
        let size = match exponent {
            0 => mantissa * f64::powi(2.0, 1 - bias),
            _ => (1.0 + mantissa) * f64::powi(2.0, exponent as i32 - bias),
        };
        if byte & 128 == 0 { size } else { -size }
    }

    #[test]
    fn every_code_of_eight_bits_is_the_formulas() {
        for byte in 0..=u8::MAX {
            match byte & 127 {
                127 => assert!(e4m3(byte).is_nan()),
                _ => assert_eq!(f64::from(e4m3(byte)), by_formula(byte, 4, 7), "{byte:#x}"),
            }
            match byte & 127 {
                0x7d.. => assert!(e5m2(byte).is_nan()),
                0x7c => assert!(e5m2(byte).is_infinite() && (e5m2(byte) > 0.0) == (byte < 128)),
                _ => assert_eq!(f64::from(e5m2(byte)), by_formula(byte, 5, 15), "{byte:#x}"),
            }
        }
        assert_eq!(e4m3(0x7e), 448.0);
        assert!(e4m3(0x80).is_sign_negative() && e4m3(0x80) == 0.0);
    }

    #[test]
    fn every_code_of_four_bits_is_the_formulas() {
        for (code, value) in E2M1.iter().enumerate() {
            let (exponent, half) = (code >> 1 & 3, (code & 1) as f32 / 2.0);
            let size = if exponent == 0 { half } else { (1.0 + half) * f32::powi(2.0, exponent as i32 - 1) };
            assert_eq!(value.abs(), size, "{code}");
            assert_eq!(value.is_sign_negative(), code > 7, "{code}");
        }
    }
}
