//! Attention over paged or dense keys and values, one order for all.
//!
//! **The order** ([`row_ref`] says it in scalar code). A query at absolute position p sees keys `[lo, hi)`. Positions are
//! walked in chunks of 64 absolute positions, ascending. In a chunk, over its visible positions j:
//! 1. `s_j = (ascending chain over d of madd(q_d, k_jd, acc)) * scale`; then, if asked, `s = cap * tanh(s / cap)`; then,
//!    with ALiBi, `s = madd(slope, j - p, s)`.
//! 2. `m = max s_j` (from `-f32::MAX`), `e_j = exp(s_j - m)`, `l` = ascending chain of plain additions of `e_j`,
//!    `o_d = (ascending chain of madd(e_j, v_jd, acc)) + 0`: the last addition makes a zero positive, so that positions
//!    with `e = 0` may be skipped or not.
//! 3. The first chunk that sees anything is taken as it is; each later one is merged: `M' = max(M, m)`,
//!    `a = exp(M - M')`, `b = exp(m - M')`, `L = madd(L, a, l * b)`, `O_d = madd(O_d, a, o_d * b)`, `M = M'`.
//!
//! The result is `O / L`, or 0 where nothing is visible. No infinities. Chunks depend on absolute positions alone, so
//! neither paging nor the split of a prompt nor batch mates can change a bit.
//!
//! **The work.** An item is (sequence, kv head, block of queries). Per chunk, keys and values are widened once into
//! panels; rows (query x head of the group) advance in register tiles of up to 6 through the same inner loop as
//! `linear`. Dense keys (encoders) differ only in how a chunk is loaded.

use super::kv::Kv;
use super::linear::chain_rows;
use super::linear::format::{PANEL, PlainF32};
use super::{Floats, Machine, Rows, RowsMut};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::math::{self, MulAdd};
use engraft_core::{Error, Result};

/// Positions of a chunk.
pub const CHUNK: usize = 64;
/// Rows that an item aims at.
const BLOCK_ROWS: usize = 48;
/// Rows of a register tile.
const TILE: usize = 6;

/// What a query sees and how scores are made.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Query heads, a multiple of the kv heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub k_dim: usize,
    /// Width of a value.
    pub v_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Keys up to the query's own position, or all.
    pub causal: bool,
    /// At most this many keys up to the query's position.
    pub window: Option<u32>,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// ALiBi slope of each query head.
    pub alibi: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Visible keys `[lo, hi)` of a query at position p of a sequence with `len` keys.
    #[inline(always)]
    pub fn visible(&self, p: usize, len: usize) -> (usize, usize) {
        let hi = if self.causal { len.min(p + 1) } else { len };
        let lo = self.window.map_or(0, |w| (p + 1).saturating_sub(w as usize));
        (lo.min(hi), hi)
    }

    /// The score of a dot product at distance `j - p`.
    #[inline(always)]
    fn score<M: MulAdd>(&self, dot: f32, slope: f32, distance: f32) -> f32 {
        let s = dot * self.scale;
        let s = if let Some(cap) = self.softcap { cap * math::tanh::<M>(s / cap) } else { s };
        if self.alibi.is_some() { M::madd(slope, distance, s) } else { s }
    }
}

/// Where keys and values lie.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// Pages: sequence s uses row `slots[s]` of `table` (`[slots, max_pages]`).
    Paged {
        /// The layer's slab.
        kv: Kv,
        /// Page numbers.
        table: &'a [u32],
        /// Row length of the table.
        max_pages: usize,
        /// Table row of each sequence.
        slots: &'a [u32],
    },
    /// Rows `[keys, kv_heads * dim]`; sequence s has rows `cu_k[s]..cu_k[s + 1]`.
    Dense {
        /// Keys.
        k: Rows,
        /// Values.
        v: Rows,
        /// Row offsets.
        cu_k: &'a [u32],
    },
}

/// The contract for one query and head: `q` of `k_dim`; `k(j, d)` and `v(j, d)` give keys and values; `visible` is `[lo, hi)`.
pub fn row_ref<M: MulAdd>(
    a: &Attention,
    q: &[f32],
    k: impl Fn(usize, usize) -> f32,
    v: impl Fn(usize, usize) -> f32,
    position: usize,
    slope: f32,
    visible: (usize, usize),
) -> Vec<f32> {
    let (lo, hi) = visible;
    let mut total: Option<(f32, f32, Vec<f32>)> = None;
    for chunk in 0..hi.div_ceil(CHUNK) {
        let range = lo.max(chunk * CHUNK)..hi.min((chunk + 1) * CHUNK);
        if range.is_empty() {
            continue;
        }
        let s: Vec<f32> = range
            .clone()
            .map(|j| {
                let dot = q.iter().enumerate().fold(0.0, |acc, (d, q)| M::madd(*q, k(j, d), acc));
                a.score::<M>(dot, slope, (j as i64 - position as i64) as f32)
            })
            .collect();
        let m = s.iter().fold(-f32::MAX, |m, s| if *s > m { *s } else { m });
        let e: Vec<f32> = s.iter().map(|s| math::exp::<M>(s - m)).collect();
        let l = e.iter().fold(0.0, |l, e| l + e);
        let o: Vec<f32> = (0..a.v_dim)
            .map(|d| range.clone().zip(&e).fold(0.0, |acc, (j, e)| M::madd(*e, v(j, d), acc)) + 0.0)
            .collect();
        total = Some(match total {
            None => (m, l, o),
            Some((tm, tl, to)) => {
                let top = if m > tm { m } else { tm };
                let (x, y) = (math::exp::<M>(tm - top), math::exp::<M>(m - top));
                let o = to.iter().zip(&o).map(|(t, o)| M::madd(*t, x, o * y)).collect();
                (top, M::madd(tl, x, l * y), o)
            }
        });
    }
    total.map_or(vec![0.0; a.v_dim], |(_, l, o)| o.iter().map(|o| o / l).collect())
}

/// `out[t, head * v_dim ..] = attention of q[t, head * k_dim ..]`, rounded once.
///
/// q `[tokens, heads * k_dim]`; sequence s has query rows `cu_q[s]..cu_q[s + 1]` and `kv_len[s]` keys, its query i the position
/// `kv_len[s] - queries + i`. Errors: shapes; more queries than keys under a causal mask; a page beyond the slab.
pub fn attend(
    machine: &Machine,
    a: &Attention,
    q: Rows,
    cu_q: &[u32],
    kv_len: &[u32],
    keys: Keys,
    out: RowsMut,
) -> Result<()> {
    check(a, q, cu_q, kv_len, keys, out)?;
    let group = a.heads / a.kv_heads;
    let queries = (BLOCK_ROWS / group).max(1);
    let blocks: usize = cu_q.windows(2).map(|w| ((w[1] - w[0]) as usize).div_ceil(queries)).sum();
    let plan = Plan { rows: queries * group, k_dim: a.k_dim, v_panels: a.v_dim.div_ceil(PANEL) };
    let floats = plan.floats();
    machine.with_scratch(floats * machine.pool.threads(), |s| {
        machine.pool.run(blocks * a.kv_heads, |item, thread| {
            // Later blocks see more keys: hand those out first.
            let (mut block, kv_head) = (blocks - 1 - item / a.kv_heads, item % a.kv_heads);
            for (seq, w) in cu_q.windows(2).enumerate() {
                let (first, n) = (w[0] as usize, (w[1] - w[0]) as usize);
                let own = n.div_ceil(queries);
                if block >= own {
                    block -= own;
                    continue;
                }
                let len = kv_len[seq] as usize;
                let begin = block * queries;
                // SAFETY: each thread has a part of its own.
                let scratch = Floats(unsafe { s.at(thread * floats) });
                let item = Item {
                    a,
                    plan,
                    q,
                    out,
                    keys,
                    seq,
                    kv_head,
                    group,
                    row0: first + begin,
                    queries: (n - begin).min(queries),
                    position: (len + begin).saturating_sub(n),
                    len,
                    scratch,
                };
                return simd::run(machine.isa, machine.madd, item);
            }
        })
    })
}

fn check(a: &Attention, q: Rows, cu_q: &[u32], kv_len: &[u32], keys: Keys, out: RowsMut) -> Result<()> {
    let same = |what, got, want| {
        if got == want { Ok(()) } else { Err(Error::Shape { op: "attention", what, got, want }) }
    };
    let most = |what, got: usize, want: usize| same(what, got.max(want), want);
    if a.kv_heads == 0 || a.heads == 0 {
        return same("kv heads", 0, 1);
    }
    same("heads modulo kv heads", a.heads % a.kv_heads, 0)?;
    same("columns of q", q.cols, a.heads * a.k_dim)?;
    same("columns of the output", out.cols, a.heads * a.v_dim)?;
    same("rows of the output", out.rows, q.rows)?;
    same("offsets of queries", cu_q.len(), kv_len.len() + 1)?;
    same("slopes", a.alibi.map_or(a.heads, <[f32]>::len), a.heads)?;
    for (w, len) in cu_q.windows(2).zip(kv_len) {
        most("query offset", w[0] as usize, w[1] as usize)?;
        most("query offset", w[1] as usize, q.rows)?;
        if a.causal {
            most("queries of a sequence", (w[1] - w[0]) as usize, *len as usize)?;
        }
    }
    match keys {
        Keys::Paged { kv, table, max_pages, slots } => {
            let s = kv.shape;
            same("kv heads of the slab", s.kv_heads, a.kv_heads)?;
            same("key width of the slab", s.k_dim, a.k_dim)?;
            same("value width of the slab", s.v_dim, a.v_dim)?;
            same("slots", slots.len(), kv_len.len())?;
            for (slot, len) in slots.iter().zip(kv_len) {
                let pages = (*len as usize).div_ceil(s.page_size);
                most("pages of a sequence", pages, max_pages)?;
                most("page table rows", (*slot as usize + 1) * max_pages, table.len())?;
                for p in &table[*slot as usize * max_pages..][..pages] {
                    most("page", *p as usize + 1, s.pages)?;
                }
            }
        }
        Keys::Dense { k, v, cu_k } => {
            same("columns of k", k.cols, a.kv_heads * a.k_dim)?;
            same("columns of v", v.cols, a.kv_heads * a.v_dim)?;
            same("offsets of keys", cu_k.len(), kv_len.len() + 1)?;
            for (w, len) in cu_k.windows(2).zip(kv_len) {
                same("keys of a sequence", (w[1] as usize).wrapping_sub(w[0] as usize), *len as usize)?;
                most("key offset", w[1] as usize, k.rows.min(v.rows))?;
            }
        }
    }
    Ok(())
}

/// Sizes of an item's scratch.
#[derive(Clone, Copy)]
struct Plan {
    rows: usize,
    k_dim: usize,
    v_panels: usize,
}

impl Plan {
    fn v_width(&self) -> usize {
        self.v_panels * PANEL
    }

    fn floats(&self) -> usize {
        let rows = self.rows * (self.k_dim + self.v_width() + 2) + TILE * (CHUNK + self.v_width());
        (rows + CHUNK * (self.k_dim + self.v_width())).next_multiple_of(16) + 16 * 7
    }
}

/// One unit of work and its operands.
struct Item<'a> {
    a: &'a Attention<'a>,
    plan: Plan,
    q: Rows,
    out: RowsMut,
    keys: Keys<'a>,
    seq: usize,
    kv_head: usize,
    group: usize,
    /// First query row.
    row0: usize,
    queries: usize,
    /// Absolute position of the first query.
    position: usize,
    len: usize,
    scratch: Floats,
}

/// The parts of the scratch; r counts (query, head of the group).
struct Parts<'s> {
    /// `[rows][k_dim]`.
    q: &'s mut [f32],
    /// `[rows][v width]`.
    total: &'s mut [f32],
    /// `[rows]` maxima, then `[rows]` sums; a sum of 0 means nothing seen yet.
    state: &'s mut [f32],
    /// `[TILE][CHUNK]` scores.
    scores: &'s mut [f32],
    /// `[TILE][v width]`: o of the chunk.
    part: &'s mut [f32],
    /// `[CHUNK / 16][k_dim][16]`.
    keys: &'s mut [f32],
    /// `[v panels][CHUNK][16]`.
    values: &'s mut [f32],
}

impl Kernel for Item<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let mut parts = self.parts();
        let rows = self.queries * self.group;
        let (kd, vw) = (self.plan.k_dim, self.plan.v_width());
        for r in 0..rows {
            let head = self.kv_head * self.group + r % self.group;
            // SAFETY: row and head in range; room for k_dim.
            unsafe {
                self.q.widen::<V>(self.row0 + r / self.group, head * kd, kd, parts.q[r * kd..].as_mut_ptr())
            };
        }
        parts.state.fill(0.0);
        parts.total.fill(0.0);
        let (lo, _) = self.a.visible(self.position, self.len);
        let (_, hi) = self.a.visible(self.position + self.queries - 1, self.len);
        for chunk in lo / CHUNK..hi.div_ceil(CHUNK) {
            self.load::<V>(chunk, &mut parts);
            let tiles = rows.div_ceil(TILE);
            for tile in 0..tiles {
                let (r0, r1) = (tile * rows / tiles, (tile + 1) * rows / tiles);
                match r1 - r0 {
                    1 => self.tile::<V, 1>(r0, chunk, &mut parts),
                    2 => self.tile::<V, 2>(r0, chunk, &mut parts),
                    3 => self.tile::<V, 3>(r0, chunk, &mut parts),
                    4 => self.tile::<V, 4>(r0, chunk, &mut parts),
                    5 => self.tile::<V, 5>(r0, chunk, &mut parts),
                    _ => self.tile::<V, 6>(r0, chunk, &mut parts),
                }
            }
        }
        let vd = self.a.v_dim;
        for r in 0..rows {
            let l = parts.state[self.plan.rows + r];
            let o = &mut parts.total[r * vw..][..vd];
            // Nothing seen: the zeros stand. (A NaN is not 0.)
            if l != 0.0 {
                o.iter_mut().for_each(|o| *o /= l);
            }
            let head = self.kv_head * self.group + r % self.group;
            // SAFETY: row and head in range, and this item's alone.
            unsafe { self.out.narrow::<V>(self.row0 + r / self.group, head * vd, vd, o.as_ptr()) };
        }
    }
}

impl Item<'_> {
    #[inline(always)]
    fn parts(&self) -> Parts<'static> {
        let mut at = 0;
        let mut take = |n: usize| {
            let start = at;
            at += n.next_multiple_of(16);
            // SAFETY: `Plan::floats` counts all parts, each rounded up to 16; parts do not overlap, and the scratch outlives
            // the item, which is the only holder.
            unsafe { std::slice::from_raw_parts_mut(self.scratch.at(start), n) }
        };
        let Plan { rows, k_dim, .. } = self.plan;
        let vw = self.plan.v_width();
        Parts {
            keys: take(CHUNK * k_dim),
            values: take(CHUNK * vw),
            scores: take(TILE * CHUNK),
            part: take(TILE * vw),
            total: take(rows * vw),
            q: take(rows * k_dim),
            state: take(rows * 2),
        }
    }

    /// Widens a chunk's keys and values; positions beyond the sequence are zero.
    #[inline(always)]
    fn load<V: Lanes>(&self, chunk: usize, parts: &mut Parts) {
        let base = chunk * CHUNK;
        let n = CHUNK.min(self.len - base);
        let kd = self.plan.k_dim;
        if n < CHUNK {
            parts.keys.fill(0.0);
            parts.values.fill(0.0);
        }
        let (keys, values) = (parts.keys.as_mut_ptr(), parts.values.as_mut_ptr());
        let mut j = 0;
        while j < n {
            // SAFETY: positions j.. below n lie in this sequence's pages or rows (checked by `attend`); targets as sized.
            unsafe {
                match self.keys {
                    Keys::Paged { kv, table, max_pages, slots } => {
                        let size = kv.shape.page_size;
                        let page = table[slots[self.seq] as usize * max_pages + (base + j) / size] as usize;
                        let slot = page * size + (base + j) % size;
                        let run = kv.run_length(slot).min(n - j).min(PANEL - j % PANEL);
                        for d in 0..kd {
                            let to = keys.add((j / PANEL * kd + d) * PANEL + j % PANEL);
                            kv.keys::<V>(slot, self.kv_head, d, run, to);
                        }
                        for p in 0..self.plan.v_panels {
                            kv.values::<V>(slot, self.kv_head, p, run, values.add((p * CHUNK + j) * PANEL));
                        }
                        j += run;
                    }
                    Keys::Dense { k, v, cu_k } => {
                        let row = cu_k[self.seq] as usize + base + j;
                        let mut part = [0f32; PANEL];
                        for d in (0..kd).step_by(PANEL) {
                            let m = (kd - d).min(PANEL);
                            k.widen::<V>(row, self.kv_head * kd + d, m, part.as_mut_ptr());
                            for (i, x) in part[..m].iter().enumerate() {
                                *keys.add((j / PANEL * kd + d + i) * PANEL + j % PANEL) = *x;
                            }
                        }
                        let vd = self.a.v_dim;
                        for p in 0..self.plan.v_panels {
                            let m = (vd - p * PANEL).min(PANEL);
                            let to = values.add((p * CHUNK + j) * PANEL);
                            v.widen::<V>(row, self.kv_head * vd + p * PANEL, m, to);
                            std::slice::from_raw_parts_mut(to, PANEL)[m..].fill(0.0);
                        }
                        j += 1;
                    }
                }
            }
        }
    }

    /// Visible range of row r inside the chunk at `base`, relative to it.
    #[inline(always)]
    fn span(&self, r: usize, base: usize) -> (usize, usize) {
        let (lo, hi) = self.a.visible(self.position + r / self.group, self.len);
        (lo.clamp(base, base + CHUNK) - base, hi.clamp(base, base + CHUNK) - base)
    }

    /// R rows from r0 against one chunk, merged into their totals.
    #[inline(always)]
    fn tile<V: Lanes, const R: usize>(&self, r0: usize, chunk: usize, parts: &mut Parts) {
        let base = chunk * CHUNK;
        let spans: [(usize, usize); R] = std::array::from_fn(|i| self.span(r0 + i, base));
        let first = spans.iter().filter(|s| s.0 < s.1).map(|s| s.0).min().unwrap_or(0);
        let last = spans.iter().filter(|s| s.0 < s.1).map(|s| s.1).max().unwrap_or(0);
        if first >= last {
            return;
        }
        let (kd, vw) = (self.plan.k_dim, self.plan.v_width());
        for panel in first / PANEL..last.div_ceil(PANEL) {
            let mut acc = [[V::splat(0.0); 2]; R];
            // SAFETY: R rows of q, one key panel of k_dim, a tile of scores.
            unsafe {
                let key = parts.keys.as_ptr().add(panel * kd * PANEL).cast();
                chain_rows::<V, PlainF32, R>(parts.q.as_ptr().add(r0 * kd), kd, 1, key, 0, kd, &mut acc);
                for (r, a) in acc.iter().enumerate() {
                    let to = parts.scores.as_mut_ptr().add(r * CHUNK + panel * PANEL);
                    a[0].store(to);
                    a[1].store(to.add(8));
                }
            }
        }
        let mut maxima = [0f32; R];
        for (r, span) in spans.iter().enumerate() {
            maxima[r] = self.weigh::<V::M>(r0 + r, base, *span, &mut parts.scores[r * CHUNK..][..CHUNK]);
        }
        let mut sums = [0f32; R];
        for j in first..last {
            for (r, l) in sums.iter_mut().enumerate() {
                *l += parts.scores[r * CHUNK + j];
            }
        }
        for panel in 0..self.plan.v_panels {
            let mut acc = [[V::splat(0.0); 2]; R];
            // SAFETY: R rows of weights, one value panel of 64 positions, a tile of o.
            unsafe {
                let value = parts.values.as_ptr().add(panel * CHUNK * PANEL).cast();
                chain_rows::<V, PlainF32, R>(parts.scores.as_ptr(), CHUNK, 1, value, first, last, &mut acc);
                for (r, a) in acc.iter().enumerate() {
                    let to = parts.part.as_mut_ptr().add(r * vw + panel * PANEL);
                    a[0].add(V::splat(0.0)).store(to);
                    a[1].add(V::splat(0.0)).store(to.add(8));
                }
            }
        }
        for (r, span) in spans.iter().enumerate() {
            if span.0 < span.1 {
                self.merge::<V::M>(r0 + r, maxima[r], sums[r], r, parts);
            }
        }
    }

    /// Turns dot products into weights `e`, 0 where invisible; the maximum.
    #[inline(always)]
    fn weigh<M: MulAdd>(&self, row: usize, base: usize, span: (usize, usize), s: &mut [f32]) -> f32 {
        let slope = self.a.alibi.map_or(0.0, |a| a[self.kv_head * self.group + row % self.group]);
        let offset = base as i64 - (self.position + row / self.group) as i64;
        let plain = self.a.softcap.is_none() && self.a.alibi.is_none();
        if plain {
            s.iter_mut().for_each(|s| *s *= self.a.scale);
        } else {
            for (j, s) in s.iter_mut().enumerate() {
                // Exact: distances are far below 2^24.
                *s = self.a.score::<M>(*s, slope, (offset as i32 + j as i32) as f32);
            }
        }
        s[..span.0].fill(-f32::MAX);
        s[span.1..].fill(-f32::MAX);
        let mut top = [-f32::MAX; 8];
        for part in s.chunks_exact(8) {
            for (t, s) in top.iter_mut().zip(part) {
                *t = if *s > *t { *s } else { *t };
            }
        }
        let m = top.iter().fold(-f32::MAX, |m, t| if *t > m { *t } else { m });
        s.iter_mut().for_each(|s| *s = math::exp::<M>(*s - m));
        s[..span.0].fill(0.0);
        s[span.1..].fill(0.0);
        m
    }

    /// Merges a chunk's (m, l, o) into the row's total.
    #[inline(always)]
    fn merge<M: MulAdd>(&self, row: usize, m: f32, l: f32, r: usize, parts: &mut Parts) {
        let vw = self.plan.v_width();
        let o = &parts.part[r * vw..][..vw];
        let total = &mut parts.total[row * vw..][..vw];
        let (tops, sums) = parts.state.split_at_mut(self.plan.rows);
        if sums[row] == 0.0 {
            (tops[row], sums[row]) = (m, l);
            total.copy_from_slice(o);
            return;
        }
        let top = if m > tops[row] { m } else { tops[row] };
        let (a, b) = (math::exp::<M>(tops[row] - top), math::exp::<M>(m - top));
        (tops[row], sums[row]) = (top, M::madd(sums[row], a, l * b));
        total.iter_mut().zip(o).for_each(|(t, o)| *t = M::madd(*t, a, o * b));
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
