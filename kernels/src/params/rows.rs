//! Rows and words moved: `cuda/rows.cu`.

use super::{Elem, MatView, launch, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// `out[r] = x[rows[r]]`; a row number beyond `x` gives zeros.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Gather {
    /// `[any, cols]`.
    pub x: MatView,
    /// `[rows, cols]`.
    pub out: MatView,
    /// `[rows]` u32.
    pub rows: u64,
    /// Element type of both.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Gather {
    /// One launch.
    pub fn launch(&self) -> Launch {
        let size = u64::from(self.elem.bytes());
        let ends =
            self.x.ptr | self.out.ptr | ((self.x.pitch | self.out.pitch | u64::from(self.out.cols)) * size);
        let (entry, unit) = match (ends.is_multiple_of(16), size) {
            (true, _) => ("rows_gather_wide", 16 / self.elem.bytes()),
            (false, 4) => ("rows_gather_words", 1),
            (false, _) => ("rows_gather_halves", 1),
        };
        over_rows(entry, self.out.rows, self.out.cols, unit)
    }
}

/// `dst[index] = value` for every pair; indices beyond `dst` do nothing, of several for one entry the last counts.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Patch {
    /// `[count, 2]` u32.
    pub pairs: u64,
    /// `[len]` u32.
    pub dst: u64,
    /// Pairs.
    pub count: u32,
    /// Words of `dst`.
    pub len: u32,
}

impl Patch {
    /// One launch.
    pub fn launch(&self) -> Launch {
        launch("rows_patch", [self.count.div_ceil(256), 1, 1], [256, 1, 1])
    }
}

/// Clears one row of the seen bits and sets those of `ids`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Seen {
    /// `[count]` u32.
    pub ids: u64,
    /// `[words]` u32: the row.
    pub seen: u64,
    /// Ids.
    pub count: u32,
    /// Words of the row.
    pub words: u32,
}

impl Seen {
    /// One launch.
    pub fn launch(&self) -> Launch {
        launch("rows_seen", [1, 1, 1], [1024, 1, 1])
    }
}
