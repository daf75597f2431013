//! One row: as many memory streams as panels in flight.
//!
//! Four panels advance together, 8 accumulators, leaf by leaf; the weights pass through the core once, which
//! is all the work there is. Small formats spend their time on widening, large ones wait for memory.

use super::chain::{LEVELS, fold, panels};
use super::epilogue::Finish;
use super::pack::Packed;
use super::panel::{PANEL, Source, Wide};
use super::select::with_source;
use crate::kernels::Floats;
use crate::simd::{Kernel, Lanes};
use std::ops::Range;

/// Panels in flight.
pub(super) const STREAMS: usize = 4;

/// The outputs of some panels for one row.
pub(super) struct Gemv<'a> {
    pub w: &'a Packed,
    pub x: Floats,
    /// Panels, whole units.
    pub range: Range<usize>,
    pub finish: Finish<'a>,
}

impl Kernel for Gemv<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut p = self.range.start;
        let per = self.w.panels_per_unit();
        let mut sums = [0f32; STREAMS * PANEL];
        while p < self.range.end {
            // The format is looked at once per group, so that what follows compiles once and not once per
            // format.
            with_source!(self.w.format, S => self.group::<V, S>(p, &mut sums), else {});
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
    fn group<V: Lanes, S: Source>(&self, p: usize, sums: &mut [f32; STREAMS * PANEL]) {
        let last = self.range.end - 1;
        let at: [*const u8; STREAMS] = std::array::from_fn(|i| self.w.panel(last.min(p + i)));
        let mut waiting = [0f32; LEVELS * STREAMS * PANEL];
        for leaf in 0..8 {
            let mut acc: [Wide<V>; STREAMS] = [[V::splat(self.w.starts[leaf]); 2]; STREAMS];
            // SAFETY: panels and x cover 0..k; `waiting` has LEVELS * STREAMS wide vectors, `sums` STREAMS.
            unsafe {
                panels::<V, S, STREAMS>(
                    self.x.at(0),
                    &at,
                    self.w.bounds[leaf],
                    self.w.bounds[leaf + 1],
                    &mut acc,
                );
                let total = fold::<Wide<V>, STREAMS>(leaf, acc, waiting.as_mut_ptr());
                if leaf == 7 {
                    for (i, t) in total.iter().enumerate() {
                        t[0].store(sums.as_mut_ptr().add(i * PANEL));
                        t[1].store(sums.as_mut_ptr().add(i * PANEL + 8));
                    }
                }
            }
        }
    }
}
