//! Attention, over pages and over plain rows, with one arithmetic.
//!
//! Keys are walked in chunks of 64 absolute positions, ascending. Within a chunk, over the keys that a query
//! row sees:
//!
//! ```text
//! s_j = (chain over d of madd(q_d, k_jd, acc)) * scale     soft cap: s = cap * tanh(s * (1 / cap))
//!                                                           slopes:   s = madd(slope, j - p, s)
//!                                   bias by distance: s = s + bias[clamp(j - p, -behind, ahead) + behind]
//! m = max s_j    e_j = exp(s_j - m)    l = chain of l + e_j    o_d = chain of madd(e_j, v_jd, o_d)
//! ```
//!
//! With rows of distances, `s_j` is `(((chain of q_d, k_jd) + (chain of q_d, K_ed)) + (chain of k_jd, Q_ed))
//! * scale` with `e = clamp(j - p, -reach, reach) + reach`, each chain as the first.
//!
//! The first chunk is taken as it is; later ones are merged: `M' = max(M, m)`, `a = exp(M - M')`,
//! `b = exp(m - M')`, `L = madd(L, a, l * b)`, `O = madd(O, a, o * b)`. At the end `O / L`; a row that sees
//! nothing is zero. A sink joins last: `M' = max(M, sink)`, `a = exp(M - M')`,
//! `L' = madd(L, a, exp(sink - M'))`, `O a / L'`. All chains start at +0 and ascend. So neither the batch nor
//! chunked prefill nor paging nor page order can change a bit.
//!
//! A chunk's keys come as *runs*: consecutive positions whose keys lie transposed (`[d][position]`) and whose
//! values lie as rows. Lanes run over positions for scores and over value columns for outputs, so a lane is
//! one chain. Vector loads of scores may read past a run; slabs are padded for that ([`super::kv::PAD`]), and
//! such lanes are overwritten or ignored.
//!
//! Work is split over (sequence, key/value head, block of query rows).

mod coded;
mod dense;
mod distances;
mod paged;
mod pages;
mod tile;
mod tile_wide;

pub use dense::{DenseKeys, attend_dense};
pub use distances::Distances;
pub use paged::Pages;
pub use pages::attend_paged;
pub use tile::CHUNK;

use super::{Floats, Machine, RawMat, RawMatMut, check_factors, same};
use crate::simd;
use crate::simd::wide::{self, KernelOfBoth};
use engraft_core::mem::Float;
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};
use tile::{Run, Tile, row_floats};

/// Why there is no kernel for some heads.
pub const LARGEST_GROUP: &str = "at most 256 query heads may share a key head";

/// Query heads that share a key head; none where they are too many for a tile, or share unevenly.
pub fn group(heads: &Heads) -> Option<usize> {
    let group = heads.heads.checked_div(heads.kv_heads)?;
    ((1..=tile::MOST).contains(&group) && group * heads.kv_heads == heads.heads).then_some(group)
}

/// Queries, and what they see of their keys.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[tokens, heads * k_dim]`.
    pub q: RawMat,
    /// Heads.
    pub heads: Heads,
    /// Scores and masks.
    pub scores: &'a Scores,
    /// `[heads]`: scores without a key or a value.
    pub sinks: Option<&'a [f32]>,
    /// `[heads, span]`: biases by distance, where the scores have them.
    pub bias: Option<&'a [f32]>,
    /// Queries and keys of distances, of keys that are rows of a matrix, one head for every query head.
    pub distances: Option<Distances>,
}

/// Part of a chunk: positions `from..to`, in the chunk that begins at `chunk`, of one sequence and head.
#[derive(Clone, Copy)]
struct Span {
    seq: usize,
    head: usize,
    chunk: usize,
    from: usize,
    to: usize,
}

/// The rows and keys of a sequence.
#[derive(Clone, Copy)]
struct Extent {
    /// First query row.
    first: usize,
    /// Query rows.
    rows: usize,
    /// Keys, at least as many as query rows.
    keys: usize,
}

/// Where the keys of a sequence lie.
trait Keys: Sync {
    /// Element type of keys and values.
    fn dtype(&self) -> Float;
    /// Floats of scratch per thread that `runs` needs.
    fn scratch(&self, heads: &Heads) -> usize;
    /// Query rows of one work item: a tile holds them for every head of a group.
    fn block_rows(&self) -> usize;
    /// Runs that cover a span; none where it has no keys.
    ///
    /// # Safety
    /// The span lies within its sequence's keys; `scratch` has the floats asked for and belongs to this
    /// thread.
    unsafe fn runs<V: simd::Lanes>(
        &self,
        span: Span,
        scratch: *mut f32,
        runs: &mut [Run; CHUNK],
    ) -> Option<usize>;
    /// Runs that will cover a span, so that their lines can be asked for while the chunk before is taken in;
    /// none where lanes do not read keys where they lie.
    fn ahead(&self, _: Span, _: &mut [Run; CHUNK]) -> Option<usize> {
        None
    }
    /// Rows and keys of a sequence.
    fn extent(&self, seq: usize) -> Extent;
    /// Sequences.
    fn seqs(&self) -> usize;
}

/// What all work items share.
struct Call<'a, K> {
    queries: Queries<'a>,
    group: usize,
    out: RawMatMut,
    keys: &'a K,
}

/// Query rows `bounds[s]..bounds[s + 1]` of sequence `s` lie among `rows`, and no row belongs to two
/// sequences.
fn check_bounds(op: &'static str, bounds: &[u32], rows: usize) -> Result<()> {
    if !bounds.is_sorted() {
        return Err(Error::internal(format!("{op}: bounds of sequences that do not ascend")));
    }
    let end = bounds.last().map_or(0, |end| *end as usize);
    if end > rows {
        return Err(Error::Shape { op, what: "the last bound", got: end, want: rows });
    }
    Ok(())
}

/// Queries and outputs of these heads; the size of a group.
fn check_queries(op: &'static str, queries: &Queries<'_>, out: RawMatMut) -> Result<usize> {
    let Queries { q, heads, scores, sinks, bias, distances } = queries;
    let Some(group) = group(heads) else {
        return Err(Error::Unsupported {
            op: op.into(),
            backend: "cpu".into(),
            reason: format!("{} heads over {} key heads: {LARGEST_GROUP}", heads.heads, heads.kv_heads),
        });
    };
    same(op, "rows of the output", out.rows, q.rows)?;
    check_factors(op, "columns of q", q.cols, heads.heads, heads.k_dim)?;
    check_factors(op, "columns of the output", out.cols, heads.heads, heads.v_dim)?;
    if let Some(slopes) = &scores.alibi {
        same(op, "slopes", slopes.len(), heads.heads)?;
    }
    if let Some(sinks) = sinks {
        same(op, "sinks", sinks.len(), heads.heads)?;
    }
    let span = scores.relative.map_or(0, |relative| relative.span());
    check_factors(op, "biases by distance", bias.map_or(0, <[f32]>::len), heads.heads, span)?;
    distances.as_ref().map_or(Ok(()), |distances| distances.check(op, heads))?;
    Ok(group)
}

fn attend<K: Keys>(machine: &Machine, call: &Call<'_, K>) -> Result<()> {
    let (heads, group) = (&call.queries.heads, call.group);
    let block_rows = call.keys.block_rows();
    let blocks_of = |seq| call.keys.extent(seq).rows.div_ceil(block_rows);
    let items: usize = (0..call.keys.seqs()).map(blocks_of).sum();
    if items == 0 {
        return Ok(());
    }
    // A tile's rows are (query row, head of the group) pairs; the scratch of a thread holds one tile.
    let of_distances = call.queries.distances.map_or(0, |_| distances::scratch(heads, block_rows));
    let per_thread = (block_rows * group) * row_floats(heads) + call.keys.scratch(heads) + of_distances + 64;
    let threads = machine.pool.threads();
    machine.with_scratch(per_thread * threads, |scratch| {
        machine.pool.run(items * heads.kv_heads, |item, thread| {
            let (mut block, head) = (item / heads.kv_heads, item % heads.kv_heads);
            let mut seq = 0;
            loop {
                let blocks = blocks_of(seq);
                if block < blocks {
                    break;
                }
                block -= blocks;
                seq += 1;
            }
            // SAFETY: each thread has its own part of the scratch.
            let scratch = unsafe { scratch.at(thread * per_thread) };
            let item = Item { call, seq, head, block, scratch: Floats(scratch) };
            wide::run_both(machine.isa, machine.madd, item);
        })
    })
}

/// One work item.
struct Item<'a, K> {
    call: &'a Call<'a, K>,
    seq: usize,
    head: usize,
    block: usize,
    scratch: Floats,
}

impl<K: Keys> KernelOfBoth for Item<'_, K> {
    #[inline(always)]
    fn run<V: simd::Lanes, W: simd::wide::Lanes16>(self) {
        match self.call.keys.dtype() {
            Float::F32 => self.walk::<V, W, tile::F32>(),
            Float::F16 => self.walk::<V, W, tile::F16>(),
            Float::Bf16 => self.walk::<V, W, tile::Bf16>(),
        }
    }
}

impl<K: Keys> Item<'_, K> {
    #[inline(always)]
    fn walk<V: simd::Lanes, W: simd::wide::Lanes16, E: tile::Element>(&self) {
        let Call { queries, group, out, keys } = *self.call;
        let Queries { q, heads, scores, sinks, bias, distances } = queries;
        let Extent { first, rows, keys: len } = keys.extent(self.seq);
        let block_rows = keys.block_rows();
        let from = self.block * block_rows;
        let count = (rows - from).min(block_rows);
        // SAFETY: the callers of `attend` have checked that queries, keys and outputs go together; it sized
        // the scratch for block_rows * group rows and the keys' own.
        unsafe {
            let own = self.scratch.at(0);
            let key_scratch = own.add(block_rows * group * row_floats(&heads));
            let of_distances = key_scratch.add(keys.scratch(&heads));
            let mut tile = Tile::new(own, count, group, &heads, (scores, bias));
            tile.load::<V>(q, first + from, self.head);
            // The first row's position; keys before this step's rows are `len - rows`.
            // Fewer keys than queries: of a row whose position means nothing.
            let position = (len + from).saturating_sub(rows);
            let (lo, hi) = tile.place(position, len);
            let mut chunk = lo / CHUNK * CHUNK;
            let (mut runs, mut next) = ([Run::NONE; CHUNK], [Run::NONE; CHUNK]);
            let (seq, head) = (self.seq, self.head);
            let span = |chunk: usize| {
                let (from, to) = (chunk.max(lo), (chunk + CHUNK).min(hi));
                Span { seq, head, chunk, from, to }
            };
            while chunk < hi {
                if let Some(n) = keys.runs::<V>(span(chunk), key_scratch, &mut runs) {
                    let after = chunk + CHUNK;
                    let ahead = if after < hi { keys.ahead(span(after), &mut next) } else { None };
                    let turned =
                        distances.as_ref().map(|own| own.turn::<V>(&tile, (chunk, self.head), of_distances));
                    tile.chunk::<V, W, E>(chunk, (&runs[..n], &next[..ahead.unwrap_or(0)]), turned);
                }
                chunk += CHUNK;
            }
            tile.store::<V>(out, first + from, self.head, sinks);
        }
    }
}
