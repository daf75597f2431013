//! Convolutions in groups, attention without a softmax: `cuda/picture.cu`.

use super::{Elem, MatView, by_elem, launch, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// `out[r, c] = bias[c] + sum_(t, i) x[rows[r, t], g(c), i] w[t, i, c]`; a row number beyond `x` is a row of
/// zeros.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Conv {
    /// `[any, groups * inputs]`.
    pub x: MatView,
    /// `[rows, cols]`.
    pub out: MatView,
    /// `[rows * taps]` u32.
    pub rows: u64,
    /// `[taps * inputs, cols]` f32.
    pub weight: u64,
    /// `[cols]` f32, or 0.
    pub bias: u64,
    /// Rows that an output reads.
    pub taps: u32,
    /// Columns of a group that are read; at least 1, and `x` has some.
    pub inputs: u32,
    /// Columns of a group that are written; at least 1.
    pub outputs: u32,
    /// Element type of `x` and `out`.
    pub elem: Elem,
}

impl Conv {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["picture_conv_f32", "picture_conv_f16", "picture_conv_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        over_rows(Self::entry(self.elem), self.out.rows, self.out.cols, 1)
    }
}

/// Attention that is linear in the rows: sums of every item's keys and values, then what queries make of
/// them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Linear {
    /// `[rows, (heads - 1) * step + width]`.
    pub q: MatView,
    /// As `q`.
    pub k: MatView,
    /// As `q`.
    pub v: MatView,
    /// `[items * heads * width, width + 1]` f32.
    pub sums: MatView,
    /// `[rows, heads * width]`.
    pub out: MatView,
    /// `[items + 1]` u32.
    pub bounds: u64,
    /// Items.
    pub items: u32,
    /// Heads.
    pub heads: u32,
    /// Columns of a head.
    pub width: u32,
    /// Columns from head to head.
    pub step: u32,
    /// Added to what divides.
    pub eps: f32,
    /// Element type of all but `sums`.
    pub elem: Elem,
}

/// Key columns and value columns of a block of the sums.
const TILE: [u32; 2] = [8, 32];

impl Linear {
    /// The entries for this element type, in the order of their launches.
    pub const fn entries(elem: Elem) -> &'static [&'static str; 2] {
        match elem {
            Elem::F32 => &["picture_sums_f32", "picture_read_f32"],
            Elem::F16 => &["picture_sums_f16", "picture_read_f16"],
            _ => &["picture_sums_bf16", "picture_read_bf16"],
        }
    }

    /// Two launches; the second has no blocks where there are no items.
    pub fn launches(&self) -> [Launch; 2] {
        let [sums, read] = Self::entries(self.elem);
        let tiles = TILE.map(|tile| u64::from(self.width.div_ceil(tile)));
        let blocks = u64::from(self.items) * u64::from(self.heads) * tiles[0] * tiles[1];
        let rows = if self.items == 0 { 0 } else { self.out.rows };
        [
            launch(sums, [blocks.min(1 << 20) as u32, 1, 1], [256, 1, 1]),
            over_rows(read, rows, self.out.cols, 1),
        ]
    }
}
