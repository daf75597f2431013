//! Row norms, with a residual sum before, and over heads; norms of groups of columns, rows
//! by their own moments: `cuda/norm.cu`.

use super::int8::Codes;
use super::{Elem, MatView, by_elem, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// `out = norm(x)` for every part of a row, after `x = round(x + add)` where `add` is given.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Norm {
    /// `[rows, parts * width]`; written where `add` is given.
    pub x: MatView,
    /// As `x`, or [`MatView::NONE`].
    pub add: MatView,
    /// As `x`; may be its memory.
    pub out: MatView,
    /// `[width]` f32, or 0.
    pub weight: u64,
    /// `[width]` f32, or 0.
    pub bias: u64,
    /// Columns of a part: the row's, or a head's.
    pub width: u32,
    /// Parts of a row.
    pub parts: u32,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// 1: layer norm, 0: RMS norm.
    pub layer: u32,
    /// 1: multiply by `1 + weight`.
    pub plus_one: u32,
    /// Element type.
    pub elem: Elem,
    /// 1: the contract's sums; 0: sums by every thread, in an order that depends on `width` alone (parts of
    /// up to 512 columns have the contract's sums always: their chains are short).
    pub strict: u32,
    /// Zero.
    pub reserved: u32,
    /// Where `out` goes as bytes, too: one part, of a multiple of 32 columns; or [`Codes::NONE`].
    pub codes: Codes,
}

/// Widest part that one warp norms.
const NARROW: u32 = 512;

impl Norm {
    /// The entry for parts of `width` columns; `strict` as the field.
    pub fn entry(elem: Elem, width: u32, strict: bool) -> &'static str {
        let entries = match (strict, width <= NARROW) {
            (true, false) => ["norm_strict_wide_f32", "norm_strict_wide_f16", "norm_strict_wide_bf16"],
            (_, true) => ["norm_strict_narrow_f32", "norm_strict_narrow_f16", "norm_strict_narrow_bf16"],
            (false, false) => ["norm_fast_wide_f32", "norm_fast_wide_f16", "norm_fast_wide_bf16"],
        };
        by_elem(elem, entries)
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        /// Warps of a block of narrow parts.
        const WARPS: u64 = 4;
        let parts = u64::from(self.x.rows) * u64::from(self.parts);
        let narrow = self.width <= NARROW;
        let entry = Self::entry(self.elem, self.width, self.strict != 0);
        let (blocks, threads) = if narrow { (parts.div_ceil(WARPS), 128) } else { (parts, 256) };
        launch(entry, [blocks.min(1 << 20) as u32, 1, 1], [threads, 1, 1])
    }
}

/// `out = norm(x)` of every group of columns over all rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct GroupNorm {
    /// `[rows, groups * width]`.
    pub x: MatView,
    /// As `x`; may be its memory.
    pub out: MatView,
    /// `[groups * width]` f32, or 0.
    pub weight: u64,
    /// `[groups * width]` f32, or 0.
    pub bias: u64,
    /// Columns of a group.
    pub width: u32,
    /// Groups.
    pub groups: u32,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// 1: layer norm, 0: RMS norm.
    pub layer: u32,
    /// 1: multiply by `1 + weight`.
    pub plus_one: u32,
    /// Element type.
    pub elem: Elem,
}

impl GroupNorm {
    /// The entry.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["norm_groups_f32", "norm_groups_f16", "norm_groups_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let groups = if self.x.rows == 0 || self.width == 0 { 0 } else { self.groups };
        launch(Self::entry(self.elem), [groups.min(1 << 20), 1, 1], [256, 1, 1])
    }
}

/// Rows by their own moments, in place: cut off where `like` is [`MatView::NONE`], else with the root of the
/// mean square of its rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Rescale {
    /// `[rows, parts * width]`.
    pub x: MatView,
    /// `[rows, width]`, or [`MatView::NONE`].
    pub like: MatView,
    /// Columns of a part.
    pub width: u32,
    /// Parts of a row; 1 without `like`.
    pub parts: u32,
    /// Standard deviations from the mean to what is taken off, or the least mean square.
    pub value: f32,
    /// Element type.
    pub elem: Elem,
    /// 1: the contract's sums; 0: sums by every thread, in an order that depends on `width` alone.
    pub strict: u32,
    /// Zero.
    pub reserved: u32,
}

impl Rescale {
    /// The entry; `like` and `strict` as the fields.
    pub fn entry(elem: Elem, like: bool, strict: bool) -> &'static str {
        let entries = match (like, strict) {
            (false, true) => ["norm_topk_strict_f32", "norm_topk_strict_f16", "norm_topk_strict_bf16"],
            (false, false) => ["norm_topk_fast_f32", "norm_topk_fast_f16", "norm_topk_fast_bf16"],
            (true, true) => ["norm_match_strict_f32", "norm_match_strict_f16", "norm_match_strict_bf16"],
            (true, false) => ["norm_match_fast_f32", "norm_match_fast_f16", "norm_match_fast_bf16"],
        };
        by_elem(elem, entries)
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let parts = if self.width == 0 { 0 } else { u64::from(self.x.rows) * u64::from(self.parts) };
        let entry = Self::entry(self.elem, self.like.ptr != 0, self.strict != 0);
        launch(entry, [parts.min(1 << 20) as u32, 1, 1], [256, 1, 1])
    }
}
