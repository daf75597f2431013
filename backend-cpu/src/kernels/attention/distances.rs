//! Score terms of disentangled attention: of a query and the key of a distance, and of a key and the query
//! of a distance.
//!
//! From one key to the next a row's distance grows by one, as from one row to the one before: a chunk's
//! distances are turned once for all rows of a tile, and lanes run over positions as in the first term.

use super::tile::{CHUNK, Element, Run, SCORES, Tile, Turned};
use super::{RawMat, check_factors, same};
use crate::simd::{Lanes, WIDTH};
use engraft_core::Result;
use engraft_core::params::Heads;

/// Rows for every distance `[2 * reach + 1, heads * k_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct Distances {
    /// Queries, where keys ask for them.
    pub q: Option<RawMat>,
    /// Keys, where queries ask for them.
    pub k: Option<RawMat>,
}

/// Columns of turned distances for a tile of so many rows, with room for a vector that begins at the last.
fn width(rows: usize) -> usize {
    (CHUNK + rows + WIDTH).next_multiple_of(WIDTH)
}

/// Floats that tiles of up to so many rows need.
pub(super) fn scratch(heads: &Heads, rows: usize) -> usize {
    let k_stride = heads.k_dim.next_multiple_of(WIDTH);
    2 * k_stride * width(rows) + WIDTH * k_stride
}

impl Distances {
    /// An odd number of rows, the same of both, and a key head for every query head.
    pub(super) fn check(&self, op: &'static str, heads: &Heads) -> Result<()> {
        same(op, "key heads", heads.kv_heads, heads.heads)?;
        let all = [self.q, self.k];
        let rows = all.iter().flatten().map(|of| of.rows).next().unwrap_or(1);
        for of in all.iter().flatten() {
            same(op, "rows of distances", of.rows, rows)?;
            same(op, "distances ahead and behind, and none", of.rows % 2, 1)?;
            check_factors(op, "columns of a distance", of.cols, heads.heads, heads.k_dim)?;
        }
        Ok(())
    }

    /// The distances from the rows of a tile to a chunk's positions, transposed: of row `r` and position `i`
    /// of the chunk in column `i + rows - 1 - r`.
    ///
    /// # Safety
    /// `to` has the floats of [`scratch`] for the tile's rows; the rows of distances have its heads.
    #[inline(always)]
    pub(super) unsafe fn turn<V: Lanes>(
        &self,
        tile: &Tile<'_>,
        (chunk, head): (usize, usize),
        to: *mut f32,
    ) -> Turned {
        let (k_dim, stride) = (tile.heads.k_dim, width(tile.rows));
        let k_stride = k_dim.next_multiple_of(WIDTH);
        let first = chunk as i64 - (tile.position + tile.rows - 1) as i64;
        let mut turned = [std::ptr::null(); 2];
        // SAFETY: the caller's promise: two matrices, then a few rows.
        unsafe {
            let rows = to.add(2 * k_stride * stride);
            for (i, of) in [self.q, self.k].into_iter().enumerate() {
                let Some(of) = of else { continue };
                let (out, reach) = (to.add(i * k_stride * stride), (of.rows / 2) as i64);
                for column in (0..stride).step_by(WIDTH) {
                    for n in 0..WIDTH {
                        let row = (first + (column + n) as i64).clamp(-reach, reach) + reach;
                        of.widen::<V>(row as usize, head * k_dim, k_dim, rows.add(n * k_stride));
                    }
                    for d in (0..k_dim).step_by(WIDTH) {
                        let mut some = [V::splat(0.0); WIDTH];
                        for (n, v) in some.iter_mut().enumerate() {
                            *v = V::load(rows.add(n * k_stride + d));
                        }
                        for (n, v) in V::transpose(some).into_iter().enumerate() {
                            v.store(out.add((d + n) * stride + column));
                        }
                    }
                }
                turned[i] = out.cast_const();
            }
        }
        Turned { q: turned[0], k: turned[1], stride }
    }
}

impl Tile<'_> {
    /// Adds both terms to the dot products of all rows with the keys of a run.
    ///
    /// # Safety
    /// As for [`Tile::chunk`], with the distances of this tile and chunk; dot products have been written.
    #[inline(always)]
    pub(super) unsafe fn add_distances<V: Lanes, E: Element>(&mut self, run: &Run, distances: Turned) {
        let Turned { q, k, stride } = distances;
        let k_dim = self.heads.k_dim;
        for r in 0..self.rows {
            for i in (0..run.len).step_by(WIDTH) {
                // SAFETY: as in `dot`: loads and stores may pass the run's end by less than a vector; columns
                // of distances have room for one that begins at the last.
                unsafe {
                    let at = run.at + i;
                    let column = at + self.rows - 1 - r;
                    let s = self.s.add(r * SCORES + at);
                    let mut score = V::load(s);
                    if !k.is_null() {
                        let own = self.q.add(r * self.k_cols);
                        let mut acc = V::splat(0.0);
                        for d in 0..k_dim {
                            acc = V::splat(*own.add(d)).madd(V::load(k.add(d * stride + column)), acc);
                        }
                        score = score.add(acc);
                    }
                    if !q.is_null() {
                        let mut acc = V::splat(0.0);
                        for d in 0..k_dim {
                            let key = E::load::<V>(run.k.add((d * run.k_stride + i) * E::BYTES));
                            acc = key.madd(V::load(q.add(d * stride + column)), acc);
                        }
                        score = score.add(acc);
                    }
                    score.store(s);
                }
            }
        }
    }
}
