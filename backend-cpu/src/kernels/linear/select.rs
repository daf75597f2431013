//! From a weight's format to the type that reads its panels.

use super::panel::Source;
use super::w8a8;
use engraft_core::mem::WeightFormat;

/// Calls `$f::<S>` style code with the source type of a format bound to `$S`.
macro_rules! with_source {
    ($format:expr, $S:ident => $body:expr, else $other:expr) => {{
        use engraft_core::mem::{Block, Float, GroupBits, Groups, WeightFormat};
        use $crate::kernels::linear::float::{Fp4, Fp4Fine, Fp6, Fp8, Fp8Wide, Iq4, Nf4};
        use $crate::kernels::linear::format::{Bytes8, Nibbles, PlainBf16, PlainF16, PlainF32};
        use $crate::kernels::linear::group::BytesOffset;
        use $crate::kernels::linear::large::{Bytes5, Bytes6, Nibbles2, Nibbles3, Nibbles4};
        match $format {
            WeightFormat::Plain(Float::F32) => {
                type $S = PlainF32;
                $body
            }
            WeightFormat::Plain(Float::F16) => {
                type $S = PlainF16;
                $body
            }
            WeightFormat::Plain(Float::Bf16) => {
                type $S = PlainBf16;
                $body
            }
            WeightFormat::Block(Block::Q8_0)
            | WeightFormat::Group(Groups { bits: GroupBits::Eight, asymmetric: false, .. }) => {
                type $S = Bytes8;
                $body
            }
            WeightFormat::Block(Block::Q4_0)
            | WeightFormat::Group(Groups { bits: GroupBits::Four, asymmetric: false, .. }) => {
                type $S = Nibbles<8, false, false>;
                $body
            }
            WeightFormat::Block(Block::Q4_1)
            | WeightFormat::Group(Groups { bits: GroupBits::Four, asymmetric: true, .. }) => {
                type $S = Nibbles<0, true, false>;
                $body
            }
            WeightFormat::Block(Block::Q5_0) => {
                type $S = Nibbles<16, false, true>;
                $body
            }
            WeightFormat::Block(Block::Q5_1) => {
                type $S = Nibbles<0, true, true>;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::Eight, asymmetric: true, .. }) => {
                type $S = BytesOffset;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::E4m3, .. }) => {
                type $S = Fp8;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::E5m2, .. }) => {
                type $S = Fp8Wide;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::E3m2, .. }) => {
                type $S = Fp6;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::E2m1, size: 16, .. }) => {
                type $S = Fp4Fine;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::E2m1 | GroupBits::Mx, .. }) => {
                type $S = Fp4;
                $body
            }
            WeightFormat::Group(Groups { bits: GroupBits::Nf4, .. }) => {
                type $S = Nf4;
                $body
            }
            WeightFormat::Block(Block::Iq4Nl | Block::Iq4Xs) => {
                type $S = Iq4;
                $body
            }
            WeightFormat::Block(Block::Q4K) => {
                type $S = Nibbles4;
                $body
            }
            WeightFormat::Block(Block::Q2K) => {
                type $S = Nibbles2;
                $body
            }
            WeightFormat::Block(Block::Q3K) => {
                type $S = Nibbles3;
                $body
            }
            WeightFormat::Block(Block::Q5K) => {
                type $S = Bytes5;
                $body
            }
            WeightFormat::Block(Block::Q6K) => {
                type $S = Bytes6;
                $body
            }
            _ => $other,
        }
    }};
}
pub(crate) use with_source;

/// Bytes of a panel, `None` for a format that has no panels here.
pub fn panel_bytes(format: WeightFormat, k: usize) -> Option<usize> {
    if format == WeightFormat::W8A8 {
        return w8a8::panel_bytes(k);
    }
    with_source!(format, S => Some(<S as Source>::panel_bytes(k)), else None)
}
