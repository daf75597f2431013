//! Shared-memory operands of `wgmma`: the 64-bit matrix descriptor and the addresses behind it.
//!
//! A matrix in shared memory is made of 16-byte chunks. Eight rows of one chunk each (K-major), or eight `k`
//! of one chunk of rows each (MN-major), build the smallest block; two strides lead from block to block, and
//! the swizzle moves chunks within 1024, 512 or 256 bytes. In bytes, with `W` the swizzle width in chunks (1
//! without swizzle):
//!
//! | | swizzle | offset of the chunk that holds element (`mn`, `k`) |
//! | --- | --- | --- |
//! | K-major, `c = k / T` | none | `16 (mn % 8) + stride (mn / 8) + leading c` |
//! | | 32, 64, 128 | `16 W (mn % 8) + stride (mn / 8) + 16 c` |
//! | MN-major, `c = mn / T` | none | `16 (k % 8) + leading (k / 8) + stride c` |
//! | | 32, 64, 128 | `16 W (k % 8) + stride (k / 8) + 16 (c % W) + leading (c / W)` |
//!
//! `T` elements of 16, 8 or 32 bits fill a chunk. The swizzle is applied to the final address: address bits 4
//! and up are XORed with as many bits from bit 7 on (one for 32 bytes, two for 64, three for 128). Source:
//! PTX ISA 8.7, "Shared Memory Matrix Layout" and "Matrix Descriptor".

/// Which dimension of an operand is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// The depth `k` (no transposition).
    K,
    /// Rows of A or columns of B (`imm-trans` is 1; 16-bit types only).
    Mn,
}

/// A decoded matrix descriptor; all addresses and offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the matrix in the shared window.
    pub start: u32,
    /// Leading dimension byte offset.
    pub leading: u32,
    /// Stride dimension byte offset.
    pub stride: u32,
    /// Base offset: where the swizzle pattern starts, in units of 128 bytes.
    pub base: u32,
    /// Swizzle width in bytes: 16 for none, 32, 64 or 128.
    pub width: u32,
}

impl Descriptor {
    /// Takes a descriptor apart.
    ///
    /// # Errors
    /// A sentence when bits are set that mean nothing: usually an address that was added without its mask.
    pub fn decode(bits: u64) -> Result<Self, String> {
        const RESERVED: u64 = 3 << 14 | 3 << 30 | 7 << 46 | 0x3ff << 52;
        if bits & RESERVED != 0 {
            return Err(format!(
                "matrix descriptor {bits:#018x} has reserved bits set ({:#x}); allowed are 0-13, 16-29, 32-45, 49-51 and 62-63",
                bits & RESERVED
            ));
        }
        let field = |from: u32| (bits >> from & 0x3fff) as u32 * 16;
        let width = [16, 128, 64, 32][(bits >> 62) as usize];
        Ok(Self {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base: (bits >> 49 & 7) as u32,
            width,
        })
    }

    /// The 64 bits of a descriptor; the inverse of [`Descriptor::decode`]. Bits that do not fit their field
    /// are dropped, as
    /// `(x & 0x3ffff) >> 4` does in a kernel.
    pub fn encode(&self) -> u64 {
        let field = |value: u32, at: u32| u64::from((value & 0x3ffff) >> 4) << at;
        let mode = match self.width {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0u64,
        };
        field(self.start, 0)
            | field(self.leading, 16)
            | field(self.stride, 32)
            | u64::from(self.base & 7) << 49
            | mode << 62
    }

    /// Shared address of the 16-byte chunk `chunk` along the contiguous dimension, at index `line` of the
    /// other one.
    ///
    /// K-major: `line` is the row of A or column of B, `chunk` counts along `k`. MN-major: `line` is `k`.
    pub fn chunk_address(&self, major: Major, line: u32, chunk: u32) -> u32 {
        let swizzled = self.width > 16;
        let (block, offset) = (line / 8, line % 8 * self.width);
        let linear = match (major, swizzled) {
            (Major::K, false) => block * self.stride + chunk * self.leading,
            (Major::K, true) => block * self.stride + chunk * 16,
            (Major::Mn, false) => block * self.leading + chunk * self.stride,
            (Major::Mn, true) => {
                let across = self.width / 16;
                block * self.stride + chunk % across * 16 + chunk / across * self.leading
            }
        };
        self.swizzle(self.start.wrapping_add(offset).wrapping_add(linear))
    }

    /// The swizzled place of a linear address.
    pub fn swizzle(&self, address: u32) -> u32 {
        let mask = (self.width / 16).saturating_sub(1);
        let row = (address >> 7).wrapping_sub(self.base) & mask;
        address ^ row << 4
    }
}
