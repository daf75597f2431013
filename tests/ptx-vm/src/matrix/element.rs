//! The element types of matrix operands and of accumulators.

use crate::Row;
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
        }
    }

    /// Elements in one register of 32 bits (one in a 64-bit register of f64).
    pub const fn per_register(self) -> usize {
        if matches!(self, Self::F64) { 1 } else { 32 / self.bits() }
    }

    /// Whether products are integers.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::S8 | Self::U8 | Self::S4 | Self::U4)
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
        let bits = register >> (index * self.bits().min(32)) as u32 % 32;
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
        }
    }

    /// Values of a register over all lanes: `out[i][lane]` is element `i`. `codes` is the type's table of 256 values,
    /// used for E4M3 only.
    #[inline]
    pub(crate) fn widen(self, register: &Row, codes: &[f32; 256], out: &mut [[f32; 32]; 8]) {
        macro_rules! each {
            ($kind:expr) => {
                for (index, out) in out.iter_mut().enumerate().take($kind.per_register()) {
                    for (out, &bits) in out.iter_mut().zip(register) {
                        *out = $kind.value(bits, index);
                    }
                }
            };
        }
        // One loop per type, so that each is straight-line code the compiler can vectorise.
        match self {
            Self::F16 => each!(Self::F16),
            Self::Bf16 => each!(Self::Bf16),
            Self::Tf32 | Self::F64 => each!(Self::Tf32),
            Self::E5m2 => each!(Self::E5m2),
            Self::S8 => each!(Self::S8),
            Self::U8 => each!(Self::U8),
            Self::S4 => each!(Self::S4),
            Self::U4 => each!(Self::U4),
            Self::E4m3 => {
                for (index, out) in out.iter_mut().enumerate().take(4) {
                    for (out, &bits) in out.iter_mut().zip(register) {
                        *out = codes[usize::from((bits >> (8 * index)) as u8)];
                    }
                }
            }
        }
    }

    /// Values of a chunk of 16 bytes in memory; how many there are is `128 / bits`.
    #[inline]
    pub(crate) fn widen_chunk(self, bytes: &[u8; 16], codes: &[f32; 256], out: &mut [f32; 32]) {
        macro_rules! each {
            ($kind:expr) => {
                for (out, word) in out.chunks_exact_mut($kind.per_register()).zip(bytes.chunks_exact(4)) {
                    let register = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    for (index, out) in out.iter_mut().enumerate() {
                        *out = $kind.value(register, index);
                    }
                }
            };
        }
        match self {
            Self::F16 => each!(Self::F16),
            Self::Bf16 => each!(Self::Bf16),
            Self::Tf32 | Self::F64 => each!(Self::Tf32),
            Self::E5m2 => each!(Self::E5m2),
            Self::S8 => each!(Self::S8),
            Self::U8 => each!(Self::U8),
            Self::S4 => each!(Self::S4),
            Self::U4 => each!(Self::U4),
            Self::E4m3 => out.iter_mut().zip(bytes).for_each(|(out, &code)| *out = codes[usize::from(code)]),
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
