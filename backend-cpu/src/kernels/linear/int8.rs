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
use std::ops::Range;

/// Rows that advance together at most.
const TILE: usize = 12;
/// Rows of a work item: their bytes stay in the second-level cache.
const ITEM_ROWS: usize = 48;

/// Rows as bytes and scales, in scratch: `[rows][k]` bytes, then `[rows][k / 32]` f32 scales and as many sums
/// of bytes.
#[derive(Clone, Copy)]
struct Bytes {
    at: Floats,
    rows: usize,
    k: usize,
}

impl Bytes {
    fn floats(rows: usize, k: usize) -> usize {
        (rows * k / 4).next_multiple_of(16) + 2 * rows * (k / SPAN)
    }

    /// # Safety
    /// `row < rows`.
    #[inline(always)]
    unsafe fn codes(self, row: usize) -> *mut i8 {
        // SAFETY: the caller's promise; scratch was sized by `floats`.
        unsafe { self.at.at(0).cast::<i8>().add(row * self.k) }
    }

    /// # Safety
    /// `row < rows`.
    #[inline(always)]
    unsafe fn scales(self, row: usize) -> *mut f32 {
        // SAFETY: as above.
        unsafe { self.at.at((self.rows * self.k / 4).next_multiple_of(16) + row * (self.k / SPAN)) }
    }

    /// # Safety
    /// `row < rows`.
    #[inline(always)]
    unsafe fn sums(self, row: usize) -> *mut i32 {
        // SAFETY: as above.
        unsafe { self.scales(0).add((self.rows + row) * (self.k / SPAN)).cast() }
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
            for b in 0..self.to.k / SPAN {
                // SAFETY: row and columns in range; these codes, this scale and this sum belong to this call.
                unsafe {
                    self.x.widen::<V>(row, b * SPAN, SPAN, values.as_mut_ptr());
                    *self.to.scales(row).add(b) = activation::encode(&values, &mut codes);
                    *self.to.sums(row).add(b) = codes.iter().map(|code| i32::from(*code)).sum();
                    self.to.codes(row).add(b * SPAN).cast::<[i8; SPAN]>().write(codes);
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
        for unit in self.units.clone() {
            let mut row = self.rows.start;
            while row < self.rows.end {
                let left = (self.rows.end - row).min(W::ROWS);
                row += match left {
                    TILE.. => self.tile::<W, TILE>(unit, row),
                    6.. => self.tile::<W, 6>(unit, row),
                    4 | 5 => self.tile::<W, 4>(unit, row),
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
        let mut sums = [0f32; 2 * TILE * PANEL];
        for half in 0..per {
            let panel = self.w.panel(unit * per + half);
            let mut waiting = [0f32; LEVELS * TILE * PANEL];
            for leaf in 0..8 {
                let (lo, hi) = (self.w.bounds[leaf] / SPAN, self.w.bounds[leaf + 1] / SPAN);
                // SAFETY: panel, codes and scales cover the blocks; `waiting` and `sums` have room for R
                // rows.
                unsafe {
                    let acc = self.chain::<W, R>(panel, row, lo..hi, self.w.starts[leaf]);
                    let total = fold::<W, R>(leaf, acc, waiting.as_mut_ptr());
                    if leaf == 7 {
                        for (r, t) in total.iter().enumerate() {
                            t.store(sums.as_mut_ptr().add((half * R + r) * PANEL));
                        }
                    }
                }
            }
        }
        // SAFETY: `sums` is `[halves][R][16]`; these outputs belong to this call.
        unsafe { self.finish.tile::<W::Half>(unit, row, R, sums.as_mut_ptr()) };
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
            let codes: [*const i8; R] = std::array::from_fn(|r| self.x.codes(row + r).cast_const());
            let scales: [*const f32; R] = std::array::from_fn(|r| self.x.scales(row + r).cast_const());
            let totals: [*const i32; R] = std::array::from_fn(|r| self.x.sums(row + r).cast_const());
            for b in blocks {
                let at = panel.add(b * BLOCK_BYTES);
                if R == 1 {
                    // A single row waits for memory: 544 bytes a block, four blocks ahead.
                    for line in 0..9 {
                        W::prefetch(at.wrapping_add(4 * BLOCK_BYTES + line * 64));
                    }
                }
                let dw = W::load_f16(at.cast());
                let x: [*const i8; R] = std::array::from_fn(|r| codes[r].add(b * SPAN));
                let totals: [i32; R] = std::array::from_fn(|r| *totals[r].add(b));
                let sums = W::dots(x, totals, at.add(2 * PANEL));
                for r in 0..R {
                    let dx = W::splat(*scales[r].add(b));
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
        let to = Bytes { at, rows: x.rows, k: w.k };
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
