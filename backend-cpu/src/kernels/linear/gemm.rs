//! Several rows: register tiles of up to 6 rows by 16 columns.
//!
//! x is packed once per call as tiles `[k][rows of the tile]`. A work item is a block of row tiles (its x fits the
//! second-level cache) and some units of panels. Per panel and piece of a leaf (at most [`PIECE`] k, 16 KiB, first-level
//! cache) all tiles of the block advance; between pieces their accumulators wait in a stash, which continues the chain
//! without a rounding. Formats other than f32 are widened into a first-level scratch once per piece and block.

use super::chain::{LEVELS, decode, fold, rows};
use super::epilogue::Finish;
use super::format::{PANEL, PlainF32, Wide, with_source};
use super::pack::Packed;
use crate::kernels::{Floats, Rows};
use crate::simd::{Kernel, Lanes};
use engraft_core::mem::{Float, WeightFormat};
use std::ops::Range;

/// Most rows of a register tile.
pub(super) const TILE: usize = 6;
/// k values per pass over the tiles.
pub(super) const PIECE: usize = 256;
/// Floats of one wide tile.
const TILE_FLOATS: usize = TILE * PANEL;
/// Stash per tile: running accumulators, waiting sums, results of up to two panels.
const STASH: usize = TILE_FLOATS * (1 + LEVELS + 2);
/// Most tiles of a row block.
const BLOCK_TILES: usize = 22;

/// How rows are cut into tiles of nearly equal size.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    rows: usize,
    pub tiles: usize,
    /// Tiles per block.
    pub block: usize,
}

impl Tiling {
    pub fn new(rows: usize, k: usize) -> Tiling {
        let tiles = rows.div_ceil(TILE);
        // Half a MiB of x per block.
        let fit = ((512 << 10) / (k.max(1) * TILE * 4)).clamp(8, BLOCK_TILES);
        let blocks = tiles.div_ceil(fit);
        Tiling { rows, tiles, block: tiles.div_ceil(blocks.max(1)) }
    }

    pub fn blocks(&self) -> usize {
        self.tiles.div_ceil(self.block.max(1))
    }

    /// First row of tile `i` (`i == tiles`: all rows).
    #[inline(always)]
    pub fn start(&self, i: usize) -> usize {
        let (base, extra) = (self.rows / self.tiles, self.rows % self.tiles);
        i * base + i.min(extra)
    }

    /// Scratch floats of one thread.
    pub fn stash(&self) -> usize {
        self.block.min(self.tiles) * STASH + PIECE * PANEL
    }
}

/// Packs rows into tiles `[k][rows]`, tile i at `start(i) * k`.
pub(super) struct PackRows {
    pub x: Rows,
    pub out: Floats,
    pub tiling: Tiling,
    pub tiles: Range<usize>,
}

impl Kernel for PackRows {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let k = self.x.cols;
        let mut part = [0f32; 256];
        for tile in self.tiles {
            let (r0, r1) = (self.tiling.start(tile), self.tiling.start(tile + 1));
            let rows = r1 - r0;
            for r in 0..rows {
                let mut k0 = 0;
                while k0 < k {
                    let n = (k - k0).min(256);
                    // SAFETY: row and columns in range; the tile's floats belong to this call.
                    unsafe {
                        self.x.widen::<V>(r0 + r, k0, n, part.as_mut_ptr());
                        let out = self.out.at(r0 * k + r);
                        for (i, v) in part[..n].iter().enumerate() {
                            *out.add((k0 + i) * rows) = *v;
                        }
                    }
                    k0 += n;
                }
            }
        }
    }
}

/// Outputs of a block of row tiles and some units of panels.
pub(super) struct Gemm<'a> {
    pub w: &'a Packed,
    /// Packed rows.
    pub x: Floats,
    pub tiling: Tiling,
    pub tiles: Range<usize>,
    pub units: Range<usize>,
    /// This thread's scratch, [`Tiling::stash`] floats.
    pub stash: Floats,
    pub finish: Finish<'a>,
}

impl Kernel for Gemm<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let direct = self.w.format == WeightFormat::Plain(Float::F32);
        let per = self.w.panels_per_unit();
        // SAFETY: the stash has room for every tile of the block and one piece of weights.
        let piece = unsafe { self.stash.at(self.tiles.len() * STASH) };
        for unit in self.units.clone() {
            for half in 0..per {
                let panel = self.w.panel(unit * per + half);
                for leaf in 0..8 {
                    let (lo, hi) = (self.w.bounds[leaf], self.w.bounds[leaf + 1]);
                    let mut k0 = lo;
                    loop {
                        let k1 = hi.min(k0 + PIECE);
                        let mut at = panel;
                        if !direct {
                            // SAFETY: the panel covers the piece, the scratch has PIECE * 16 floats. The pointer is moved
                            // back so that absolute k index it; only k0..k1 are read.
                            with_source!(self.w.format, S => unsafe { decode::<V, S>(panel, k0, k1, piece) }, else {});
                            at = piece.cast::<u8>().wrapping_sub(k0 * PANEL * 4);
                        }
                        self.advance::<V>(at, (k0, k1), leaf, half, k0 == lo, k1 == hi);
                        k0 = k1;
                        if k0 >= hi {
                            break;
                        }
                    }
                }
            }
            for (i, tile) in self.tiles.clone().enumerate() {
                let (r0, r1) = (self.tiling.start(tile), self.tiling.start(tile + 1));
                // SAFETY: the results lie in this tile's stash; its outputs belong to this item.
                unsafe {
                    let sums = self.stash.at(i * STASH + (1 + LEVELS) * TILE_FLOATS);
                    self.finish.tile::<V>(unit, r0, r1 - r0, sums);
                }
            }
        }
    }
}

/// One pass of a tile over a piece of a leaf.
#[derive(Clone, Copy)]
struct Pass {
    x: *const f32,
    panel: *const u8,
    k0: usize,
    k1: usize,
    leaf: usize,
    first: bool,
    last: bool,
    stash: *mut f32,
    result: *mut f32,
}

impl Gemm<'_> {
    /// All tiles of the block over one piece.
    #[inline(always)]
    fn advance<V: Lanes>(
        &self,
        panel: *const u8,
        k: (usize, usize),
        leaf: usize,
        half: usize,
        first: bool,
        last: bool,
    ) {
        for (i, tile) in self.tiles.clone().enumerate() {
            let (r0, r1) = (self.tiling.start(tile), self.tiling.start(tile + 1));
            // SAFETY: the packed rows of the tile, its stash, and the panel cover what a pass reads and writes.
            unsafe {
                let stash = self.stash.at(i * STASH);
                let result = stash.add((1 + LEVELS) * TILE_FLOATS + half * (r1 - r0) * PANEL);
                let x = self.x.at(r0 * self.w.k);
                let pass = Pass { x, panel, k0: k.0, k1: k.1, leaf, first, last, stash, result };
                match r1 - r0 {
                    1 => pass.go::<V, 1>(),
                    2 => pass.go::<V, 2>(),
                    3 => pass.go::<V, 3>(),
                    4 => pass.go::<V, 4>(),
                    5 => pass.go::<V, 5>(),
                    _ => pass.go::<V, 6>(),
                }
            }
        }
    }
}

impl Pass {
    /// # Safety
    /// As in `Gemm::advance`, for a tile of R rows.
    #[inline(always)]
    unsafe fn go<V: Lanes, const R: usize>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc: [Wide<V>; R] = [[V::splat(0.0); 2]; R];
            if !self.first {
                for (r, a) in acc.iter_mut().enumerate() {
                    *a = [V::load(self.stash.add(r * PANEL)), V::load(self.stash.add(r * PANEL + 8))];
                }
            }
            rows::<V, PlainF32, R>(self.x, 1, R, self.panel, self.k0, self.k1, &mut acc);
            let mut out = self.stash;
            if self.last {
                acc = fold::<V, R>(self.leaf, acc, self.stash.add(TILE_FLOATS));
                if self.leaf < 7 {
                    return;
                }
                out = self.result;
            }
            for (r, a) in acc.iter().enumerate() {
                a[0].store(out.add(r * PANEL));
                a[1].store(out.add(r * PANEL + 8));
            }
        }
    }
}
