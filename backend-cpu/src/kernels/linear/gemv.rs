//! One row: as many memory streams as panels in flight.
//!
//! Four panels advance together, 64 columns, leaf by leaf; the weights pass through the core once, which is
//! all the work there is. Small formats spend their time on widening, for which lanes of sixteen take half
//! the instructions and keep scales in registers; large ones wait for memory.

use super::chain::{LEVELS, fold, panels};
use super::epilogue::Finish;
use super::pack::Packed;
use super::panel::{PANEL, Source};
use super::select::with_source;
use crate::kernels::Floats;
use crate::simd::Lanes;
use crate::simd::wide::{KernelOfBoth, Lanes16};
use std::ops::Range;

/// Panels in flight.
const STREAMS: usize = 4;

/// How threads share panels: three quarters of them in long runs, since each begins with cold lines, the rest
/// by the groups in flight, so that all threads end at the same time.
pub(super) struct Runs {
    panels: usize,
    /// Panels of a long run.
    long: usize,
    /// Long runs.
    first: usize,
}

impl Runs {
    pub fn new(threads: usize, panels: usize) -> Self {
        /// A thread's panels are so many long ones.
        const PARTS: usize = 4;
        let groups = panels / (STREAMS * threads.max(1) * PARTS);
        let first = if groups > 1 { threads * (PARTS - 1) } else { 0 };
        Self { panels, long: groups * STREAMS, first }
    }

    /// All runs.
    pub fn count(&self) -> usize {
        self.first + (self.panels - self.first * self.long).div_ceil(STREAMS)
    }

    /// The panels of one.
    pub fn range(&self, run: usize) -> Range<usize> {
        let start = |run: usize| run.min(self.first) * self.long + run.saturating_sub(self.first) * STREAMS;
        start(run)..start(run + 1).min(self.panels)
    }
}

/// The outputs of some panels for one row.
pub(super) struct Gemv<'a> {
    pub w: &'a Packed,
    pub x: Floats,
    /// Panels, whole units.
    pub range: Range<usize>,
    pub finish: Finish<'a>,
}

impl KernelOfBoth for Gemv<'_> {
    #[inline(always)]
    fn run<V: Lanes, W: Lanes16>(self) {
        let mut p = self.range.start;
        let per = self.w.panels_per_unit();
        let mut sums = [0f32; STREAMS * PANEL];
        while p < self.range.end {
            // The format is looked at once per group, so that what follows compiles once and not once per
            // format.
            with_source!(self.w.format, S => self.group::<W, S>(p, &mut sums), else {});
            let some = STREAMS.min(self.range.end - p);
            for unit in 0..some / per {
                // SAFETY: `sums` holds the sums of these panels; their outputs belong to this call.
                unsafe {
                    self.finish.tile::<V>(p / per + unit, 0, 1, sums.as_mut_ptr().add(unit * per * PANEL))
                };
            }
            p += some;
        }
    }
}

impl Gemv<'_> {
    /// Sums of the panels from `p`; where fewer than four are left, the last one is repeated and ignored.
    #[inline(always)]
    fn group<W: Lanes16, S: Source>(&self, p: usize, sums: &mut [f32; STREAMS * PANEL]) {
        let last = self.range.end - 1;
        let at: [*const u8; STREAMS] = std::array::from_fn(|i| self.w.panel(last.min(p + i)));
        let mut waiting = [0f32; LEVELS * STREAMS * PANEL];
        for leaf in 0..8 {
            let mut acc = [W::splat(self.w.starts[leaf]); STREAMS];
            // SAFETY: panels and x cover 0..k; `waiting` has LEVELS * STREAMS wide vectors, `sums` STREAMS.
            unsafe {
                let k = [self.w.bounds[leaf], self.w.bounds[leaf + 1]];
                panels::<W, S, STREAMS>(self.x.at(0), &at, self.w.panel_bytes, k, &mut acc);
                let total = fold::<W, STREAMS>(leaf, acc, waiting.as_mut_ptr());
                if leaf == 7 {
                    for (i, t) in total.iter().enumerate() {
                        t.store(sums.as_mut_ptr().add(i * PANEL));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_every_panel_once_and_begin_with_groups() {
        for threads in 1..9 {
            for panels in (0..300).chain([1000, 2000, 2001]) {
                let runs = Runs::new(threads, panels);
                let mut end = 0;
                for run in 0..runs.count() {
                    let range = runs.range(run);
                    assert!(range.start == end && range.end > end, "{threads} threads, {panels} panels");
                    assert!(range.start.is_multiple_of(STREAMS), "a group is split");
                    end = range.end;
                }
                assert_eq!(end, panels);
            }
        }
    }
}
