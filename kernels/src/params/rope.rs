//! Rotary embedding: `cuda/rope.cu`.

use super::{Elem, MatView, by_elem, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Turns every head of every row by the angles of the row's position, in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Rope {
    /// `[tokens, heads * width]`.
    pub x: MatView,
    /// `[tokens]` u32.
    pub positions: u64,
    /// `[2, positions, pairs]` f32: cosines, then sines.
    pub table: u64,
    /// Positions of the table; rows at others are left as they are.
    pub table_positions: u32,
    /// Turned pairs of a head.
    pub pairs: u32,
    /// Heads of a row.
    pub heads: u32,
    /// Columns of a head.
    pub width: u32,
    /// 1: pairs are neighbours, 0: they are `pairs` columns apart.
    pub interleaved: u32,
    /// Element type.
    pub elem: Elem,
}

impl Rope {
    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["rope_heads_f32", "rope_heads_f16", "rope_heads_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        over_rows(Self::entry(self.elem), self.x.rows, self.heads * self.pairs, 1)
    }
}
