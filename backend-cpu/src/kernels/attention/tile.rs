//! A block of query rows of one group of heads, walking chunks of keys.

use super::super::{RawMat, RawMatMut};
use crate::simd::wide::Lanes16;
use crate::simd::{Lanes, WIDTH};
use engraft_core::math::{self, MulAdd};
use engraft_core::params::{Heads, Scores};

/// Positions of a chunk.
pub const CHUNK: usize = 64;
/// Consecutive positions of a chunk that lie together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// First position, from the chunk's start.
    pub at: usize,
    /// Positions.
    pub len: usize,
    /// Keys: element `(d, i)` at `d * k_stride + i`.
    pub k: *const u8,
    /// Elements from one `d` to the next.
    pub k_stride: usize,
    /// Values: element `(i, d)` at `i * v_stride + d`.
    pub v: *const u8,
    /// Elements from one position to the next.
    pub v_stride: usize,
}

impl Run {
    pub const NONE: Run =
        Run { at: 0, len: 0, k: std::ptr::null(), k_stride: 0, v: std::ptr::null(), v_stride: 0 };
}

/// Queries and keys of the distances between a tile's rows and a chunk's positions `[k_dim, stride]`; null
/// where there are none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turned {
    /// Queries.
    pub q: *const f32,
    /// Keys.
    pub k: *const f32,
    /// Floats from one `d` to the next.
    pub stride: usize,
}

/// Floats per row of a tile: q, scores, output.
pub(super) fn row_floats(heads: &Heads) -> usize {
    heads.k_dim.next_multiple_of(8) + (CHUNK + 8) + heads.v_dim.next_multiple_of(8)
}

/// Lanes of the registers of `tile_wide`.
pub(super) const LANES: usize = 16;
/// Rows that share one load of keys.
const SHARE: usize = 4;
/// Vectors of value columns that are summed at once.
const WIDE: usize = 8;
/// Rows of the largest tile.
pub(super) const MOST: usize = 256;
/// Floats of a row of scores: a chunk, and room for a vector more.
pub(super) const SCORES: usize = CHUNK + 8;

/// An element type of keys and values.
pub(super) trait Element: Copy {
    /// Bytes of an element.
    const BYTES: usize;
    /// 8 elements, widened exactly.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load<V: Lanes>(p: *const u8) -> V;
    /// 16 elements, widened exactly.
    ///
    /// # Safety
    /// They lie at `p`.
    unsafe fn load16<W: Lanes16>(p: *const u8) -> W;
}

#[derive(Clone, Copy)]
pub(super) struct F32;
#[derive(Clone, Copy)]
pub(super) struct F16;
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load16<W: Lanes16>(p: *const u8) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load(p.cast()) }
    }
}
impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load16<W: Lanes16>(p: *const u8) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_f16(p.cast()) }
    }
}
impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(p: *const u8) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load16<W: Lanes16>(p: *const u8) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_bf16(p.cast()) }
    }
}

/// The largest score; any order gives it, so eight lanes look for it.
#[inline(always)]
fn largest(s: &[f32]) -> f32 {
    let mut lanes = [f32::MIN; WIDTH];
    let (whole, rest) = s.as_chunks::<WIDTH>();
    for v in whole {
        for (m, v) in lanes.iter_mut().zip(v) {
            *m = if *v > *m { *v } else { *m };
        }
    }
    lanes.iter().chain(rest).fold(f32::MIN, |m, v| if *v > m { *v } else { m })
}

/// `s[i] += bias[clamp(first + i)]`, the index clamped to the biases that there are: three ranges, of which
/// the outer two have one bias each.
#[inline(always)]
fn add_by_distance(s: &mut [f32], bias: &[f32], first: i64) {
    let within = |from: i64| from.clamp(0, s.len() as i64) as usize;
    let (near, far) = (within(-first), within(bias.len() as i64 - first));
    let (behind, rest) = s.split_at_mut(near);
    let (between, ahead) = rest.split_at_mut(far - near);
    behind.iter_mut().for_each(|v| *v += bias[0]);
    let own = &bias[bias.len().min((first + near as i64) as usize)..];
    between.iter_mut().zip(own).for_each(|(v, b)| *v += b);
    ahead.iter_mut().for_each(|v| *v += bias[bias.len() - 1]);
}

/// How a chunk's weighted values join those of the chunks before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Join {
    /// There are none.
    First,
    /// Those before times `keep`, the chunk's own times `take`.
    Merge {
        /// Of those before.
        keep: f32,
        /// Of the chunk.
        take: f32,
    },
}

/// Tile row `r` is query row `r / group`, head `r % group` of the group.
pub(super) struct Tile<'a> {
    pub(super) heads: &'a Heads,
    scores: &'a Scores,
    /// `[heads, span]`, where the scores have biases by distance.
    bias: &'a [f32],
    group: usize,
    pub(super) rows: usize,
    pub(super) k_cols: usize,
    pub(super) v_cols: usize,
    /// `[rows, k_cols]`.
    pub(super) q: *mut f32,
    /// `[rows, CHUNK + 8]`.
    pub(super) s: *mut f32,
    /// `[rows, v_cols]`.
    pub(super) o: *mut f32,
    /// Running maximum and sum of every row.
    max: [f32; MOST],
    sum: [f32; MOST],
    any: [bool; MOST],
    /// How the chunk that is taken in joins every row.
    pub(super) joins: [Join; MOST],
    first_head: usize,
    pub(super) position: usize,
    len: usize,
}

impl<'a> Tile<'a> {
    /// A tile over scratch of `row_floats` per row.
    ///
    /// # Safety
    /// `scratch` has `count * group * row_floats` floats for this tile alone.
    #[inline(always)]
    pub(super) unsafe fn new(
        scratch: *mut f32,
        count: usize,
        group: usize,
        heads: &'a Heads,
        (scores, bias): (&'a Scores, Option<&'a [f32]>),
    ) -> Self {
        let rows = count * group;
        assert!(rows <= MOST, "{rows} rows in a tile of {}", MOST);
        let (k_cols, v_cols) = (heads.k_dim.next_multiple_of(8), heads.v_dim.next_multiple_of(8));
        debug_assert_eq!(row_floats(heads), k_cols + SCORES + v_cols);
        // SAFETY: three parts of the promised scratch.
        let (s, o) = unsafe { (scratch.add(rows * k_cols), scratch.add(rows * (k_cols + SCORES))) };
        Tile {
            heads,
            scores,
            bias: bias.unwrap_or_default(),
            group,
            rows,
            k_cols,
            v_cols,
            q: scratch,
            s,
            o,
            max: [0.0; MOST],
            sum: [0.0; MOST],
            any: [false; MOST],
            joins: [Join::First; MOST],
            first_head: 0,
            position: 0,
            len: 0,
        }
    }

    /// Reads the query rows from `first` on, of key/value head `head`.
    #[inline(always)]
    pub(super) unsafe fn load<V: Lanes>(&mut self, q: RawMat, first: usize, head: usize) {
        self.first_head = head * self.group;
        for r in 0..self.rows {
            let column = (self.first_head + r % self.group) * self.heads.k_dim;
            // SAFETY: the caller sized q and the scratch.
            unsafe {
                let to = self.q.add(r * self.k_cols);
                q.widen::<V>(first + r / self.group, column, self.heads.k_dim, to);
            }
        }
    }

    /// Says where the rows stand; returns the keys `lo..hi` that any of them sees.
    #[inline(always)]
    pub(super) fn place(&mut self, position: usize, len: usize) -> (usize, usize) {
        (self.position, self.len) = (position, len);
        let (lo, _) = self.sees(0);
        let (_, hi) = self.sees(self.rows.saturating_sub(1));
        (lo, hi)
    }

    /// Keys that a tile row sees.
    #[inline(always)]
    fn sees(&self, row: usize) -> (usize, usize) {
        let p = self.position + row / self.group;
        let hi = match (self.scores.causal, self.scores.ahead) {
            (true, _) => (p + 1).min(self.len),
            (false, Some(ahead)) => (p + 1).saturating_add(ahead as usize).min(self.len),
            (false, None) => self.len,
        };
        let lo = match (self.scores.window, self.scores.chunk) {
            (Some(window), _) => (p + 1).saturating_sub(window as usize),
            (None, Some(chunk)) => p - p % (chunk as usize).max(1),
            (None, None) => 0,
        };
        (lo.min(hi), hi)
    }

    /// Takes in a chunk that begins at position `chunk`. Lines of the runs `ahead`, those of the next chunk,
    /// are asked for.
    #[inline(always)]
    pub(super) unsafe fn chunk<V: Lanes, W: Lanes16, E: Element>(
        &mut self,
        chunk: usize,
        (runs, ahead): (&[Run], &[Run]),
        distances: Option<Turned>,
    ) {
        // SAFETY: runs and rows of distances from the caller; rows below `self.rows`.
        unsafe {
            // The vectors of a run's end reach into the next run, which is written after them: ends first,
            // one run after the other.
            for run in runs {
                self.dots::<V, E>(run, if W::WIDE { run.len / LANES * LANES } else { 0 });
            }
            self.dots_of_whole_registers::<W, E>(runs, ahead);
            for run in runs {
                if let Some(distances) = distances {
                    self.add_distances::<V, E>(run, distances);
                }
            }
            for r in 0..self.rows {
                let (a, b) = self.part(r, chunk);
                if a < b {
                    self.weights::<V>(r, chunk, a, b);
                }
            }
            let mut r = 0;
            while r < self.rows {
                let part = self.part(r, chunk);
                let alike = |other: &usize| self.part(*other, chunk) == part;
                let count = (r..self.rows).take_while(alike).count();
                if part.0 < part.1 {
                    self.values_of_rows::<V, W, E>(r, count, part, (runs, ahead));
                }
                r += count;
            }
        }
    }

    /// Positions of the chunk that row `r` sees, from its start.
    #[inline(always)]
    fn part(&self, r: usize, chunk: usize) -> (usize, usize) {
        let (lo, hi) = self.sees(r);
        let (a, b) = (lo.max(chunk), hi.min(chunk + CHUNK));
        if a < b { (a - chunk, b - chunk) } else { (0, 0) }
    }

    /// Dot products of all rows with the keys of a run from `from` on.
    #[inline(always)]
    unsafe fn dots<V: Lanes, E: Element>(&mut self, run: &Run, from: usize) {
        let mut r = 0;
        while r < self.rows && from < run.len {
            // SAFETY: rows below `self.rows`, the run from the caller.
            unsafe {
                if r + SHARE <= self.rows {
                    self.dot::<V, E, SHARE>(r, run, from);
                    r += SHARE;
                } else {
                    self.dot::<V, E, 1>(r, run, from);
                    r += 1;
                }
            }
        }
    }

    /// Dot products of `R` rows with the keys of a run from `from` on.
    #[inline(always)]
    unsafe fn dot<V: Lanes, E: Element, const R: usize>(&mut self, row: usize, run: &Run, from: usize) {
        let mut i = from;
        while i < run.len {
            // SAFETY: loads of keys may pass the run's end by less than 8 (16) elements: slabs are padded;
            // scores have room for 8 more than a chunk, and two vectors are taken only where both begin
            // inside.
            unsafe {
                if i + WIDTH < run.len {
                    self.dot_vectors::<V, E, R, 2>(row, run, i);
                    i += 2 * WIDTH;
                } else {
                    self.dot_vectors::<V, E, R, 1>(row, run, i);
                    i += WIDTH;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_vectors<V: Lanes, E: Element, const R: usize, const N: usize>(
        &mut self,
        row: usize,
        run: &Run,
        i: usize,
    ) {
        // SAFETY: see `dot`.
        unsafe {
            let mut acc = [[V::splat(0.0); N]; R];
            let q = self.q.add(row * self.k_cols);
            for d in 0..self.heads.k_dim {
                let k = run.k.add((d * run.k_stride + i) * E::BYTES);
                let mut keys = [V::splat(0.0); N];
                for (n, key) in keys.iter_mut().enumerate() {
                    *key = E::load::<V>(k.add(n * WIDTH * E::BYTES));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = V::splat(*q.add(r * self.k_cols + d));
                    for (a, key) in acc.iter_mut().zip(keys) {
                        *a = x.madd(key, *a);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (n, a) in acc.iter().enumerate() {
                    a.store(self.s.add((row + r) * SCORES + run.at + i + n * WIDTH));
                }
            }
        }
    }

    /// The weights of row `r` over positions `a..b` of the chunk, in the place of its dot products, and how
    /// the chunk joins the row.
    #[inline(always)]
    unsafe fn weights<V: Lanes>(&mut self, r: usize, chunk: usize, a: usize, b: usize) {
        // SAFETY: row r's scores; positions a..b were written by `dots`.
        let s = unsafe { std::slice::from_raw_parts_mut(self.s.add(r * SCORES + a), b - a) };
        self.score::<V>(s, r, chunk + a);
        let m = largest(s);
        for v in s.iter_mut() {
            *v = math::exp::<V::M>(*v - m);
        }
        if !self.any[r] {
            (self.joins[r], self.max[r], self.any[r]) = (Join::First, m, true);
            return;
        }
        let max = if m > self.max[r] { m } else { self.max[r] };
        let (keep, take) = (math::exp::<V::M>(self.max[r] - max), math::exp::<V::M>(m - max));
        (self.joins[r], self.max[r]) = (Join::Merge { keep, take }, max);
    }

    /// Weighted values of `count` rows from `r` on, all over positions `part`, merged into their outputs and
    /// sums.
    #[inline(always)]
    unsafe fn values_of_rows<V: Lanes, W: Lanes16, E: Element>(
        &mut self,
        r: usize,
        count: usize,
        part: (usize, usize),
        (runs, ahead): (&[Run], &[Run]),
    ) {
        // SAFETY: rows and positions from the caller; columns below v_cols, a multiple of 8; value rows are
        // padded like keys.
        unsafe {
            let first = self.values_in_whole_registers::<V, W, E>(r, count, part, (runs, ahead));
            for r in r..r + count {
                let mut column = first;
                while column < self.v_cols {
                    if column + WIDE * WIDTH <= self.v_cols {
                        self.weigh::<V, E, WIDE>(r, column, part, runs);
                        column += WIDE * WIDTH;
                    } else {
                        self.weigh::<V, E, 1>(r, column, part, runs);
                        column += WIDTH;
                    }
                }
            }
        }
    }

    /// Adds to a row's sum that of its weights in the chunk.
    #[inline(always)]
    pub(super) fn add_weights<M: MulAdd>(&mut self, r: usize, l: f32) {
        self.sum[r] = match self.joins[r] {
            Join::First => l,
            Join::Merge { keep, take } => M::madd(self.sum[r], keep, l * take),
        };
    }

    /// From dot products to scores: scale, soft cap, position bias, bias by distance.
    #[inline(always)]
    fn score<V: Lanes>(&self, s: &mut [f32], r: usize, first_key: usize) {
        let scale = self.scores.scale;
        for v in s.iter_mut() {
            *v *= scale;
        }
        if let Some(cap) = self.scores.soft_cap {
            let inverse = 1.0 / cap;
            for v in s.iter_mut() {
                *v = cap * math::tanh::<V::M>(*v * inverse);
            }
        }
        if let Some(slopes) = &self.scores.alibi {
            let slope = slopes[self.first_head + r % self.group];
            let p = (self.position + r / self.group) as f32;
            for (i, v) in s.iter_mut().enumerate() {
                *v = V::M::madd(slope, (first_key + i) as f32 - p, *v);
            }
        }
        if let Some(relative) = &self.scores.relative {
            let (head, span) = (self.first_head + r % self.group, relative.span());
            let bias = &self.bias[head * span..][..span];
            let p = self.position + r / self.group;
            add_by_distance(s, bias, first_key as i64 - p as i64 + i64::from(relative.behind));
        }
    }

    /// Weighted values of `N` vectors of columns, merged into the row's output; with those of the first
    /// columns, its weights into its sum.
    #[inline(always)]
    unsafe fn weigh<V: Lanes, E: Element, const N: usize>(
        &mut self,
        r: usize,
        column: usize,
        (a, b): (usize, usize),
        runs: &[Run],
    ) {
        let mut acc = [V::splat(0.0); N];
        let mut l = 0.0;
        // SAFETY: see `values_of_rows`.
        unsafe {
            let s = self.s.add(r * SCORES);
            for run in runs {
                let (from, to) = (a.max(run.at), b.min(run.at + run.len));
                for j in from..to.max(from) {
                    let e = *s.add(j);
                    l += e;
                    let v = run.v.add(((j - run.at) * run.v_stride + column) * E::BYTES);
                    for (n, acc) in acc.iter_mut().enumerate() {
                        *acc = V::splat(e).madd(E::load::<V>(v.add(n * WIDTH * E::BYTES)), *acc);
                    }
                }
            }
            let o = self.o.add(r * self.v_cols + column);
            for (n, acc) in acc.iter().enumerate() {
                let o = o.add(n * WIDTH);
                let merged = match self.joins[r] {
                    Join::First => *acc,
                    Join::Merge { keep, take } => V::load(o).madd(V::splat(keep), acc.mul(V::splat(take))),
                };
                merged.store(o);
            }
        }
        if column == 0 {
            self.add_weights::<V::M>(r, l);
        }
    }

    /// What a row's outputs are multiplied with and divided by, when a sink joins its sum.
    #[inline(always)]
    fn closing<M: MulAdd>(&self, r: usize, sink: f32) -> (f32, f32) {
        let top = if sink > self.max[r] { sink } else { self.max[r] };
        let keep = math::exp::<M>(self.max[r] - top);
        (keep, M::madd(self.sum[r], keep, math::exp::<M>(sink - top)))
    }

    /// Divides and writes the rows.
    #[inline(always)]
    pub(super) unsafe fn store<V: Lanes>(
        &mut self,
        out: RawMatMut,
        first: usize,
        head: usize,
        sinks: Option<&[f32]>,
    ) {
        for r in 0..self.rows {
            // SAFETY: row r's output.
            let o = unsafe { std::slice::from_raw_parts_mut(self.o.add(r * self.v_cols), self.heads.v_dim) };
            let sink = sinks.map(|sinks| sinks[self.first_head + r % self.group]);
            match (self.any[r], sink) {
                (true, None) => {
                    let sum = self.sum[r];
                    o.iter_mut().for_each(|v| *v /= sum);
                }
                (true, Some(sink)) => {
                    let (keep, sum) = self.closing::<V::M>(r, sink);
                    o.iter_mut().for_each(|v| *v = *v * keep / sum);
                }
                (false, _) => o.fill(0.0),
            }
            let column = (head * self.group + r % self.group) * self.heads.v_dim;
            // SAFETY: the caller sized `out`.
            unsafe { out.narrow::<V>(first + r / self.group, column, self.heads.v_dim, o.as_ptr()) };
        }
    }
}
