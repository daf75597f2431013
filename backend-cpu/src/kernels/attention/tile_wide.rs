//! The parts of a tile that registers of sixteen lanes take: dot products with whole groups of 16 positions,
//! and weighted values of whole groups of 16 columns, for several rows at a time.
//!
//! Every lane is the chain that it is in the tile of eight lanes, so that no bit depends on it.

use super::tile::{CHUNK, Element, Join, Run, SCORES, Tile};
use crate::simd::Lanes;
use crate::simd::wide::Lanes16;

/// Lanes of a register.
const LANES: usize = 16;
/// Registers side by side: a chunk's positions, or as many columns.
const SIDE: usize = CHUNK / LANES;

/// Calls a method for groups of 6, 4, 2 rows and single ones.
macro_rules! in_groups {
    ($rows:expr, $next:ident, $call:ident, $args:tt, [$($generic:ident),*], $n:expr) => {
        while $next < $rows {
            match $rows - $next {
                6.. => in_groups!(@ $call, $args, [$($generic),*], 6, $n, $next),
                4.. => in_groups!(@ $call, $args, [$($generic),*], 4, $n, $next),
                2.. => in_groups!(@ $call, $args, [$($generic),*], 2, $n, $next),
                _ => in_groups!(@ $call, $args, [$($generic),*], 1, $n, $next),
            }
        }
    };
    (@ $call:ident, ($tile:ident $(, $arg:expr)*), [$($generic:ident),*], $r:literal, $n:expr, $next:ident) => {{
        $tile.$call::<$($generic,)* $r, $n>($next $(, $arg)*);
        $next += $r;
    }};
}

impl Tile<'_> {
    /// Dot products of all rows with whole groups of 16 positions of a run; returns how many positions those
    /// were.
    ///
    /// # Safety
    /// As for [`Tile::chunk`].
    #[inline(always)]
    pub(super) unsafe fn dots_of_whole_registers<W: Lanes16, E: Element>(&mut self, run: &Run) -> usize {
        if !W::WIDE {
            return 0;
        }
        let (mut i, rows) = (0, self.rows);
        // SAFETY: rows of the tile, whole groups of positions inside the run.
        unsafe {
            while i + LANES * SIDE <= run.len {
                let mut r = 0;
                in_groups!(rows, r, dot_wide, (self, run, i), [W, E], SIDE);
                i += LANES * SIDE;
            }
            while i + LANES <= run.len {
                let mut r = 0;
                in_groups!(rows, r, dot_wide, (self, run, i), [W, E], 1);
                i += LANES;
            }
        }
        i
    }

    /// Dot products of `R` rows with `N` groups of 16 positions.
    #[inline(always)]
    unsafe fn dot_wide<W: Lanes16, E: Element, const R: usize, const N: usize>(
        &mut self,
        row: usize,
        run: &Run,
        i: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc = [[W::splat(0.0); N]; R];
            let q = self.q.add(row * self.k_cols);
            for d in 0..self.heads.k_dim {
                let k = run.k.add((d * run.k_stride + i) * E::BYTES);
                let mut keys = [W::splat(0.0); N];
                for (n, key) in keys.iter_mut().enumerate() {
                    *key = E::load16::<W>(k.add(n * LANES * E::BYTES));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = W::splat(*q.add(r * self.k_cols + d));
                    for (a, key) in acc.iter_mut().zip(keys) {
                        *a = x.madd(key, *a);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (n, a) in acc.iter().enumerate() {
                    a.store(self.s.add((row + r) * SCORES + run.at + i + n * LANES));
                }
            }
        }
    }

    /// Weighted values of whole groups of 16 columns, of `count` rows from `first` on over positions `part`;
    /// returns how many columns those were.
    ///
    /// # Safety
    /// As for [`Tile::chunk`].
    #[inline(always)]
    pub(super) unsafe fn values_in_whole_registers<V: Lanes, W: Lanes16, E: Element>(
        &mut self,
        first: usize,
        count: usize,
        part: (usize, usize),
        runs: &[Run],
    ) -> usize {
        if !W::WIDE {
            return 0;
        }
        let (mut column, rows) = (0, first + count);
        // SAFETY: rows of the tile, whole groups of columns.
        unsafe {
            while column + LANES * SIDE <= self.v_cols {
                let mut r = first;
                in_groups!(rows, r, weigh_wide, (self, column, part, runs), [V, W, E], SIDE);
                column += LANES * SIDE;
            }
            while column + LANES <= self.v_cols {
                let mut r = first;
                in_groups!(rows, r, weigh_wide, (self, column, part, runs), [V, W, E], 1);
                column += LANES;
            }
        }
        column
    }

    /// Weighted values of `N` groups of 16 columns of `R` rows, merged into their outputs; with those of the
    /// first columns, their weights into their sums.
    #[inline(always)]
    unsafe fn weigh_wide<V: Lanes, W: Lanes16, E: Element, const R: usize, const N: usize>(
        &mut self,
        row: usize,
        column: usize,
        (a, b): (usize, usize),
        runs: &[Run],
    ) {
        let mut acc = [[W::splat(0.0); N]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let s = self.s.add(row * SCORES);
            for run in runs {
                let (from, to) = (a.max(run.at), b.min(run.at + run.len));
                for j in from..to.max(from) {
                    let v = run.v.add(((j - run.at) * run.v_stride + column) * E::BYTES);
                    let mut values = [W::splat(0.0); N];
                    for (n, value) in values.iter_mut().enumerate() {
                        *value = E::load16::<W>(v.add(n * LANES * E::BYTES));
                    }
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let e = W::splat(*s.add(r * SCORES + j));
                        for (a, value) in acc.iter_mut().zip(values) {
                            *a = e.madd(value, *a);
                        }
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                let o = self.o.add((row + r) * self.v_cols + column);
                for (n, acc) in acc.iter().enumerate() {
                    let o = o.add(n * LANES);
                    let merged = match self.joins[row + r] {
                        Join::First => *acc,
                        Join::Merge { keep, take } => {
                            W::load(o).madd(W::splat(keep), acc.mul(W::splat(take)))
                        }
                    };
                    merged.store(o);
                }
            }
            if column == 0 {
                self.sum_weights::<V, R>(row, a, b);
            }
        }
    }

    /// Adds to the sums of `R` rows those of their weights at positions `a..b`, row next to row: a sum alone
    /// waits for every addition.
    #[inline(always)]
    unsafe fn sum_weights<V: Lanes, const R: usize>(&mut self, row: usize, a: usize, b: usize) {
        let mut l = [0.0f32; R];
        for j in a..b {
            for (r, l) in l.iter_mut().enumerate() {
                // SAFETY: scores of rows of the tile.
                *l += unsafe { *self.s.add((row + r) * SCORES + j) };
            }
        }
        for (r, l) in l.into_iter().enumerate() {
            self.add_weights::<V::M>(row + r, l);
        }
    }
}
