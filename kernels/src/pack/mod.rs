//! Weights in the order in which tensor cores take them: from file bytes to what `cuda/gemm.cuh` describes,
//! and back.
//!
//! Pure functions on byte slices: no device, no threads (pack ranges of tiles at once to use several).
//! Nothing is decoded and nothing is rounded: codes and scales move, so packing has an exact inverse,
//! [`Layout::unpack`].
//!
//! A *tile* is 16 outputs, a *unit* 64 values along k, a *half* 32. What lies beyond the weight is zero. A
//! half of plain values is 8 x 8 matrices, row after row: those of rows 0..8 by k, then those of rows 8..16.
//! That is what `ldmatrix` takes and what a `wgmma` descriptor without swizzle means, so one layout serves
//! every kernel. Codes are decoded in registers: within a half, value `i` of row `r` of a tile belongs to
//! lane `4 (r % 8) + i / 2 % 4`, step `i / 16`, register
//! `r / 8 + 2 (i / 8 % 2)`, and there to the low (`i` even) or high part. In a gated weight, rows 0..8 of a
//! tile are gate rows, rows 8..16 the up rows of the same numbers.

mod encoding;
mod file;
mod large;

pub use encoding::{Encoding, TILE, UNIT};

use crate::file_rows::FileRows;
use crate::params::Format;
use encoding::HALF;
use std::ops::Range;

/// How a weight `[n, k]` of some format lies packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// What the kernels multiply from.
    pub encoding: Encoding,
    /// Outputs, of one part.
    pub n: usize,
    /// Parts, whose rows lie one after the other (experts); tiles begin anew with each.
    pub parts: usize,
    /// Inputs.
    pub k: usize,
    /// Whether gate and up rows share tiles.
    pub gated: bool,
    /// Values of a group; 0 for plain elements.
    pub group: usize,
    /// How the file has it.
    format: Format,
}

impl Layout {
    /// The layout of a weight of `format`; `group` is the number of values of a group of the own formats (0:
    /// a row).
    ///
    /// # Errors
    /// A format that has no packed layout, and why.
    pub fn of(format: Format, group: usize, n: usize, k: usize, gated: bool) -> Result<Layout, &'static str> {
        let encoding = Encoding::of(format, group)?;
        let own = matches!(format, Format::Int8 | Format::Int8a | Format::Int4 | Format::Int4a | Format::Fp8);
        let whole = match encoding {
            Encoding::Plain | Encoding::E4m3 | Encoding::E2m1 | Encoding::Mx => 1,
            encoding if encoding.is_large() => large::VALUES,
            _ if own => 1,
            _ => HALF,
        };
        let group = match encoding {
            Encoding::Plain => 0,
            _ if !own => HALF,
            _ if group == 0 || group >= k => k,
            _ => group,
        };
        match () {
            _ if k == 0 || n == 0 => Err("the weight is empty"),
            _ if gated && !n.is_multiple_of(2) => Err("a gated weight has as many gate as up rows"),
            _ if !k.is_multiple_of(whole) => Err("blocks are whole"),
            _ if group != 0 && group != HALF && group < k && !group.is_multiple_of(UNIT) => {
                Err("groups are 32 values, a multiple of 64, or a row")
            }
            _ => Ok(Layout { encoding, n, parts: 1, k, gated, group, format }),
        }
    }

    /// The layout of the same rows, of `parts` experts.
    ///
    /// # Errors
    /// Rows that the parts do not share evenly, or pairs of them.
    pub fn in_parts(self, parts: usize) -> Result<Layout, &'static str> {
        match () {
            _ if parts == 0 || !self.n.is_multiple_of(parts) => Err("experts share the rows evenly"),
            _ if self.gated => Err("experts have no gated weights"),
            _ if self.parts != 1 => Err("parts have no parts"),
            _ => Ok(Layout { n: self.n / parts, parts, ..self }),
        }
    }

    /// Outputs of all parts.
    pub const fn rows(&self) -> usize {
        self.parts * self.n
    }

    /// Tiles of outputs.
    pub const fn tiles(&self) -> usize {
        self.parts * self.part_tiles()
    }

    /// Those of one part.
    const fn part_tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    /// Units along k.
    pub const fn units(&self) -> usize {
        self.k.div_ceil(UNIT)
    }

    /// Units of a group; 0 where groups are 32 values (or there are none).
    pub const fn group_units(&self) -> usize {
        match self.group {
            0 | HALF => 0,
            group => group.div_ceil(UNIT),
        }
    }

    /// Groups of a tile as stored.
    pub const fn groups(&self) -> usize {
        match self.group_units() {
            0 if self.group == 0 => 0,
            0 => 2 * self.units(),
            units => self.units().div_ceil(units),
        }
    }

    /// Bytes of one tile's codes.
    pub const fn tile_bytes(&self) -> usize {
        self.units() * self.encoding.unit_bytes()
    }

    /// Bytes of one tile's scales.
    pub const fn tile_scale_bytes(&self) -> usize {
        self.groups() * self.encoding.scale_bytes()
    }

    /// Bytes of all codes; they begin at a multiple of 16.
    pub const fn code_bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// Bytes of all scales; they begin at a multiple of 16.
    pub const fn scale_bytes(&self) -> usize {
        self.tiles() * self.tile_scale_bytes()
    }

    /// The file's row that is row `r` of `tile`; none beyond the weight.
    fn row(&self, tile: usize, r: usize) -> Option<usize> {
        let (part, tile) = (tile / self.part_tiles(), tile % self.part_tiles());
        let (row, end) = match self.gated {
            false => (tile * TILE + r, self.n),
            true => (tile * 8 + r % 8, self.n / 2),
        };
        (row < end).then_some(part * self.n + if self.gated && r >= 8 { row + end } else { row })
    }

    /// Packs some tiles of a weight: `file` holds all its rows, `codes` and `scales` exactly these tiles.
    /// False when the lengths do not go together; then nothing is written.
    #[must_use]
    pub fn pack(
        &self,
        tiles: Range<usize>,
        file: &FileRows<'_>,
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> bool {
        if !self.fits(&tiles, file.rows() * file.row_bytes(), codes.len(), scales.len()) {
            return false;
        }
        let row_bytes = self.row_bytes();
        // A weight's row as codes: two bytes a value when plain, one otherwise.
        let mut row = vec![0; self.units() * UNIT * if self.encoding == Encoding::Plain { 2 } else { 1 }];
        let mut numbers = vec![0; self.groups() * self.numbers()];
        for (i, tile) in tiles.enumerate() {
            let codes = &mut codes[i * self.tile_bytes()..][..self.tile_bytes()];
            let scales = &mut scales[i * self.tile_scale_bytes()..][..self.tile_scale_bytes()];
            codes.fill(0);
            scales.fill(0);
            for r in 0..TILE {
                let Some(from) = self.row(tile, r) else { continue };
                let file = file.row(from);
                row.fill(0);
                if self.encoding == Encoding::Plain {
                    row[..row_bytes].copy_from_slice(file);
                    place_plain(r, &row, codes);
                    continue;
                }
                numbers.fill(0);
                self.read_row(file, &mut row, &mut numbers);
                place_codes(self.encoding, r, &row, codes);
                self.place_upper(r, &row, scales);
                for (i, number) in numbers.iter().enumerate() {
                    let to = self.number_at(i, r);
                    scales[to..to + 2].copy_from_slice(&number.to_le_bytes());
                }
            }
        }
        true
    }

    /// The inverse of [`Layout::pack`] over all tiles. False when the lengths do not go together.
    #[must_use]
    pub fn unpack(&self, codes: &[u8], scales: &[u8], file: &mut [u8]) -> bool {
        if !self.fits(&(0..self.tiles()), file.len(), codes.len(), scales.len()) {
            return false;
        }
        let row_bytes = self.row_bytes();
        for tile in 0..self.tiles() {
            let codes = &codes[tile * self.tile_bytes()..][..self.tile_bytes()];
            let scales = &scales[tile * self.tile_scale_bytes()..][..self.tile_scale_bytes()];
            for r in 0..TILE {
                let Some(to) = self.row(tile, r) else { continue };
                let file = &mut file[to * row_bytes..][..row_bytes];
                if self.encoding == Encoding::Plain {
                    for (k, value) in file.chunks_exact_mut(2).enumerate() {
                        let at = plain_at(r, k);
                        value.copy_from_slice(&codes[at..at + 2]);
                    }
                    continue;
                }
                let upper = |k| self.upper(r, k, scales);
                let row: Vec<u8> = (0..self.k).map(|k| code(self.encoding, r, k, codes) | upper(k)).collect();
                let numbers = (0..self.groups() * self.numbers()).map(|i| self.number_at(i, r));
                let numbers: Vec<u16> =
                    numbers.map(|at| u16::from_le_bytes([scales[at], scales[at + 1]])).collect();
                self.write_row(&row, &numbers, file);
            }
        }
        true
    }

    fn fits(&self, tiles: &Range<usize>, file: usize, codes: usize, scales: usize) -> bool {
        let count = tiles.len();
        tiles.end <= self.tiles()
            && file == self.rows() * self.row_bytes()
            && codes == count * self.tile_bytes()
            && scales == count * self.tile_scale_bytes()
    }

    /// Where number `i` of all groups' of a row of a tile stands.
    fn number_at(&self, i: usize, r: usize) -> usize {
        let (group, i) = (i / self.numbers(), i % self.numbers());
        group * self.encoding.scale_bytes() + r % 8 * (2 * self.encoding.head()) + i * 4 + r / 8 * 2
    }

    /// Byte and bit of a code's upper bits among the scales; none in other encodings.
    fn upper_at(&self, r: usize, k: usize) -> Option<(usize, usize)> {
        let bits = self.encoding.upper_bits();
        let (half, step, lane, register, part) = place(r, k);
        let at = (step * 4 + register) * bits;
        let first = half * self.encoding.scale_bytes() + TILE * self.encoding.head();
        (bits > 0).then(|| (first + (lane * 2 + part) * bits + at / 8, at % 8))
    }

    fn place_upper(&self, r: usize, row: &[u8], scales: &mut [u8]) {
        if self.encoding.upper_bits() > 0 {
            for (k, code) in row.iter().enumerate().take(self.k) {
                if let Some((at, bit)) = self.upper_at(r, k) {
                    scales[at] |= (code >> 4) << bit;
                }
            }
        }
    }

    fn upper(&self, r: usize, k: usize, scales: &[u8]) -> u8 {
        let mask = (1 << self.encoding.upper_bits()) - 1;
        self.upper_at(r, k).map_or(0, |(at, bit)| (scales[at] >> bit & mask) << 4)
    }
}

/// `(half, step, lane, register, part)` of value `k` of row `r` of a tile.
const fn place(r: usize, k: usize) -> (usize, usize, usize, usize, usize) {
    let i = k % HALF;
    (k / HALF, i / 16, r % 8 * 4 + i / 2 % 4, r / 8 + i / 8 % 2 * 2, i % 2)
}

/// Byte of a plain value.
const fn plain_at(r: usize, k: usize) -> usize {
    k / HALF * 1024 + r / 8 * 512 + k % HALF / 8 * 128 + r % 8 * 16 + k % 8 * 2
}

/// Byte and shift of a code.
const fn code_at(encoding: Encoding, r: usize, k: usize) -> (usize, usize) {
    let (half, step, lane, register, part) = place(r, k);
    if encoding.in_nibbles() {
        let bit = part * 16 + register * 4;
        return (half * 256 + lane * 8 + step * 4 + bit / 8, bit % 8);
    }
    (half * 512 + lane * 16 + (step * 4 + register) * 2 + part, 0)
}

fn place_plain(r: usize, row: &[u8], codes: &mut [u8]) {
    // Eight values at a time: they stay together.
    for (eight, values) in row.chunks_exact(16).enumerate() {
        let at = plain_at(r, 8 * eight);
        codes[at..at + 16].copy_from_slice(values);
    }
}

fn place_codes(encoding: Encoding, r: usize, row: &[u8], codes: &mut [u8]) {
    for (k, &code) in row.iter().enumerate() {
        let (at, shift) = code_at(encoding, r, k);
        // Upper bits lie elsewhere.
        let code = if encoding.in_nibbles() { code & 15 } else { code };
        codes[at] |= code << shift;
    }
}

fn code(encoding: Encoding, r: usize, k: usize, codes: &[u8]) -> u8 {
    let (at, shift) = code_at(encoding, r, k);
    if encoding.in_nibbles() { codes[at] >> shift & 15 } else { codes[at] }
}
