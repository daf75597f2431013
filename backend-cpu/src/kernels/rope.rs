//! Rotary embedding in place: `a' = madd(a, cos, -(b * sin))`, `b' = madd(b, cos, a * sin)` for every pair
//! `(a, b)`.

use super::{Floats, Machine, RawMatMut, over_rows, same, whole_parts};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::math::MulAdd;
use engraft_core::params::RopeStyle;
use engraft_core::{Error, Result};

/// Tables of angles: `cos` and `sin` `[positions, pairs]`.
#[derive(Debug, Clone, Copy)]
pub struct Angles<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Rotated pairs of a head.
    pub pairs: usize,
    /// How pairs lie.
    pub style: RopeStyle,
}

impl<'a> Angles<'a> {
    /// Cosines and sines of a position, if the table has it.
    #[inline(always)]
    fn at(&self, position: u32) -> Option<(&'a [f32], &'a [f32])> {
        let from = (position as usize).checked_mul(self.pairs)?;
        let to = from.checked_add(self.pairs)?;
        Some((self.cos.get(from..to)?, self.sin.get(from..to)?))
    }
}

/// Rotates every head of `x` `[tokens, heads * width]` by the angles of its row's position; the row of a
/// position beyond the table does not turn.
pub fn rope(
    machine: &Machine,
    x: RawMatMut,
    width: usize,
    positions: &[u32],
    angles: Angles<'_>,
) -> Result<()> {
    same("rope", "positions", positions.len(), x.rows)?;
    if x.as_raw().is_empty() {
        return Ok(());
    }
    whole_parts("rope", x.cols, width)?;
    if angles.pairs > width / 2 {
        return Err(Error::Shape { op: "rope", what: "pairs of a head", got: angles.pairs, want: width / 2 });
    }
    over_rows(machine, [x.rows, x.cols], 4096, 1, |range, scratch| {
        simd::run(machine.isa, machine.madd, Part { x, width, positions, angles, range, scratch });
    })
}

struct Part<'a> {
    x: RawMatMut,
    width: usize,
    positions: &'a [u32],
    angles: Angles<'a>,
    range: std::ops::Range<usize>,
    scratch: Floats,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let cols = self.x.cols;
        for r in self.range.clone() {
            let Some((cos, sin)) = self.angles.at(self.positions[r]) else { continue };
            // SAFETY: a row of scratch, and rows of the view.
            unsafe {
                let row = self.scratch.at(0);
                self.x.as_raw().widen::<V>(r, 0, cols, row);
                for head in std::slice::from_raw_parts_mut(row, cols).chunks_exact_mut(self.width) {
                    rotate::<V::M>(head, cos, sin, self.angles.style);
                }
                self.x.narrow::<V>(r, 0, cols, row);
            }
        }
    }
}

#[inline(always)]
fn rotate<M: MulAdd>(head: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    let rotated = |a: f32, b: f32, c: f32, s: f32| (M::madd(a, c, -(b * s)), M::madd(b, c, a * s));
    match style {
        RopeStyle::Half => {
            let (first, rest) = head.split_at_mut(cos.len());
            for (((a, b), c), s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
                (*a, *b) = rotated(*a, *b, *c, *s);
            }
        }
        RopeStyle::Interleaved => {
            for ((pair, c), s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = rotated(pair[0], pair[1], *c, *s);
            }
        }
    }
}
