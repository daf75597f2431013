//! 8x8 matrices of 16-bit elements between shared memory and registers: `ldmatrix`, `stmatrix`, `movmatrix`.
//!
//! A matrix is eight rows of 16 bytes, each at an address of its own. Lane `8i + r` holds the address of row
//! `r` of matrix `i`; with fewer than four matrices the upper lanes' addresses are not read. The distribution
//! over lanes is in the table of [`super`].

use crate::Row;

/// One matrix in memory: eight rows of 16 bytes, i.e. of eight 16-bit elements, little-endian.
pub type Tile = [[u8; 16]; 8];

/// The lane whose address operand points to row `row` of matrix `matrix`.
pub const fn address_lane(matrix: usize, row: usize) -> usize {
    8 * matrix + row
}

/// Bytes a row address must be a multiple of.
pub const ROW_ALIGNMENT: u32 = 16;

/// `ldmatrix.m8n8.b16` of one matrix: the register over all lanes; `transpose` is `.trans`.
#[inline]
pub fn load(tile: &Tile, transpose: bool) -> Row {
    let mut row = [0; 32];
    for (words, bytes) in row.chunks_exact_mut(4).zip(tile) {
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
    if transpose { transposed(&row) } else { row }
}

/// `stmatrix.m8n8.b16` of one matrix: the rows to write; the inverse of [`load`].
pub fn store(register: &Row, transpose: bool) -> Tile {
    let register = if transpose { transposed(register) } else { *register };
    let mut tile = [[0; 16]; 8];
    for (bytes, words) in tile.iter_mut().zip(register.chunks_exact(4)) {
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    tile
}

/// `movmatrix.m8n8.trans.b16`: the fragment of the transposed matrix.
pub fn transposed(register: &Row) -> Row {
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        let half = |row: usize, column: usize| register[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        half(2 * t, g) | half(2 * t + 1, g) << 16
    })
}
