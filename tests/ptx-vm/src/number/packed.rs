//! Conversions between packed types: two f32 to `f16x2`/`bf16x2`, fp8 pairs to and from f32 and `f16x2`.
//!
//! Order in a register, as PTX defines it: of `cvt.d.f32 d, a, b` the result of `a` is in the **upper** half
//! of `d`.

use super::format::{E4M3, E5M2, F16, F32, Format, Overflow, Rounding};
use super::half::{self, NAN16};

/// The two OCP 8-bit formats of Ada and Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// `.e4m3`: 4 exponent bits, no infinity.
    E4m3,
    /// `.e5m2`: the upper byte of an f16.
    E5m2,
}

impl Fp8 {
    /// Reads `e4m3`, `e5m2` or their packed names.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "e4m3" | "e4m3x2" => Some(Self::E4m3),
            "e5m2" | "e5m2x2" => Some(Self::E5m2),
            _ => None,
        }
    }

    /// The format's description.
    pub const fn format(self) -> Format {
        match self {
            Self::E4m3 => E4M3,
            Self::E5m2 => E5M2,
        }
    }

    /// Exact value as f16 bits; NaN becomes canonical.
    pub fn to_f16(self, bits: u8) -> u16 {
        let format = self.format();
        F16.pack(format.unpack(u64::from(bits)), Rounding::Even, Overflow::Infinity) as u16
    }

    /// Exact value as f32.
    pub fn to_f32(self, bits: u8) -> f32 {
        half::f32_from_f16(self.to_f16(bits))
    }

    /// `cvt.rn.satfinite`: to nearest even, overflow and infinities to the largest number, NaN to `0x7f`.
    pub fn from_f32(self, value: f32) -> u8 {
        let unpacked = F32.unpack(u64::from(value.to_bits()));
        self.format().pack(unpacked, Rounding::Even, Overflow::Finite) as u8
    }

    /// `cvt.rn.satfinite` from f16 bits.
    pub fn from_f16(self, bits: u16) -> u8 {
        self.format().pack(F16.unpack(u64::from(bits)), Rounding::Even, Overflow::Finite) as u8
    }

    /// Values of all 256 codes, for inner loops.
    pub fn table(self) -> [f32; 256] {
        std::array::from_fn(|code| self.to_f32(code as u8))
    }

    fn relu(self, bits: u8, on: bool) -> u8 {
        if on && bits & 0x80 != 0 && !self.format().is_nan(u64::from(bits)) { 0 } else { bits }
    }
}

/// `cvt.rn.satfinite{.relu}.e4m3x2/e5m2x2.f32 d, a, b`.
pub fn fp8x2_from_f32(kind: Fp8, a: f32, b: f32, relu: bool) -> u16 {
    let [a, b] = [a, b].map(|x| kind.relu(kind.from_f32(x), relu));
    u16::from_le_bytes([b, a])
}

/// `cvt.rn.satfinite{.relu}.e4m3x2/e5m2x2.f16x2 d, a`.
pub fn fp8x2_from_f16x2(kind: Fp8, a: u32, relu: bool) -> u16 {
    let [low, high] = [a as u16, (a >> 16) as u16].map(|x| kind.relu(kind.from_f16(x), relu));
    u16::from_le_bytes([low, high])
}

/// `cvt.rn{.relu}.f16x2.e4m3x2/e5m2x2 d, a`.
pub fn f16x2_from_fp8x2(kind: Fp8, a: u16, relu: bool) -> u32 {
    let [low, high] = a.to_le_bytes().map(|x| {
        let bits = kind.to_f16(x);
        if relu { half::relu::<half::Binary16>(bits) } else { bits }
    });
    u32::from(low) | u32::from(high) << 16
}

/// `cvt{.rn,.rz}{.relu}{.satfinite}.f16x2/bf16x2.f32 d, a, b`.
pub fn half2_from_f32(
    format: Format,
    a: f32,
    b: f32,
    rounding: Rounding,
    overflow: Overflow,
    relu: bool,
) -> u32 {
    let [a, b] = [a, b].map(|x| {
        let bits = format.pack(F32.unpack(u64::from(x.to_bits())), rounding, overflow) as u16;
        if relu && bits & 0x8000 != 0 && bits & 0x7fff != NAN16 { 0 } else { bits }
    });
    u32::from(b) | u32::from(a) << 16
}

/// `cvt.rn.f16x2.f32 d, a, b` on the fast road.
#[inline(always)]
pub fn f16x2_from_f32(a: f32, b: f32) -> u32 {
    u32::from(half::f16_from_f32(b)) | u32::from(half::f16_from_f32(a)) << 16
}

/// `cvt.rn.bf16x2.f32 d, a, b` on the fast road.
#[inline(always)]
pub fn bf16x2_from_f32(a: f32, b: f32) -> u32 {
    u32::from(half::bf16_from_f32(b)) | u32::from(half::bf16_from_f32(a)) << 16
}
