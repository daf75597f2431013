//! Pictures that are too large for an autoencoder at once: tiles that overlap, and how their seams are
//! blended.
//!
//! Norms and attention of an autoencoder see a tile alone, so a picture of tiles is not the picture of the
//! whole. What each tile is, and every share of a blend, are those of the reference.

use crate::graph::Grid;
use std::ops::Range;

/// How tiles lie in what is read, and how what comes out is put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Length and width of a tile of what is read.
    pub size: usize,
    /// From the beginning of a tile to that of the next one.
    pub step: usize,
    /// The same step of what comes out.
    pub out_step: usize,
    /// How far what comes out of two neighbours overlaps.
    pub seam: usize,
    pub seams: Seams,
}

/// How seams are blended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seams {
    /// A tile's beginning with the end of its neighbours, which are blended already: first with that above,
    /// then with that on the left. What is as large as a tile has none.
    Neighbours,
    /// A tile with what lies there, by the share of its line times that of its column. Tiles are laid however
    /// small the picture is.
    Ramp,
}

/// A tile of what comes out, `[grid, channels]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tile {
    pub grid: Grid,
    pub values: Vec<f32>,
}

/// Where a tile lies in what is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    lines: Range<usize>,
    columns: Range<usize>,
}

impl Place {
    /// Its size.
    pub fn grid(&self) -> Grid {
        Grid { height: self.lines.len(), width: self.columns.len() }
    }

    /// Its values of a picture `[lines * width, channels]`.
    pub fn of(&self, values: &[f32], size: Grid) -> Vec<f32> {
        let channels = values.len() / size.pixels().max(1);
        let line = |y: usize| {
            let first = y * size.width;
            &values[(first + self.columns.start) * channels..(first + self.columns.end) * channels]
        };
        self.lines.clone().flat_map(|y| line(y).to_vec()).collect()
    }
}

impl Tiles {
    /// For encoding and decoding, of tiles of `side` pixels that overlap by `overlap`; none where those are
    /// no whole latents of `factor` pixels.
    pub fn both(side: usize, overlap: usize, factor: usize, seams: Seams) -> Option<(Tiles, Tiles)> {
        let whole = |pixels: usize| pixels > 0 && pixels.is_multiple_of(factor.max(1));
        if !whole(side) || !whole(overlap) || overlap >= side {
            return None;
        }
        // A ramp begins at none and ends at all of a tile.
        if seams == Seams::Ramp && overlap / factor < 2 {
            return None;
        }
        let (step, latents) = (side - overlap, |pixels: usize| pixels / factor);
        let encode = Tiles { size: side, step, out_step: latents(step), seam: latents(overlap), seams };
        let decode = Tiles { size: latents(side), step: latents(step), out_step: step, seam: overlap, seams };
        Some((encode, decode))
    }

    /// Whether a picture of this size is computed in tiles.
    pub fn are_needed(&self, size: Grid) -> bool {
        self.seams == Seams::Ramp || size.height > self.size || size.width > self.size
    }

    fn along(&self, length: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let size = self.size;
        (0..length).step_by(self.step).map(move |at| at..(at + size).min(length))
    }

    /// All tiles of a picture of this size, line by line.
    pub fn places(&self, size: Grid) -> Vec<Place> {
        let columns = self.along(size.width);
        let line =
            |lines: Range<usize>| columns.clone().map(move |columns| Place { lines: lines.clone(), columns });
        self.along(size.height).flat_map(line).collect()
    }

    /// What comes out of all tiles of a picture of this size, as one of the size `out`.
    pub fn join(&self, size: Grid, out: Grid, mut tiles: Vec<Tile>) -> Vec<f32> {
        let across = self.along(size.width).count().max(1);
        let channels = tiles.first().map_or(0, |tile| tile.values.len() / tile.grid.pixels().max(1));
        let mut all = vec![0.0; out.pixels() * channels];
        for at in 0..tiles.len() {
            let (line, column) = (at / across, at % across);
            if self.seams == Seams::Neighbours {
                let (before, tile) = tiles.split_at_mut(at);
                if line > 0 {
                    blend_lines(&before[at - across], &mut tile[0], self.seam, channels);
                }
                if column > 0 {
                    blend_columns(&before[at - 1], &mut tile[0], self.seam, channels);
                }
            }
            self.lay((line, column), &tiles[at], (&mut all, out), channels);
        }
        all
    }

    /// Puts a tile to its place.
    fn lay(
        &self,
        (line, column): (usize, usize),
        tile: &Tile,
        (all, out): (&mut [f32], Grid),
        channels: usize,
    ) {
        let (top, left) = (line * self.out_step, column * self.out_step);
        // Of blended neighbours, what is behind the step is the next one's.
        let most = if self.seams == Seams::Ramp { usize::MAX } else { self.out_step };
        let height = tile.grid.height.min(most).min(out.height.saturating_sub(top));
        let width = tile.grid.width.min(most).min(out.width.saturating_sub(left));
        for y in 0..height {
            let (from, to) = (y * tile.grid.width * channels, ((top + y) * out.width + left) * channels);
            let own = &tile.values[from..from + width * channels];
            let there = &mut all[to..to + width * channels];
            if self.seams == Seams::Neighbours {
                there.copy_from_slice(own);
                continue;
            }
            for x in 0..width {
                let share = self.ramp(line, y) * self.ramp(column, x);
                let of = x * channels..(x + 1) * channels;
                mix(&own[of.clone()], &mut there[of], 1.0 - share);
            }
        }
    }

    /// The share of a tile's line, or column, against what lies there already.
    fn ramp(&self, number: usize, at: usize) -> f64 {
        match number {
            0 => 1.0,
            _ => (at as f64 / (self.seam - 1) as f64).min(1.0),
        }
    }
}

/// `(1 - share) * other + share * own`.
fn mix(other: &[f32], own: &mut [f32], share: f64) {
    let one = |own: &f32, other: &f32| ((1.0 - share) * f64::from(*other) + share * f64::from(*own)) as f32;
    own.iter_mut().zip(other).for_each(|(own, other)| *own = one(own, other));
}

/// The first lines of a tile with the last ones of that above.
fn blend_lines(above: &Tile, tile: &mut Tile, seam: usize, channels: usize) {
    let seam = seam.min(above.grid.height).min(tile.grid.height);
    let line = tile.grid.width * channels;
    let others = above.values[above.values.len() - seam * line..].chunks(line.max(1));
    for (y, (own, other)) in tile.values.chunks_mut(line.max(1)).zip(others).enumerate() {
        mix(other, own, y as f64 / seam as f64);
    }
}

/// The first columns of a tile with the last ones of that on the left.
fn blend_columns(left: &Tile, tile: &mut Tile, seam: usize, channels: usize) {
    let seam = seam.min(left.grid.width).min(tile.grid.width);
    let (line, other_line) = (tile.grid.width * channels, left.grid.width * channels);
    let first = other_line - seam * channels;
    for (own, other) in tile.values.chunks_mut(line.max(1)).zip(left.values.chunks(other_line.max(1))) {
        for x in 0..seam {
            let of = x * channels..(x + 1) * channels;
            let others = &other[first + of.start..first + of.end];
            mix(others, &mut own[of], x as f64 / seam as f64);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_whole_latents() {
        let (encode, decode) = Tiles::both(512, 128, 8, Seams::Neighbours).unwrap();
        assert_eq!((encode.step, encode.out_step, encode.seam), (384, 48, 16));
        assert_eq!((decode.size, decode.step, decode.out_step, decode.seam), (64, 48, 384, 128));
        for (side, overlap, factor) in [(100, 25, 8), (16, 4, 8), (512, 64, 48), (0, 0, 8), (64, 64, 8)] {
            assert_eq!(Tiles::both(side, overlap, factor, Seams::Neighbours), None, "{side} {overlap}");
        }
        assert!(Tiles::both(512, 64, 64, Seams::Neighbours).is_some(), "a seam of one latent");
        assert_eq!(Tiles::both(512, 64, 64, Seams::Ramp), None, "no ramp has one step");
    }

    /// Tiles of one picture give it again when they are put together.
    #[test]
    fn what_tiles_agree_on_is_unchanged() {
        for seams in [Seams::Neighbours, Seams::Ramp] {
            let (_, decode) = Tiles::both(16, 4, 2, seams).unwrap();
            for (height, width) in [(8, 8), (9, 20), (14, 7), (23, 24)] {
                let (size, out) = (Grid { height, width }, Grid { height: 2 * height, width: 2 * width });
                let at = |y: usize, x: usize| [(100 * y + x) as f32, -(y as f32)];
                let tile = |place: &Place| {
                    let grid = place.grid().doubled();
                    let lines = 2 * place.lines.start..2 * place.lines.end;
                    let columns = 2 * place.columns.start..2 * place.columns.end;
                    let values = lines.flat_map(|y| columns.clone().flat_map(move |x| at(y, x)));
                    Tile { grid, values: values.collect() }
                };
                let tiles = decode.places(size).iter().map(tile).collect();
                let want: Vec<f32> =
                    (0..out.height).flat_map(|y| (0..out.width).flat_map(move |x| at(y, x))).collect();
                assert_eq!(decode.join(size, out, tiles), want, "{seams:?} {height} x {width}");
            }
        }
    }
}
