//! What the kernels on tensor cores multiply from, and which formats become that.

use crate::params::Format;

/// Outputs of a tile.
pub const TILE: usize = 16;
/// Values along k of a unit.
pub const UNIT: usize = 64;
/// Values along k of a half.
pub(super) const HALF: usize = 32;

/// What the kernels multiply from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 16-bit elements.
    Plain,
    /// Bytes with a scale, perhaps an offset, per group.
    Bytes {
        /// `d q + m` instead of `d q`.
        offset: bool,
    },
    /// Nibbles with a scale, perhaps an offset, per group.
    Nibbles {
        /// `d q + m` instead of `d (q - 8)`.
        offset: bool,
    },
    /// Nibbles, and with the scales of a group (32 values) the fifth bits of its codes.
    FiveBits {
        /// `d q + m` instead of `d (q - 16)`.
        offset: bool,
    },
    /// Bytes of floats with a f32 scale per group.
    E4m3,
    /// Nibbles of floats with a f32 scale for every 16 values.
    E2m1,
    /// Nibbles of floats with a power of two for every 32 values.
    Mx,
    /// Nibbles, every 32 of which have `(d s) q - (e t)`.
    LargeFourBits,
    /// The same with fifth bits.
    LargeFiveBits,
    /// Nibbles and two bits more, every 16 of which have `(d s) (q - 32)`.
    LargeSixBits,
}

impl Encoding {
    /// Bytes of a tile's unit.
    pub const fn unit_bytes(self) -> usize {
        match self {
            Encoding::Plain => 2 * TILE * UNIT,
            _ if self.in_nibbles() => TILE * UNIT / 2,
            _ => TILE * UNIT,
        }
    }

    /// Whether codes, or their lower bits, are nibbles.
    pub(crate) const fn in_nibbles(self) -> bool {
        !matches!(self, Encoding::Plain | Encoding::Bytes { .. } | Encoding::E4m3)
    }

    /// Whether a file has blocks of 256 values.
    pub(super) const fn is_large(self) -> bool {
        matches!(self, Encoding::LargeFourBits | Encoding::LargeFiveBits | Encoding::LargeSixBits)
    }

    /// Bits of a code above its nibble.
    pub(super) const fn upper_bits(self) -> usize {
        match self {
            Encoding::FiveBits { .. } | Encoding::LargeFiveBits => 1,
            Encoding::LargeSixBits => 2,
            _ => 0,
        }
    }

    /// Bytes of a tile's scales of one group, upper bits of codes included.
    pub const fn scale_bytes(self) -> usize {
        TILE * self.head() + TILE * HALF * self.upper_bits() / 8
    }

    /// Bytes of the numbers of a row's group.
    pub(super) const fn head(self) -> usize {
        match self {
            Encoding::Plain => 0,
            Encoding::Bytes { offset } | Encoding::Nibbles { offset } | Encoding::FiveBits { offset } => {
                2 + 2 * offset as usize
            }
            Encoding::Mx => 2,
            Encoding::E4m3 | Encoding::LargeSixBits => 4,
            Encoding::LargeFourBits | Encoding::LargeFiveBits => 6,
            Encoding::E2m1 => 8,
        }
    }

    /// What the kernels take of a format: of `group` values a group.
    pub(super) fn of(format: Format, group: usize) -> Result<Self, &'static str> {
        Ok(match format {
            Format::F16 | Format::Bf16 => Encoding::Plain,
            Format::Q8_0 | Format::Int8 => Encoding::Bytes { offset: false },
            Format::Int8a => Encoding::Bytes { offset: true },
            Format::Q4_0 | Format::Int4 => Encoding::Nibbles { offset: false },
            Format::Q4_1 | Format::Int4a => Encoding::Nibbles { offset: true },
            Format::Q5_0 => Encoding::FiveBits { offset: false },
            Format::Q5_1 => Encoding::FiveBits { offset: true },
            Format::Fp8 => Encoding::E4m3,
            Format::Fp4 if group == HALF / 2 => Encoding::E2m1,
            Format::Mxfp4 => Encoding::Mx,
            Format::Q4K => Encoding::LargeFourBits,
            Format::Q5K => Encoding::LargeFiveBits,
            Format::Q6K => Encoding::LargeSixBits,
            Format::F32 => return Err("f32 weights have no tensor-core layout"),
            Format::Fp4 => return Err("fp4 has a tensor-core kernel for groups of 16 alone"),
            Format::Fp8E5m2 | Format::Fp6 => return Err("e5m2 and e3m2 have no tensor-core kernel"),
            Format::Nf4 => return Err("NF4's values have more bits than tensor cores multiply"),
            Format::Iq4Nl | Format::Iq4Xs => return Err("codes of a table have no tensor-core kernel"),
            Format::Q2K | Format::Q3K => return Err("K-quants of 2 and 3 bits have no tensor-core kernel"),
        })
    }
}
