//! `w8a8`: rows become bytes ([`engraft_core::quant::activation`]), products of bytes are summed as integers.
//!
//! Per block of 32 k and output: `acc = (dx * dw) * (sum q_x q_w) + acc`, where the sum is an integer (exact,
//! and exact as f32: at most 32 * 127 * 128) and the product of the scales rounds once. A leaf is one such
//! chain over its blocks; leaves end at blocks (`WeightFormat::grain`) and are added by the usual tree. So
//! bits depend on the row and on K alone.
//!
//! `w8a8` has the panels.

use super::chain::{LEVELS, fold};
use super::epilogue::Finish;
use super::pack::Packed;
use super::panel::PANEL;
use super::w8a8::BLOCK_BYTES;
use crate::kernels::{Floats, Machine, RawMat, over};
use crate::simd::wide::{self, Bytes16, KernelOfBytes};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::Result;
use engraft_core::quant::activation::{self, SPAN};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows that advance together at most.
const TILE: usize = 12;
/// Rows of a work item: their bytes stay in the second-level cache.
const ITEM_ROWS: usize = 48;

/// Rows as bytes and scales, in scratch. First the bytes, tile by tile: `[k / 4][R][4]` of the R rows that
/// advance together, so that one pointer leads to all of them. Then scales in f32, by tiles `[k / 32][R]`,
/// then as many offsets: -128 times the sum of a row's 32 bytes.
#[derive(Clone, Copy)]
struct Bytes {
    at: Floats,
    rows: usize,
    k: usize,
    /// Rows of the largest tile.
    most: usize,
}

/// A tile's rows at some block of k.
#[derive(Clone, Copy)]
struct Place {
    codes: *mut i8,
    scales: *mut f32,
    offsets: *mut i32,
}

impl Bytes {
    fn floats(rows: usize, k: usize) -> usize {
        (rows * k / 4).next_multiple_of(16) + 2 * rows * (k / SPAN)
    }

    /// Rows of the tile that begins at `row`.
    #[inline(always)]
    fn tile(self, row: usize) -> usize {
        match (self.rows - row).min(self.most) {
            TILE.. => TILE,
            6.. => 6,
            4 | 5 => 4,
            few => few,
        }
    }

    /// The first row of the tile that has this one.
    #[inline(always)]
    fn tile_of(self, row: usize) -> usize {
        let mut first = row / self.most * self.most;
        while first + self.tile(first) <= row {
            first += self.tile(first);
        }
        first
    }

    /// Block `b` of the tile of `count` rows from `first` on.
    ///
    /// # Safety
    /// There are such a tile and such a block.
    #[inline(always)]
    unsafe fn place(self, first: usize, count: usize, b: usize) -> Place {
        let scale = first * (self.k / SPAN) + b * count;
        // SAFETY: the caller's promise; scratch was sized by `floats`.
        unsafe {
            let scales = self.at.at((self.rows * self.k / 4).next_multiple_of(16));
            Place {
                codes: self.at.at(0).cast::<i8>().add(first * self.k + b * count * SPAN),
                scales: scales.add(scale),
                offsets: scales.add(self.rows * (self.k / SPAN) + scale).cast(),
            }
        }
    }
}

/// Rows to bytes.
struct Quantize {
    x: RawMat,
    to: Bytes,
    rows: Range<usize>,
}

impl Kernel for Quantize {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut values = [0f32; SPAN];
        let mut codes = [0i8; SPAN];
        for row in self.rows {
            let first = self.to.tile_of(row);
            let (count, r) = (self.to.tile(first), row - first);
            for b in 0..self.to.k / SPAN {
                // SAFETY: row and columns in range; these codes, scale and offset belong to this call.
                unsafe {
                    self.x.widen::<V>(row, b * SPAN, SPAN, values.as_mut_ptr());
                    let to = self.to.place(first, count, b);
                    *to.scales.add(r) = activation::encode(&values, &mut codes);
                    *to.offsets.add(r) = -128 * codes.iter().map(|code| i32::from(*code)).sum::<i32>();
                    let quads = to.codes.cast::<[i8; 4]>();
                    for (quad, four) in codes.as_chunks().0.iter().enumerate() {
                        *quads.add(quad * count + r) = *four;
                    }
                }
            }
        }
    }
}

/// Outputs of some rows and some units of panels.
struct Matmul<'a> {
    w: &'a Packed,
    x: Bytes,
    rows: Range<usize>,
    units: Range<usize>,
    finish: Finish<'a>,
}

impl KernelOfBytes for Matmul<'_> {
    #[inline(always)]
    fn run<W: Bytes16>(self) {
        const { assert!(ITEM_ROWS.is_multiple_of(W::ROWS), "tiles of an item are its own") };
        debug_assert_eq!(self.x.most, W::ROWS);
        for unit in self.units.clone() {
            let mut row = self.rows.start;
            while row < self.rows.end {
                // At most so many: what other instruction sets have is not compiled.
                row += match self.x.tile(row).min(W::ROWS) {
                    TILE => self.tile::<W, TILE>(unit, row),
                    6 => self.tile::<W, 6>(unit, row),
                    4 => self.tile::<W, 4>(unit, row),
                    3 => self.tile::<W, 3>(unit, row),
                    2 => self.tile::<W, 2>(unit, row),
                    _ => self.tile::<W, 1>(unit, row),
                };
            }
        }
    }
}

impl Matmul<'_> {
    /// Outputs of a unit and R rows from `row` on; R.
    #[inline(always)]
    fn tile<W: Bytes16, const R: usize>(&self, unit: usize, row: usize) -> usize {
        let per = self.w.panels_per_unit();
        let mut sums = MaybeUninit::<[f32; 2 * TILE * PANEL]>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        for half in 0..per {
            let panel = self.w.panel(unit * per + half);
            let mut waiting = MaybeUninit::<[f32; LEVELS * TILE * PANEL]>::uninit();
            for leaf in 0..8 {
                let (lo, hi) = (self.w.bounds[leaf] / SPAN, self.w.bounds[leaf + 1] / SPAN);
                // SAFETY: panel, codes and scales cover the blocks; `waiting` and `sums` have room for R
                // rows.
                unsafe {
                    let acc = self.chain::<W, R>(panel, row, lo..hi, self.w.starts[leaf]);
                    let total = fold::<W, R>(leaf, acc, waiting.as_mut_ptr().cast());
                    if leaf == 7 {
                        for (r, t) in total.iter().enumerate() {
                            t.store(sums.add((half * R + r) * PANEL));
                        }
                    }
                }
            }
        }
        // SAFETY: `sums` is `[halves][R][16]`, all written; these outputs belong to this call.
        unsafe { self.finish.tile::<W::Half>(unit, row, R, sums) };
        R
    }

    /// One leaf of R rows against one panel.
    ///
    /// # Safety
    /// The panel and the rows `row..row + R` cover the blocks.
    #[inline(always)]
    unsafe fn chain<W: Bytes16, const R: usize>(
        &self,
        panel: *const u8,
        row: usize,
        blocks: Range<usize>,
        start: f32,
    ) -> [W; R] {
        let mut acc = [W::splat(start); R];
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            for b in blocks {
                let at = panel.add(b * BLOCK_BYTES);
                if R == 1 {
                    // A single row waits for memory: 544 bytes a block, four blocks ahead.
                    for line in 0..9 {
                        W::prefetch(at.wrapping_add(4 * BLOCK_BYTES + line * 64));
                    }
                }
                let dw = W::load_f16(at.cast());
                let x = self.x.place(row, R, b);
                let sums = W::dots::<R>(x.codes, x.offsets, at.add(2 * PANEL));
                for r in 0..R {
                    let dx = W::splat(*x.scales.add(r));
                    acc[r] = dx.mul(dw).madd(sums[r], acc[r]);
                }
            }
        }
        acc
    }
}

/// As [`super::linear`], for weights in this format.
pub(super) fn linear(machine: &Machine, x: RawMat, w: &Packed, finish: Finish) -> Result<()> {
    /// Values of x from which on their quantization is worth the other threads.
    const SHARED: usize = 1 << 14;
    machine.with_scratch(Bytes::floats(x.rows, w.k), |at| {
        let to = Bytes { at, rows: x.rows, k: w.k, most: wide::rows_of_bytes(machine.isa) };
        let quantize = |rows| simd::run(machine.isa, machine.madd, Quantize { x, to, rows });
        if x.rows * w.k < SHARED {
            quantize(0..x.rows);
        } else {
            over(machine, x.rows, x.rows.div_ceil(4 * machine.pool.threads()), |rows, _| quantize(rows))?;
        }
        let (units, items) = (w.units(), x.rows.div_ceil(ITEM_ROWS));
        let group = (units * items / (machine.pool.threads() * 8)).clamp(1, 16);
        let groups = units.div_ceil(group);
        machine.pool.run(groups * items, |chunk, _| {
            let (item, g) = (chunk / groups, chunk % groups);
            let rows = item * ITEM_ROWS..((item + 1) * ITEM_ROWS).min(x.rows);
            let units = g * group..((g + 1) * group).min(units);
            wide::run_bytes(machine.isa, machine.madd, Matmul { w, x: to, rows, units, finish });
        })
    })
}
