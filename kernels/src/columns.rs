//! f32 weights with outputs side by side: what tensor cores would round, the strict matmul reads in whole
//! lines.
//!
//! `[outputs / 32][k][32]`: a warp's 32 chains read 128 bytes in a row at every step, where file order gives
//! 32 rows. What lies beyond the weight is zero. Nothing is computed, so [`Columns::unpack`] is an exact
//! inverse.

use crate::file_rows::FileRows;
use std::ops::Range;

/// Outputs of a tile: the lanes of a warp.
pub const LANES: usize = 32;
/// Bytes of a value.
const VALUE: usize = 4;

/// How an f32 weight `[n, k]` lies packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Columns {
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

impl Columns {
    /// Bytes of a tile.
    pub const fn tile_bytes(&self) -> usize {
        self.k * LANES * VALUE
    }

    /// Bytes of all tiles; they begin at a multiple of 128.
    pub const fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// Bytes of the file.
    pub const fn file_bytes(&self) -> usize {
        self.n * self.k * VALUE
    }

    /// Tiles of outputs.
    pub const fn tiles(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Packs some tiles of a weight: `file` holds all its rows, `packed` exactly these tiles. False when the
    /// lengths do not go together; then nothing is written.
    #[must_use]
    pub fn pack(&self, tiles: Range<usize>, file: &FileRows<'_>, packed: &mut [u8]) -> bool {
        let whole = file.rows() * file.row_bytes() == self.file_bytes() && tiles.end <= self.tiles();
        if !whole || packed.len() != tiles.len() * self.tile_bytes() {
            return false;
        }
        packed.fill(0);
        for (tile, packed) in tiles.zip(packed.chunks_exact_mut(self.tile_bytes().max(1))) {
            for lane in 0..LANES.min(self.n - tile * LANES) {
                let values = file.row(tile * LANES + lane).chunks_exact(VALUE);
                for (line, value) in packed.chunks_exact_mut(LANES * VALUE).zip(values) {
                    line[lane * VALUE..][..VALUE].copy_from_slice(value);
                }
            }
        }
        true
    }

    /// The inverse of [`Columns::pack`]. False when the lengths do not go together.
    #[must_use]
    pub fn unpack(&self, packed: &[u8], file: &mut [u8]) -> bool {
        if file.len() != self.file_bytes() || packed.len() != self.bytes() {
            return false;
        }
        for (row, values) in file.chunks_exact_mut((self.k * VALUE).max(1)).enumerate() {
            let tile = &packed[row / LANES * self.tile_bytes()..][..self.tile_bytes()];
            for (line, value) in tile.chunks_exact(LANES * VALUE).zip(values.chunks_exact_mut(VALUE)) {
                value.copy_from_slice(&line[row % LANES * VALUE..][..VALUE]);
            }
        }
        true
    }
}
