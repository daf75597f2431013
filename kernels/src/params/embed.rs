//! Rows of a table by id: `cuda/embed.cu`.

use super::{Elem, Format, MatView, WeightView, by_format, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// `out[t] = table[ids[t]]`, or added to what `out` holds; ids beyond the table count as rows of zeros.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Embed {
    /// `[tokens]` u32.
    pub ids: u64,
    /// `[vocab, cols]`.
    pub table: WeightView,
    /// `[tokens, cols]`.
    pub out: MatView,
    /// Element type of `out`.
    pub elem: Elem,
    /// 1: `out = round(out + round(row))`.
    pub add: u32,
}

impl Embed {
    /// The entry for a table of this format.
    pub fn entry(format: Format) -> &'static str {
        by_format!("embed_rows_", format)
    }

    /// One launch, for a table of this format.
    pub fn launch(&self, format: Format) -> Launch {
        over_rows(Self::entry(format), self.out.rows, self.out.cols, 8)
    }
}
