//! Several rows: register tiles, of 6 rows by one panel or, with AVX-512, of 14 rows by two.
//!
//! x is packed once per call as tiles `[k][rows of the tile]`. A work item is a block of row tiles (its x
//! fits the second-level cache) and some units of panels. A tile runs through all of k while its panels pass
//! by from the second-level cache, or, where the weights are not f32 or k is long, through one [`Piece`]
//! after the other, which all tiles of the block share; what has not come to the end of its leaf waits in a
//! partial sums, which continues the chain without a rounding.

use super::chain::{LEVELS, decode, fold};
use super::epilogue::Finish;
use super::pack::Packed;
use super::panel::PANEL;
use super::pieces::{Piece, pieces};
use super::select::with_source;
use crate::kernels::{Floats, Machine, RawMat};
use crate::simd::wide::{self, Kernel16, Lanes16, Tile};
use crate::simd::{Kernel, Lanes, WIDTH};
use crate::sum::Bounds;
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::LEAVES;
use std::ops::Range;
use std::ptr::null;

/// k values of a piece of f32 weights: what one panel brings into the second-level cache stays below 256 KiB.
const DIRECT: usize = 2048;
/// k values of a piece of other weights, which are widened into 32 KiB.
const WIDENED: usize = 512;
/// Most rows of a block.
const BLOCK_ROWS: usize = 132;
/// Bytes ahead of which a row that is packed is asked for.
const PACK_AHEAD: usize = 4 * TRANSPOSE * size_of::<f32>();
/// Rows that are turned into columns at a time.
const TRANSPOSE: usize = 2 * WIDTH;

/// How rows are split into tiles of nearly equal size.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    rows: usize,
    tile: Tile,
    pub tiles: usize,
    /// Tiles per block.
    pub block: usize,
}

impl Tiling {
    pub fn new(rows: usize, k: usize, tile: Tile) -> Tiling {
        let tiles = rows.div_ceil(tile.rows);
        // Half a MiB of x per block.
        let fit = ((512 << 10) / (k.max(1) * 4)).clamp(8 * 6, BLOCK_ROWS) / tile.rows;
        let blocks = tiles.div_ceil(fit);
        Tiling { rows, tile, tiles, block: tiles.div_ceil(blocks.max(1)) }
    }

    pub fn blocks(&self) -> usize {
        self.tiles.div_ceil(self.block.max(1))
    }

    /// The tiles of a block.
    pub fn tiles_of(&self, block: usize) -> Range<usize> {
        block * self.block..((block + 1) * self.block).min(self.tiles)
    }

    /// Most rows of a block.
    pub fn block_rows(&self) -> usize {
        self.block * self.tile.rows
    }

    /// First row of tile `i` (`i == tiles`: all rows).
    #[inline(always)]
    pub fn start(&self, i: usize) -> usize {
        let (base, extra) = (self.rows / self.tiles, self.rows % self.tiles);
        i * base + i.min(extra)
    }

    /// Floats of a tile's accumulators.
    fn accumulators(&self) -> usize {
        self.tile.rows * self.tile.panels * PANEL
    }

    /// Floats that a tile keeps: running accumulators, waiting sums, results of up to two panels.
    fn keeps(&self) -> usize {
        self.accumulators() * (1 + LEVELS) + 2 * self.tile.rows * PANEL
    }

    /// Scratch floats of one thread: what its tiles keep, and widened weights.
    pub fn partials(&self) -> usize {
        self.block.min(self.tiles) * self.keeps() + self.tile.panels * WIDENED * PANEL
    }
}

/// Which rows of a matrix stand side by side in a row that is multiplied: `taps` of them, in the order of
/// `rows`. A number beyond the matrix is a row of zeros.
#[derive(Clone, Copy)]
pub struct Windows<'a> {
    /// `[rows * taps]`.
    pub rows: &'a [u32],
    /// Rows that stand side by side.
    pub taps: usize,
}

/// Packs rows into tiles `[k][rows]`, tile i at `start(i) * k`.
pub(super) struct PackRows<'a> {
    pub x: RawMat,
    /// None: the rows of x as they are.
    pub windows: Option<Windows<'a>>,
    pub out: Floats,
    pub tiling: Tiling,
    pub tiles: Range<usize>,
}

impl PackRows<'_> {
    /// The row of x that is read, if it is one.
    #[inline(always)]
    fn row(&self, r: usize, tap: usize) -> Option<usize> {
        match self.windows {
            None => Some(r),
            Some(of) => Some(of.rows[r * of.taps + tap] as usize).filter(|row| *row < self.x.rows),
        }
    }

    /// Packs what the rows of a tile read at one tap.
    #[inline(always)]
    fn tap<V: Lanes>(&self, [r0, rows]: [usize; 2], [tap, k]: [usize; 2], part: &mut Part) {
        let (zeros, cols) = ([0f32; TRANSPOSE], self.x.cols);
        let mut named = [None; TRANSPOSE];
        named.iter_mut().enumerate().take(rows).for_each(|(r, row)| *row = self.row(r0 + r, tap));
        for c in (0..cols).step_by(TRANSPOSE) {
            let n = TRANSPOSE.min(cols - c);
            // What comes of rows beyond the tile's is overwritten. A `map` of the array is a call.
            let mut from = [zeros.as_ptr(); TRANSPOSE];
            // SAFETY: rows and columns in range; the tile's floats belong to this call, see
            // `transpose_rows`.
            unsafe {
                for r in 0..rows {
                    let Some(row) = named[r] else { continue };
                    if self.x.dtype == Float::F32 && n == TRANSPOSE {
                        from[r] = self.x.row(row).cast::<f32>().add(c);
                        // Rows lie far apart: no prefetcher follows so many.
                        V::prefetch(from[r].cast::<u8>().wrapping_add(PACK_AHEAD));
                    } else {
                        self.x.widen::<V>(row, c, n, part[r].as_mut_ptr());
                        from[r] = part[r].as_ptr();
                    }
                }
                let at = tap * cols + c;
                let room = (k - at - n) * rows >= TRANSPOSE;
                transpose_rows::<V>(&from, rows, n, self.out.at(r0 * k + at * rows), room);
            }
        }
    }
}

/// Some columns of some rows.
type Part = [[f32; TRANSPOSE]; TRANSPOSE];

impl Kernel for PackRows<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let taps = self.windows.map_or(1, |of| of.taps);
        let (k, mut part) = (taps * self.x.cols, [[0f32; TRANSPOSE]; TRANSPOSE]);
        for tile in self.tiles.clone() {
            let (r0, r1) = (self.tiling.start(tile), self.tiling.start(tile + 1));
            for tap in 0..taps {
                self.tap::<V>([r0, r1 - r0], [tap, k], &mut part);
            }
        }
    }
}

/// Writes `n` columns of `rows` rows, one behind the other.
///
/// # Safety
/// Rows have [`TRANSPOSE`] floats; `out` has `n * rows`, and [`TRANSPOSE`] more if there is `room`, which are
/// written later.
#[inline(always)]
unsafe fn transpose_rows<V: Lanes>(
    from: &[*const f32; TRANSPOSE],
    rows: usize,
    n: usize,
    out: *mut f32,
    room: bool,
) {
    // SAFETY: eight rows from r and eight columns from c lie in both; `out` as promised.
    unsafe {
        if room && n == TRANSPOSE {
            // Whole vectors: what is too much is overwritten by the next column.
            for c in (0..n).step_by(WIDTH) {
                let upper = if rows > WIDTH { square::<V>(from, [WIDTH, c]) } else { [V::splat(0.0); WIDTH] };
                for (i, v) in square::<V>(from, [0, c]).into_iter().enumerate() {
                    let to = out.add((c + i) * rows);
                    v.store(to);
                    if rows > WIDTH {
                        upper[i].store(to.add(WIDTH));
                    }
                }
            }
            return;
        }
        let mut columns = [[0f32; TRANSPOSE]; TRANSPOSE];
        for r in (0..rows).step_by(WIDTH) {
            for c in (0..n).step_by(WIDTH) {
                for (i, v) in square::<V>(from, [r, c]).into_iter().enumerate() {
                    v.store(columns[c + i].as_mut_ptr().add(r));
                }
            }
        }
        for (c, column) in columns.iter().enumerate().take(n) {
            std::ptr::copy_nonoverlapping(column.as_ptr(), out.add(c * rows), rows);
        }
    }
}

/// Eight columns from `c` of the eight rows from `r`.
///
/// # Safety
/// They lie in the rows.
#[inline(always)]
unsafe fn square<V: Lanes>(from: &[*const f32; TRANSPOSE], [r, c]: [usize; 2]) -> [V; WIDTH] {
    let mut some = [V::splat(0.0); WIDTH];
    for (i, v) in some.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *v = unsafe { V::load(from[r + i].add(c)) };
    }
    V::transpose(some)
}

/// Outputs of a block of row tiles and some units of panels.
pub(super) struct Gemm<'a> {
    pub machine: &'a Machine,
    pub w: &'a Packed,
    /// Packed rows.
    pub x: Floats,
    pub tiling: Tiling,
    pub tiles: Range<usize>,
    pub units: Range<usize>,
    /// This thread's scratch, [`Tiling::partials`] floats.
    pub partials: Floats,
    pub finish: Finish<'a>,
}

impl Gemm<'_> {
    /// Computes and writes them.
    pub fn run(&self) {
        let (per, most) = (self.w.panels_per_unit(), self.tiling.tile.panels);
        let mut unit = self.units.start;
        while unit < self.units.end {
            // Two panels at once are two units, or a gate and its value.
            let units = (most / per).clamp(1, self.units.end - unit);
            let panels = unit * per..(unit + units) * per;
            let mut from = panels.start;
            while from < panels.end {
                let to = panels.end.min(from + most);
                self.sums(from..to, from - panels.start, (to == panels.end).then_some(unit..unit + units));
                from = to;
            }
            unit += units;
        }
    }

    /// Sums of up to two panels; they are the results from `place` on. Then these units are finished, if any.
    fn sums(&self, panels: Range<usize>, place: usize, done: Option<Range<usize>>) {
        let per = self.w.panels_per_unit();
        let direct = self.w.format == WeightFormat::Plain(Float::F32);
        for piece in pieces(&self.w.bounds, if direct { DIRECT } else { WIDENED }) {
            let mut at =
                [self.w.panel(panels.start), self.w.panel(panels.end - 1)].map(<*const u8>::cast::<f32>);
            if !direct {
                at = self.widened(at, panels.len(), &piece);
            }
            let ends = piece.last && piece.leaves.end == 8;
            for (i, tile) in self.tiles.clone().enumerate() {
                let (r0, r1) = (self.tiling.start(tile), self.tiling.start(tile + 1));
                let (rows, size) = (r1 - r0, self.tiling.accumulators());
                // SAFETY: the packed rows of the tile, its part of the partial sums, and the panels cover
                // what a pass reads and writes; the outputs belong to this item.
                unsafe {
                    let running = self.partials.at(i * self.tiling.keeps());
                    let waiting = running.add(size);
                    let results = waiting.add(LEVELS * size);
                    let pass = Pass {
                        ask: if ends { self.finish.place(panels.start / per, r0) } else { (null(), 0) },
                        x: self.x.at(r0 * self.w.k),
                        panels: at,
                        piece: &piece,
                        bounds: &self.w.bounds,
                        starts: &self.w.starts,
                        running,
                        waiting,
                        result: results.add(place * rows * PANEL),
                        rows,
                        count: panels.len(),
                    };
                    wide::run(self.machine.isa, self.machine.madd, pass);
                    if ends {
                        for (n, unit) in done.clone().into_iter().flatten().enumerate() {
                            let sums = results.add(n * per * rows * PANEL);
                            let last = Last { finish: &self.finish, unit, row: r0, rows, sums };
                            wide::run_loops(self.machine.isa, self.machine.madd, last);
                        }
                    }
                }
            }
        }
    }

    /// Widens a piece of panels into scratch; returns where they would begin.
    fn widened(&self, panels: [*const f32; 2], count: usize, piece: &Piece) -> [*const f32; 2] {
        // SAFETY: behind what the tiles keep the partial sums has room for a piece of every panel.
        let to = unsafe { self.partials.at(self.tiles.len() * self.tiling.keeps()) };
        let mut at = panels;
        for (n, at) in at.iter_mut().enumerate().take(count) {
            let to = to.wrapping_add(n * WIDENED * PANEL);
            let (panel, k) = (panels[n].cast(), piece.k.clone());
            wide::run(self.machine.isa, self.machine.madd, Widen { w: self.w, panel, k, to });
            *at = to.wrapping_sub(piece.k.start * PANEL);
        }
        at
    }
}

/// Widens k values of a panel to f32 at `to`.
struct Widen<'a> {
    w: &'a Packed,
    panel: *const u8,
    k: Range<usize>,
    to: *mut f32,
}

impl Kernel16 for Widen<'_> {
    #[inline(always)]
    fn run<W: Lanes16>(self) {
        let (panel, k0, k1, to) = (self.panel, self.k.start, self.k.end, self.to);
        // SAFETY: the panel covers the piece, the scratch has room for it.
        with_source!(self.w.format, S => unsafe { decode::<W, S>(panel, k0, k1, to) }, else {});
    }
}

/// What happens to a tile's sums.
struct Last<'a> {
    finish: &'a Finish<'a>,
    unit: usize,
    row: usize,
    rows: usize,
    sums: *mut f32,
}

impl Kernel for Last<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // SAFETY: `Gemm::sums` gives results of that size, and the outputs belong to its item.
        unsafe { self.finish.tile::<V>(self.unit, self.row, self.rows, self.sums) };
    }
}

/// One pass of a tile over a piece of k.
struct Pass<'a> {
    /// Where the outputs will lie (null: not yet), and bytes from row to row: they are asked for while the
    /// sums are made.
    ask: (*const u8, usize),
    x: *const f32,
    /// Of one panel twice the same.
    panels: [*const f32; 2],
    piece: &'a Piece,
    bounds: &'a Bounds,
    starts: &'a [f32; LEAVES],
    running: *mut f32,
    waiting: *mut f32,
    result: *mut f32,
    rows: usize,
    count: usize,
}

/// Calls `$pass.go::<W, R, P>()` with the tile's rows, of those that fit the registers.
macro_rules! by_rows {
    ($pass:expr, $W:ty, $P:literal, $($R:literal)*) => {
        match $pass.rows {
            // SAFETY: as the caller of `sums` says, for a tile of that many rows.
            $($R if $R <= <$W>::TILE.rows && $P <= <$W>::TILE.panels => unsafe { $pass.go::<$W, $R, $P>() },)*
            rows => debug_assert!(false, "a tile of {rows} rows"),
        }
    };
}

impl Kernel16 for Pass<'_> {
    #[inline(always)]
    fn run<W: Lanes16>(self) {
        // Null: this pass does not end the sums.
        if !self.ask.0.is_null() {
            for r in 0..self.rows {
                let row = self.ask.0.wrapping_add(r * self.ask.1);
                W::prefetch(row);
                W::prefetch(row.wrapping_add(64));
            }
        }
        match self.count {
            1 => by_rows!(self, W, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            _ => by_rows!(self, W, 2, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        }
    }
}

impl Pass<'_> {
    /// # Safety
    /// As in `Gemm::sums`, for a tile of R rows and P panels.
    #[inline(always)]
    unsafe fn go<W: Lanes16, const R: usize, const P: usize>(&self) {
        let Piece { leaves, k, first, last } = self.piece;
        for leaf in leaves.clone() {
            let (k0, k1) = match (first, last) {
                (true, true) => (self.bounds[leaf], self.bounds[leaf + 1]),
                _ => (k.start, k.end),
            };
            let mut acc = [[W::splat(self.starts[leaf]); R]; P];
            // SAFETY: the caller's promise.
            unsafe {
                if !first {
                    for (p, acc) in acc.iter_mut().enumerate() {
                        for (r, a) in acc.iter_mut().enumerate() {
                            *a = W::load(self.running.add((p * R + r) * PANEL));
                        }
                    }
                }
                self.chains::<W, R, P>(k0..k1, &mut acc);
                for (p, acc) in acc.into_iter().enumerate() {
                    let (mut acc, mut out) = (acc, self.running.add(p * R * PANEL));
                    if *last {
                        acc = fold::<W, R>(leaf, acc, self.waiting.add(p * LEVELS * R * PANEL));
                        if leaf < 7 {
                            continue;
                        }
                        out = self.result.add(p * R * PANEL);
                    }
                    for (r, a) in acc.iter().enumerate() {
                        a.store(out.add(r * PANEL));
                    }
                }
            }
        }
    }

    /// `acc[p][r] += x[r] . panel[p]` over k.
    ///
    /// # Safety
    /// As `go`.
    #[inline(always)]
    unsafe fn chains<W: Lanes16, const R: usize, const P: usize>(
        &self,
        k: Range<usize>,
        acc: &mut [[W; R]; P],
    ) {
        /// Bytes from a panel's weights to those that are asked for.
        const AHEAD: usize = 1024;
        let mut a = *acc;
        for k in k {
            let mut w = [W::splat(0.0); P];
            // SAFETY: the caller's promise; prefetches may point anywhere.
            unsafe {
                for (p, w) in w.iter_mut().enumerate() {
                    let at = self.panels[p].wrapping_add(k * PANEL);
                    W::prefetch(at.cast::<u8>().wrapping_add(AHEAD));
                    *w = W::load(at);
                }
                for r in 0..R {
                    let v = W::splat(*self.x.add(k * R + r));
                    for (a, w) in a.iter_mut().zip(w) {
                        a[r] = v.madd(w, a[r]);
                    }
                }
            }
        }
        *acc = a;
    }
}
