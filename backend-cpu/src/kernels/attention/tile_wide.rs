//! The parts of a tile that registers of sixteen lanes take: dot products with whole groups of 16 positions,
//! and weighted values of whole groups of 16 columns, for several rows at a time.
//!
//! Every lane is the chain that it is in the tile of eight lanes, so that no bit depends on it.

use super::tile::{CHUNK, Element, Join, LANES, Run, SCORES, Tile};
use crate::simd::Lanes;
use crate::simd::wide::Lanes16;

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

/// Sixteen positions of a run.
#[derive(Clone, Copy)]
struct Group {
    /// Their keys.
    k: *const u8,
    /// Keys of the chunk that follows, as far behind its start; or the same again.
    ahead: *const u8,
    /// The first one, from the chunk's start.
    at: usize,
}

/// The run in the same place of the chunk that follows, where there is one.
#[inline(always)]
fn follows<'r>(runs: &'r [Run], ahead: &'r [Run], i: usize) -> &'r Run {
    match ahead.get(i) {
        Some(next) if next.len == runs[i].len => next,
        _ => &runs[i],
    }
}

impl Tile<'_> {
    /// Dot products of all rows with whole groups of 16 positions of every run. Pages are short: those of
    /// four groups advance together, since a chain alone waits for each of its multiply-adds, and the lines
    /// of the next chunk are asked for meanwhile.
    ///
    /// # Safety
    /// As for [`Tile::chunk`].
    #[inline(always)]
    pub(super) unsafe fn dots_of_whole_registers<W: Lanes16, E: Element>(
        &mut self,
        runs: &[Run],
        ahead: &[Run],
    ) {
        if !W::WIDE {
            return;
        }
        let (mut groups, mut some) =
            ([Group { k: std::ptr::null(), ahead: std::ptr::null(), at: 0 }; SIDE], 0);
        for (n, run) in runs.iter().enumerate() {
            let next = follows(runs, ahead, n);
            for i in (0..run.len / LANES * LANES).step_by(LANES) {
                let (k, ahead) = (run.k.wrapping_add(i * E::BYTES), next.k.wrapping_add(i * E::BYTES));
                groups[some] = Group { k, ahead, at: run.at + i };
                some += 1;
                if some == SIDE {
                    // SAFETY: whole groups inside their runs, which have one stride.
                    unsafe { self.dots_of_groups::<W, E, SIDE>(groups, run.k_stride) };
                    some = 0;
                }
            }
        }
        for group in &groups[..some] {
            // SAFETY: as above; runs of a chunk have one stride.
            unsafe { self.dots_of_groups::<W, E, 1>([*group], runs[0].k_stride) };
        }
    }

    /// Dot products of all rows with some groups of 16 positions.
    #[inline(always)]
    unsafe fn dots_of_groups<W: Lanes16, E: Element, const N: usize>(
        &mut self,
        groups: [Group; N],
        stride: usize,
    ) {
        let (mut r, rows) = (0, self.rows);
        // SAFETY: rows of the tile; the caller's groups.
        unsafe { in_groups!(rows, r, dot_wide, (self, groups, stride), [W, E], N) };
    }

    /// Dot products of `R` rows with `N` groups of 16 positions.
    #[inline(always)]
    unsafe fn dot_wide<W: Lanes16, E: Element, const R: usize, const N: usize>(
        &mut self,
        row: usize,
        groups: [Group; N],
        stride: usize,
    ) {
        // SAFETY: the caller's promise; what is asked for may lie anywhere.
        unsafe {
            let mut acc = [[W::splat(0.0); N]; R];
            let q = self.q.add(row * self.k_cols);
            for d in 0..self.heads.k_dim {
                let at = d * stride * E::BYTES;
                let mut keys = [W::splat(0.0); N];
                for (key, group) in keys.iter_mut().zip(&groups) {
                    *key = E::load16::<W>(group.k.add(at));
                    W::prefetch(group.ahead.wrapping_add(at));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = W::splat(*q.add(r * self.k_cols + d));
                    for (a, key) in acc.iter_mut().zip(keys) {
                        *a = x.madd(key, *a);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (a, group) in acc.iter().zip(&groups) {
                    a.store(self.s.add((row + r) * SCORES + group.at));
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
        (runs, ahead): (&[Run], &[Run]),
    ) -> usize {
        if !W::WIDE {
            return 0;
        }
        let (mut column, rows) = (0, first + count);
        // SAFETY: rows of the tile, whole groups of columns.
        unsafe {
            while column + LANES * SIDE <= self.v_cols {
                let mut r = first;
                in_groups!(rows, r, weigh_wide, (self, column, part, (runs, ahead)), [V, W, E], SIDE);
                column += LANES * SIDE;
            }
            while column + LANES <= self.v_cols {
                let mut r = first;
                in_groups!(rows, r, weigh_wide, (self, column, part, (runs, ahead)), [V, W, E], 1);
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
        (runs, ahead): (&[Run], &[Run]),
    ) {
        /// Bytes of a cache line.
        const LINE: usize = 64;
        let mut acc = [[W::splat(0.0); N]; R];
        // SAFETY: the caller's promise.
        unsafe {
            let s = self.s.add(row * SCORES);
            for (i, run) in runs.iter().enumerate() {
                let (from, to) = (a.max(run.at), b.min(run.at + run.len));
                let next = follows(runs, ahead, i);
                for j in from..to.max(from) {
                    let at = ((j - run.at) * run.v_stride + column) * E::BYTES;
                    let (v, next) = (run.v.add(at), next.v.wrapping_add(at));
                    let mut values = [W::splat(0.0); N];
                    for (n, value) in values.iter_mut().enumerate() {
                        *value = E::load16::<W>(v.add(n * LANES * E::BYTES));
                        if (n * LANES * E::BYTES).is_multiple_of(LINE) {
                            W::prefetch(next.wrapping_add(n * LANES * E::BYTES));
                        }
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
