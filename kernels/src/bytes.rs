//! Weights of `w8a8`: codes and scales apart, since blocks of 34 bytes lie on no boundary that wide copies
//! want.
//!
//! Codes `[n][k]`, then scales `[n][k / 32 rounded up to 8]` f16, zero behind a row's last. Nothing is
//! computed, so [`Bytes::unpack`] is an exact inverse.

use crate::file_rows::FileRows;
use std::ops::Range;

/// Values of a block in the file: a scale of 2 bytes, then a byte each.
const SPAN: usize = 32;
/// Bytes of a block's scale.
const SCALE: usize = 2;
/// Bytes of a block in the file.
const BLOCK: usize = SCALE + SPAN;

/// How a weight `[n, k]` lies packed; k is a multiple of 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bytes {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

impl Bytes {
    /// Bytes of a row's scales.
    pub const fn scale_bytes(&self) -> usize {
        (self.k / SPAN).next_multiple_of(8) * SCALE
    }

    /// Bytes of codes and scales.
    pub const fn bytes(&self) -> usize {
        self.n * (self.k + self.scale_bytes())
    }

    /// Bytes of the file.
    pub const fn file_bytes(&self) -> usize {
        self.n * (self.k / SPAN) * BLOCK
    }

    /// Packs some rows of a weight: `file` holds all of them, `codes` and `scales` exactly these. False when
    /// the lengths do not go together; then nothing is written.
    #[must_use]
    pub fn pack(&self, rows: Range<usize>, file: &FileRows<'_>, codes: &mut [u8], scales: &mut [u8]) -> bool {
        let (whole, count) = (file.rows() * file.row_bytes() == self.file_bytes(), rows.len());
        let fit = codes.len() == count * self.k && scales.len() == count * self.scale_bytes();
        if !whole || !fit || rows.end > self.n || !self.k.is_multiple_of(SPAN) {
            return false;
        }
        scales.fill(0);
        for (at, row) in rows.enumerate() {
            let scales = &mut scales[at * self.scale_bytes()..];
            for (b, block) in file.row(row).chunks_exact(BLOCK).enumerate() {
                let (scale, values) = block.split_at(SCALE);
                scales[b * SCALE..][..SCALE].copy_from_slice(scale);
                codes[at * self.k + b * SPAN..][..SPAN].copy_from_slice(values);
            }
        }
        true
    }

    /// The inverse of [`Bytes::pack`]. False when the lengths do not go together.
    #[must_use]
    pub fn unpack(&self, packed: &[u8], file: &mut [u8]) -> bool {
        let whole = file.len() == self.file_bytes() && packed.len() == self.bytes();
        if !whole || !self.k.is_multiple_of(SPAN) {
            return false;
        }
        let (codes, scales) = packed.split_at(self.n * self.k);
        for (row, blocks) in file.chunks_exact_mut((self.k / SPAN * BLOCK).max(1)).enumerate() {
            let scales = &scales[row * self.scale_bytes()..];
            for (b, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
                let (scale, values) = block.split_at_mut(SCALE);
                scale.copy_from_slice(&scales[b * SCALE..][..SCALE]);
                values.copy_from_slice(&codes[row * self.k + b * SPAN..][..SPAN]);
            }
        }
        true
    }
}
