//! Rows and words moved: `cuda/rows.cu`.

use super::{Elem, MatView, launch, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// The entries that move words; those that move rows are [`Gather::entries`].
pub const ENTRIES: [&str; 3] = [Scatter::ENTRY, Seen::ENTRY, Feed::ENTRY];

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
    /// The entries for this element type: by 16 bytes where rows allow that, else by elements.
    pub const fn entries(elem: Elem) -> &'static [&'static str; 2] {
        match elem.bytes() {
            4 => &["rows_gather_wide", "rows_gather_words"],
            _ => &["rows_gather_wide", "rows_gather_halves"],
        }
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let size = u64::from(self.elem.bytes());
        let ends =
            self.x.ptr | self.out.ptr | ((self.x.pitch | self.out.pitch | u64::from(self.out.cols)) * size);
        let [wide, single] = Self::entries(self.elem);
        let (entry, unit) =
            if ends.is_multiple_of(16) { (wide, 16 / self.elem.bytes()) } else { (single, 1) };
        over_rows(entry, self.out.rows, self.out.cols, unit)
    }
}

/// `dst[index] = value` for every pair; indices beyond `dst` do nothing, of several for one entry the last
/// counts.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Scatter {
    /// `[count, 2]` u32.
    pub pairs: u64,
    /// `[len]` u32.
    pub dst: u64,
    /// Pairs.
    pub count: u32,
    /// Words of `dst`.
    pub len: u32,
}

impl Scatter {
    /// The entry.
    pub const ENTRY: &str = "rows_scatter";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [self.count.div_ceil(256), 1, 1], [256, 1, 1])
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
    /// The entry.
    pub const ENTRY: &str = "rows_seen";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [1, 1, 1], [1024, 1, 1])
    }
}

/// `out[t] = last[feeds[t]]`; for a row beyond `last`, `ids[t]`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Feed {
    /// `[count]` u32.
    pub ids: u64,
    /// `[count]` u32.
    pub feeds: u64,
    /// `[rows]` u32.
    pub last: u64,
    /// `[count]` u32.
    pub out: u64,
    /// Ids.
    pub count: u32,
    /// Words of `last`.
    pub rows: u32,
}

impl Feed {
    /// The entry.
    pub const ENTRY: &str = "rows_feed";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [self.count.div_ceil(256), 1, 1], [256, 1, 1])
    }
}
