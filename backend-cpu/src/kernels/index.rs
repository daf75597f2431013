//! An index of keys: scores, and the choice of the best.
//!
//! Invariant: a row's scores and choice depend on its own query and the keys that it sees; keys are taken in
//! the order of their positions.

use super::{Floats, Machine, RawMat, RawMatMut, over, over_rows, same};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::math::MulAdd;
use engraft_core::{Error, Result};
use std::ops::Range;

/// Lanes of a vector.
const LANES: usize = 8;

/// What a query sees, and where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Query rows of sequence `s`: `bounds[s]..bounds[s + 1]`.
    pub bounds: &'a [u32],
    /// Its row of the page table.
    pub table_rows: &'a [u32],
    /// Its keys, this step's included.
    pub lens: &'a [u32],
    /// The page table.
    pub pages: &'a [u32],
    /// Entries of a row.
    pub stride: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// The first token row.
    pub first: usize,
    /// Keys that a query chooses.
    pub count: usize,
}

/// The keys of one query: a row of the page table, and how many there are.
#[derive(Debug, Clone, Copy)]
struct Own<'a> {
    pages: &'a [u32],
    page_size: usize,
    keys: usize,
}

impl<'a> Seen<'a> {
    /// What a token row sees, of at most so many keys; nothing outside every sequence.
    fn of(&self, row: usize, most: usize) -> Own<'a> {
        let token = self.first.saturating_add(row);
        let none = Own { pages: &[], page_size: self.page_size, keys: 0 };
        let seq = self.bounds.partition_point(|begin| *begin as usize <= token);
        let Some(seq) = seq.checked_sub(1).filter(|seq| *seq < self.lens.len()) else { return none };
        let (begin, end) = (self.bounds[seq] as usize, self.bounds[seq + 1] as usize);
        let Some(behind) = end.checked_sub(token).filter(|behind| *behind > 0) else { return none };
        // Position `len - queries + i` sees itself and all before: `len - (queries - i) + 1`.
        let seen = (self.lens[seq] as usize + 1).saturating_sub(behind).min(self.lens[seq] as usize);
        let at = (self.table_rows[seq] as usize).saturating_mul(self.stride);
        let Some(pages) = self.pages.get(at..at.saturating_add(self.stride)).filter(|_| begin <= token)
        else {
            return none;
        };
        Own { pages, page_size: self.page_size, keys: seen.min(most).min(self.stride * self.page_size) }
    }

    fn check(&self, op: &'static str) -> Result<()> {
        same(op, "bounds", self.bounds.len(), self.lens.len().saturating_add(1))?;
        same(op, "table rows", self.table_rows.len(), self.lens.len())?;
        match self.page_size > 0 && self.stride > 0 && self.count > 0 {
            true => Ok(()),
            false => Err(Error::Shape { op, what: "positions, entries or chosen keys", got: 0, want: 1 }),
        }
    }
}

impl Own<'_> {
    /// The page slot of a key.
    fn slot(&self, key: usize) -> usize {
        self.pages[key / self.page_size] as usize * self.page_size + key % self.page_size
    }
}

/// Queries, and the keys of all slots.
#[derive(Debug, Clone, Copy)]
pub struct Scored {
    /// `[tokens, heads * width]`.
    pub q: RawMat,
    /// `[tokens, heads]`.
    pub factors: RawMat,
    /// The first columns of keys, and the others.
    pub keys: [RawMat; 2],
    /// Heads.
    pub heads: usize,
    /// Factor of the products.
    pub scale: f32,
}

/// Scores of the keys that rows see: see `engraft_core::ops::IndexScores`.
pub fn scores(machine: &Machine, scored: Scored, seen: Seen<'_>, out: RawMatMut) -> Result<()> {
    const OP: &str = "index_scores";
    let Scored { q, factors, keys: [low, high], heads, .. } = scored;
    let width = low.cols + high.cols;
    seen.check(OP)?;
    same(OP, "columns of q", q.cols, heads.saturating_mul(width))?;
    same(OP, "columns of the factors", factors.cols, heads)?;
    same(OP, "rows of the factors", factors.rows, q.rows)?;
    same(OP, "rows of the second part of keys", high.rows, low.rows)?;
    if seen.first.saturating_add(out.rows) > q.rows {
        let (got, want) = (q.rows, seen.first.saturating_add(out.rows));
        return Err(Error::Shape { op: OP, what: "rows of q", got, want });
    }
    if out.as_raw().is_empty() || heads == 0 {
        return Ok(());
    }
    // Queries column by column, with heads in whole vectors; one key; products, factors and a row of scores.
    let room = heads.next_multiple_of(LANES) * (width + 2) + width + q.cols + out.cols;
    over_rows(machine, [out.rows, room], 1, 1, |range, scratch| {
        simd::run(machine.isa, machine.madd, Score { scored, seen, out, range, scratch });
    })
}

struct Score<'a> {
    scored: Scored,
    seen: Seen<'a>,
    out: RawMatMut,
    range: Range<usize>,
    scratch: Floats,
}

impl Kernel for Score<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Scored { q, factors, keys: [low, high], heads, scale } = self.scored;
        let (width, lanes) = (low.cols + high.cols, heads.next_multiple_of(LANES));
        for r in self.range.clone() {
            let own = self.seen.of(r, self.out.cols);
            if own.keys <= self.seen.count {
                continue;
            }
            // SAFETY: the parts of one row of scratch, which has room for all of them, side by side; rows of
            // q and factors are there, as is a row of keys below their number.
            unsafe {
                let queries = self.scratch.at(0);
                let key = queries.add(lanes * width);
                let dots = key.add(width);
                let weights = dots.add(lanes);
                let row = weights.add(lanes);
                let scores = row.add(q.cols);
                q.widen::<V>(self.seen.first + r, 0, q.cols, row);
                factors.widen::<V>(self.seen.first + r, 0, heads, weights);
                for d in 0..width {
                    for h in 0..lanes {
                        *queries.add(d * lanes + h) = if h < heads { *row.add(h * width + d) } else { 0.0 };
                    }
                }
                for j in 0..own.keys {
                    let slot = own.slot(j);
                    if slot >= low.rows {
                        *scores.add(j) = f32::NEG_INFINITY;
                        continue;
                    }
                    low.widen::<V>(slot, 0, low.cols, key);
                    high.widen::<V>(slot, 0, high.cols, key.add(low.cols));
                    for h in (0..lanes).step_by(LANES) {
                        let mut sum = V::splat(0.0);
                        for d in 0..width {
                            sum = V::load(queries.add(d * lanes + h)).madd(V::splat(*key.add(d)), sum);
                        }
                        sum.mul(V::splat(scale)).store(dots.add(h));
                    }
                    let mut score = 0.0;
                    for h in 0..heads {
                        let dot = *dots.add(h);
                        let dot = if dot < 0.0 { 0.0 } else { dot };
                        score = V::M::madd(*weights.add(h), dot, score);
                    }
                    *scores.add(j) = score;
                }
                self.out.narrow::<V>(r, 0, own.keys, scores);
            }
        }
    }
}

/// Words that rows write disjoint parts of.
#[derive(Clone, Copy)]
struct Words(*mut u32, usize);
// SAFETY: a pointer only; each row has words of its own.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The words of a row.
    ///
    /// # Safety
    /// There are so many rows, and this one belongs to the caller.
    unsafe fn row<'a>(self, row: usize) -> &'a mut [u32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(row * self.1), self.1) }
    }
}

/// Chooses keys by their scores: see `engraft_core::ops::IndexChoose`.
pub fn choose(
    machine: &Machine,
    scores: RawMat,
    seen: Seen<'_>,
    (chosen, counts): (&mut [u32], &mut [u32]),
) -> Result<()> {
    const OP: &str = "index_choose";
    seen.check(OP)?;
    same(OP, "counts", counts.len(), scores.rows)?;
    same(OP, "chosen slots", chosen.len(), scores.rows.saturating_mul(seen.count))?;
    let (chosen, counts) = (Words(chosen.as_mut_ptr(), seen.count), Words(counts.as_mut_ptr(), 1));
    over(machine, scores.rows, 1, |range, _| {
        for r in range {
            let own = seen.of(r, scores.cols);
            // SAFETY: both have as many rows as there are scores, and this one is this chunk's alone.
            let (chosen, count) = unsafe { (chosen.row(r), counts.row(r)) };
            // SAFETY: a row of f32 with at least as many columns as keys are seen.
            let of_keys = unsafe { std::slice::from_raw_parts(scores.row(r).cast::<f32>(), own.keys) };
            count[0] = own.keys.min(seen.count) as u32;
            chosen.fill(0);
            best(of_keys, seen.count, |place, key| chosen[place] = own.slot(key) as u32);
        }
    })
}

/// Calls `take` with places and keys, of all or of the best so many, ascending.
fn best(scores: &[f32], count: usize, mut take: impl FnMut(usize, usize)) {
    if scores.len() <= count {
        return (0..scores.len()).for_each(|key| take(key, key));
    }
    let mut sorted: Vec<u32> = scores.iter().map(|score| ordered(*score)).collect();
    let (_, least, _) = sorted.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
    let least = *least;
    let above = scores.iter().filter(|score| ordered(**score) > least).count();
    let (mut equals, mut place) = (count - above, 0);
    for (key, score) in scores.iter().map(|score| ordered(*score)).enumerate() {
        if score > least || score == least && equals > 0 {
            equals -= usize::from(score == least);
            take(place, key);
            place += 1;
        }
    }
}

/// Numbers in the order of scores; NaN is 0, zeros are one number.
fn ordered(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    match (score.is_nan(), bits >> 31) {
        (true, _) => 0,
        (_, 0) => bits | 1 << 31,
        _ => !bits,
    }
}
