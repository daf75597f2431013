//! Sampling: `cuda/sample.cu`.

use super::{MatView, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Samples `out[r]` from row `r` of logits; rows without a slot give `u32::MAX`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Sample {
    /// `[rows, vocab]` f32.
    pub logits: MatView,
    /// `[table_rows]` rows of 12 words (`engraft_core::sample::SampleRow`).
    pub table: u64,
    /// `[rows]` u32: rows of `table`.
    pub slots: u64,
    /// `[rows]` u32: position of the new token.
    pub positions: u64,
    /// `[seen_rows, seen_words]` bits of tokens seen.
    pub seen: u64,
    /// `[rows]` u32.
    pub out: u64,
    /// Rows of `table`.
    pub table_rows: u32,
    /// Rows of `seen`.
    pub seen_rows: u32,
    /// Words of a row of `seen`.
    pub seen_words: u32,
    /// Zero.
    pub reserved: u32,
}

impl Sample {
    /// The entry.
    pub const ENTRY: &str = "sample_tokens";

    /// One launch.
    pub fn launch(&self) -> Launch {
        let threads = self.logits.cols.min(1024).next_power_of_two().clamp(256, 1024);
        launch(Self::ENTRY, [self.logits.rows, 1, 1], [threads, 1, 1])
    }
}
