//! The element types of matrix operands and of accumulators.

use crate::number::half;
use crate::number::packed::Fp8;

/// Type of the elements of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.tf32`: a 32-bit register whose low 13 bits do not count.
    Tf32,
    /// `.e4m3`
    E4m3,
    /// `.e5m2`
    E5m2,
    /// `.s8`
    S8,
    /// `.u8`
    U8,
    /// `.s4`
    S4,
    /// `.u4`
    U4,
    /// `.b1`
    B1,
    /// `.f64`, in 64-bit registers.
    F64,
}

impl Element {
    /// Reads a PTX type name without its dot.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s4" => Self::S4,
            "u4" => Self::U4,
            "b1" => Self::B1,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Width in bits (tf32 counts 32: that is the room it takes).
    pub const fn bits(self) -> usize {
        match self {
            Self::F64 => 64,
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::S4 | Self::U4 => 4,
            Self::B1 => 1,
        }
    }

    /// Elements in one register of 32 bits (one in a 64-bit register of f64).
    pub const fn per_register(self) -> usize {
        if matches!(self, Self::F64) { 1 } else { 32 / self.bits() }
    }

    /// Whether products are integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S4 | Self::U4 | Self::B1)
    }

    /// Whether two element types may meet in one instruction.
    pub fn mixes_with(self, other: Self) -> bool {
        self == other
            || matches!((self, other), (Self::S8 | Self::U8, Self::S8 | Self::U8))
            || matches!((self, other), (Self::S4 | Self::U4, Self::S4 | Self::U4))
            || matches!((self, other), (Self::E4m3 | Self::E5m2, Self::E4m3 | Self::E5m2))
    }

    /// Least exponent of a normal number; products of zeros and subnormals are aligned as if they had it.
    pub const fn least_exponent(self) -> i32 {
        match self {
            Self::F16 | Self::E5m2 => -14,
            Self::E4m3 => -6,
            _ => -126,
        }
    }

    /// Value of element `index` of a 32-bit register; integers are exact in f32.
    #[inline(always)]
    pub fn value(self, register: u32, index: usize) -> f32 {
        let bits = register >> ((index * self.bits().min(32)) % 32);
        match self {
            Self::F16 => half::f32_from_f16(bits as u16),
            Self::Bf16 => half::f32_from_bf16(bits as u16),
            Self::Tf32 | Self::F64 => half::f32_from_tf32(bits),
            Self::E4m3 => Fp8::E4m3.to_f32(bits as u8),
            Self::E5m2 => half::f32_from_f16((bits as u16 & 0xff) << 8),
            Self::S8 => f32::from(bits as i8),
            Self::U8 => f32::from(bits as u8),
            Self::S4 => f32::from((bits as i8) << 4 >> 4),
            Self::U4 => f32::from(bits as u8 & 15),
            Self::B1 => f32::from(bits as u8 & 1),
        }
    }

    /// Values of elements in memory order (little-endian, lowest bits first). `codes` is E4M3's table of 256
    /// values.
    ///
    /// A register over the lanes of a warp, read as memory, is a matrix by rows: see [`super::mma`].
    #[inline(always)]
    pub(crate) fn widen(self, bytes: &[u8], codes: &[f32; 256], out: &mut [f32]) {
        // One loop per type, each straight-line code that the compiler can vectorise.
        macro_rules! words {
            ($width:literal, $word:ty, $value:expr) => {
                for (out, word) in out.iter_mut().zip(bytes.chunks_exact($width)) {
                    let mut all = [0; $width];
                    all.copy_from_slice(word);
                    *out = $value(<$word>::from_le_bytes(all));
                }
            };
        }
        match self {
            Self::F16 => words!(2, u16, half::f32_from_f16),
            Self::Bf16 => words!(2, u16, half::f32_from_bf16),
            Self::Tf32 | Self::F64 => words!(4, u32, half::f32_from_tf32),
            Self::E5m2 => words!(1, u8, |code: u8| half::f32_from_f16(u16::from(code) << 8)),
            Self::E4m3 => words!(1, u8, |code: u8| codes[usize::from(code)]),
            Self::S8 => words!(1, i8, f32::from),
            Self::U8 => words!(1, u8, f32::from),
            Self::B1 => {
                for (out, &byte) in out.chunks_exact_mut(8).zip(bytes) {
                    out.iter_mut().enumerate().for_each(|(i, out)| *out = self.value(byte.into(), i));
                }
            }
            Self::S4 | Self::U4 => {
                for (out, &byte) in out.chunks_exact_mut(2).zip(bytes) {
                    out[0] = self.value(byte.into(), 0);
                    out[1] = self.value(byte.into(), 1);
                }
            }
        }
    }
}

/// The table [`Element::widen`] wants: values of all E4M3 codes. Built once; it depends on nothing.
pub(crate) fn e4m3_codes() -> &'static [f32; 256] {
    static CODES: std::sync::LazyLock<[f32; 256]> = std::sync::LazyLock::new(|| Fp8::E4m3.table());
    &CODES
}

/// Type of the elements of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// `.f32`
    F32,
    /// `.f16`, two to a register.
    F16,
    /// `.s32`
    S32,
    /// `.f64`, in 64-bit registers.
    F64,
}

impl Accumulator {
    /// Reads a PTX type name without its dot.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "f32" => Self::F32,
            "f16" => Self::F16,
            "s32" => Self::S32,
            "f64" => Self::F64,
            _ => return None,
        })
    }
}
