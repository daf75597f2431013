//! Floats of eight, six and four bits, and the tables of NF4 and IQ4.
//!
//! | type | sign, exponent, mantissa | bias | without infinities |
//! | --- | --- | --- | --- |
//! | e4m3 | 1, 4, 3 | 7 | yes: 0x7f and 0xff are NaN, the largest value is 448 |
//! | e5m2 | 1, 5, 2 | 15 | no: f16 without its last eight bits |
//! | e3m2 | 1, 3, 2 | 3 | yes, and no NaN; the largest value is 28 |
//! | e2m1 | 1, 2, 1 | 1 | yes, and no NaN; the largest value is 6 |
//!
//! All widen to f32 exactly. What is rounded to them goes to the nearest value, of two to the one with an
//! even code, and beyond the largest value to that. Sources: OCP 8-bit Floating Point Specification (OFP8)
//! 1.0 for the first two (e4m3 is what files call `F8_E4M3`, `float8_e4m3fn`); OCP Microscaling Formats (MX)
//! 1.0 for e3m2, e2m1 and scales of e8m0. NF4: Dettmers et al. 2023 (QLoRA), appendix E.

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

/// A value of e3m2, of the lower six bits.
pub fn e3m2(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 2 & 7), u32::from(code & 3));
    let size = match exponent {
        0 => mantissa as f32 / 16.0,
        _ => f32::from_bits((exponent + 124) << 23 | mantissa << 21),
    };
    if code & 32 == 0 { size } else { -size }
}

/// A value of e8m0, 2^(byte - 127), a scale; 255 is NaN.
pub fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}

/// What the codes of NF4 stand for.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What the codes of IQ4_NL and IQ4_XS stand for (`kvalues_iq4nl` in ggml).
pub const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// The f16 nearest to a value; NaN becomes zero and what is too large the largest finite value.
pub fn finite_f16(v: f32) -> f16 {
    let limit = f16::MAX.to_f32();
    if v.is_nan() { f16::ZERO } else { f16::from_f32(v.clamp(-limit, limit)) }
}

/// The code of e4m3 nearest to a value; NaN gives 0x7f.
pub fn to_e4m3(v: f32) -> u8 {
    if v.is_nan() { 0x7f } else { sign(v, 7) | nearest(v, 3, 7, 0x7e) }
}

/// The code of e5m2 nearest to a value, never an infinity; NaN gives 0x7e.
pub fn to_e5m2(v: f32) -> u8 {
    if v.is_nan() { 0x7e } else { sign(v, 7) | nearest(v, 2, 15, 0x7b) }
}

/// The code of e3m2 nearest to a value; NaN gives 0.
pub fn to_e3m2(v: f32) -> u8 {
    if v.is_nan() { 0 } else { sign(v, 5) | nearest(v, 2, 3, 0x1f) }
}

/// The code of e2m1 nearest to a value; NaN gives 0.
pub fn to_e2m1(v: f32) -> u8 {
    if v.is_nan() { 0 } else { sign(v, 3) | nearest(v, 1, 1, 7) }
}

/// The code of NF4 nearest to a value, of two the lower one; NaN gives 7, which is 0.
pub fn to_nf4(v: f32) -> u8 {
    let beyond = |pair: &[f32]| f64::from(v) > (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
    if v.is_nan() { 7 } else { NF4.windows(2).filter(|pair| beyond(pair)).count() as u8 }
}

fn sign(v: f32, bit: u32) -> u8 {
    u8::from(v.is_sign_negative()) << bit
}

/// The code of `|v|` in a float of so many bits of mantissa, at most `top`.
fn nearest(v: f32, mantissa: i32, bias: i32, top: u8) -> u8 {
    let size = f64::from(v.abs());
    // Subnormals of f32 are below half of every least code.
    let exponent = (((v.to_bits() >> 23 & 255) as i32) - 127).max(1 - bias);
    let of_step = f64::from_bits(((1023 + mantissa - exponent) as u64) << 52);
    let code = libm::rint(size * of_step) + f64::from((exponent + bias - 1) << mantissa);
    code.min(f64::from(top)) as u8
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

    #[test]
    fn every_code_of_six_bits_is_the_formulas_and_scales_are_powers() {
        for code in 0..64u8 {
            let (exponent, mantissa) = (i32::from(code >> 2 & 7), f64::from(code & 3) / 4.0);
            let size = match exponent {
                0 => mantissa * f64::powi(2.0, -2),
                _ => (1.0 + mantissa) * f64::powi(2.0, exponent - 3),
            };
            assert_eq!(f64::from(e3m2(code)), if code < 32 { size } else { -size }, "{code}");
        }
        assert_eq!(e3m2(31), 28.0);
        for byte in 0..255u8 {
            assert_eq!(f64::from(e8m0(byte)), f64::powi(2.0, i32::from(byte) - 127));
        }
        assert!(e8m0(255).is_nan());
    }

    /// DeepSpeed's ranges of FP8 are 480 and 114688: these are those of OCP.
    #[test]
    fn ranges_are_those_of_ocp() {
        for v in [448.0, 449.0, 480.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((e4m3(to_e4m3(v)), e4m3(to_e4m3(-v))), (448.0, -448.0));
            assert_eq!((e3m2(to_e3m2(v)), E2M1[usize::from(to_e2m1(-v))]), (28.0, -6.0));
        }
        for v in [57344.0, 61440.0, 114_688.0, f32::INFINITY] {
            assert_eq!((e5m2(to_e5m2(v)), e5m2(to_e5m2(-v))), (57344.0, -57344.0));
        }
        assert!(e4m3(to_e4m3(f32::NAN)).is_nan() && e5m2(to_e5m2(f32::NAN)).is_nan());
        assert_eq!((to_e3m2(f32::NAN), to_e2m1(f32::NAN), to_nf4(f32::NAN)), (0, 0, 7));
    }

    /// Every finite code comes back; halfway goes to the even code, what is next to it to the nearer one.
    #[test]
    fn rounding_is_to_nearest_even_at_every_boundary() {
        type Float = (fn(u8) -> f32, fn(f32) -> u8, u8, u8);
        let e2m1: fn(u8) -> f32 = |code| E2M1[usize::from(code)];
        let floats: [Float; 4] = [
            (e4m3, to_e4m3, 0x7e, 0x80),
            (e5m2, to_e5m2, 0x7b, 0x80),
            (e3m2, to_e3m2, 0x1f, 0x20),
            (e2m1, to_e2m1, 7, 8),
        ];
        for (from, to, top, sign) in floats {
            for code in 0..=top {
                assert_eq!((to(from(code)), to(-from(code))), (code, code | sign));
                if code == top {
                    continue;
                }
                // Exact: neighbours share all but a few bits.
                let half = (from(code) + from(code + 1)) / 2.0;
                assert_eq!(to(half), code + code % 2, "{code}");
                assert_eq!((to(half.next_down()), to(half.next_up())), (code, code + 1), "{code}");
                assert_eq!(to(-half.next_up()), (code + 1) | sign);
            }
            assert_eq!((to(0.0), to(-0.0), to(f32::from_bits(1))), (0, sign, 0));
        }
    }

    #[test]
    fn codes_of_nf4_are_the_nearest() {
        for (code, value) in NF4.iter().enumerate() {
            assert_eq!(usize::from(to_nf4(*value)), code);
        }
        for i in -1200..1200 {
            let v = i as f32 / 1000.0;
            let error = |value: f32| (value - v).abs();
            let least = NF4.iter().map(|value| error(*value)).fold(f32::INFINITY, f32::min);
            assert!(error(NF4[usize::from(to_nf4(v))]) <= least + 1e-7, "{v}");
        }
    }
}
