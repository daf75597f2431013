//! f32 weights with outputs side by side: what tensor cores would round, the strict matmul reads in whole
//! lines.
//!
//! `[outputs / 32][k][32]`: a warp's 32 chains read 128 bytes in a row at every step, where file order gives
//! 32 rows. What lies beyond the weight is zero. Nothing is computed, so [`Columns::unpack`] is an exact
//! inverse.

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
        self.n.div_ceil(LANES) * self.tile_bytes()
    }

    /// Bytes of the file.
    pub const fn file_bytes(&self) -> usize {
        self.n * self.k * VALUE
    }

    /// Packs a weight. False when the lengths do not go together; then nothing is written.
    #[must_use]
    pub fn pack(&self, file: &[u8], packed: &mut [u8]) -> bool {
        if file.len() != self.file_bytes() || packed.len() != self.bytes() {
            return false;
        }
        packed.fill(0);
        for (row, values) in file.chunks_exact((self.k * VALUE).max(1)).enumerate() {
            let tile = &mut packed[row / LANES * self.tile_bytes()..][..self.tile_bytes()];
            for (line, value) in tile.chunks_exact_mut(LANES * VALUE).zip(values.chunks_exact(VALUE)) {
                line[row % LANES * VALUE..][..VALUE].copy_from_slice(value);
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
