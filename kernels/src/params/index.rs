//! An index of keys: `cuda/index.cu`.

use super::{Elem, MatView, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// The entries.
pub const ENTRIES: [&str; 2] = [Scores::ENTRY, Choose::ENTRY];

/// Keys of a block.
const KEYS: u32 = 128;
/// Heads that a thread takes at a time.
const HEADS: u32 = 8;
/// Bytes of shared memory of a block, which every device has.
pub const MOST_SHARED: u64 = 48 << 10;

/// The sequences of a step, their pages, and what is chosen.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Lists {
    /// `[seqs + 1]` u32.
    pub bounds: u64,
    /// `[seqs]` u32.
    pub table_rows: u64,
    /// `[seqs]` u32.
    pub kv_lens: u64,
    /// `[rows, stride]` u32 page numbers.
    pub table: u64,
    /// Sequences.
    pub seqs: u32,
    /// Rows of the page table.
    pub rows: u32,
    /// Its entries per row.
    pub stride: u32,
    /// Positions of a page; those of a row are fewer than 2^31.
    pub page_size: u32,
    /// The first token row.
    pub first: u32,
    /// Keys that a query chooses.
    pub count: u32,
}

/// Scores of the keys that rows see.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Scores {
    /// `[tokens, heads * width]`.
    pub q: MatView,
    /// `[tokens, heads]`.
    pub factors: MatView,
    /// `[slots, some of width]`.
    pub low: MatView,
    /// `[slots, the rest of width]`.
    pub high: MatView,
    /// `[rows, keys]` f32.
    pub out: MatView,
    /// What rows see.
    pub lists: Lists,
    /// Heads.
    pub heads: u32,
    /// Factor of the products.
    pub scale: f32,
    /// Element type of queries and factors.
    pub elem: Elem,
    /// Element type of keys.
    pub kv_elem: Elem,
}

impl Scores {
    /// The entry.
    pub const ENTRY: &str = "index_scores";

    /// Bytes of shared memory of a block for queries of so many heads and columns.
    pub fn shared(heads: u32, width: u32) -> u64 {
        u64::from(heads.next_multiple_of(HEADS)) * u64::from(width) * 4
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let shared_bytes = Self::shared(self.heads, self.low.cols + self.high.cols) as u32;
        let grid = [self.out.rows, self.out.cols.div_ceil(KEYS), 1];
        Launch { shared_bytes, ..launch(Self::ENTRY, grid, [KEYS, 1, 1]) }
    }
}

/// The choice of the best keys.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Choose {
    /// `[rows, keys]` f32.
    pub scores: MatView,
    /// What rows see.
    pub lists: Lists,
    /// `[rows, count]` u32 page slots.
    pub chosen: u64,
    /// `[rows]` u32.
    pub counts: u64,
}

impl Choose {
    /// The entry.
    pub const ENTRY: &str = "index_choose";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, [self.scores.rows, 1, 1], [256, 1, 1])
    }
}
