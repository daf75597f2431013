//! Attention, over pages and over plain rows, with one arithmetic.
//!
//! Keys are walked in chunks of 64 absolute positions, ascending. Within a chunk, over the keys that a query row sees:
//!
//! ```text
//! s_j = (chain over d of madd(q_d, k_jd, acc)) * scale     soft cap: s = cap * tanh(s * (1 / cap))
//!                                                           bias:     s = madd(slope, j - p, s)
//! m = max s_j    e_j = exp(s_j - m)    l = chain of l + e_j    o_d = chain of madd(e_j, v_jd, o_d)
//! ```
//!
//! The first chunk is taken as it is; later ones are merged: `M' = max(M, m)`, `a = exp(M - M')`, `b = exp(m - M')`,
//! `L = madd(L, a, l * b)`, `O = madd(O, a, o * b)`. At the end `O / L`; a row that sees nothing is zero. All chains start
//! at +0 and ascend. So neither the batch nor chunked prefill nor paging nor page order can change a bit.
//!
//! A chunk's keys come as *runs*: consecutive positions whose keys lie transposed (`[d][position]`) and whose values lie
//! as rows. Lanes run over positions for scores and over value columns for outputs, so a lane is one chain. Vector loads
//! of scores may read past a run; slabs are padded for that ([`super::kv::PAD`]), and such lanes are overwritten or
//! ignored.
//!
//! Work is split over (sequence, key/value head, block of query rows).

mod dense;
mod paged;
#[cfg(test)]
mod tests;
mod tile;

pub use dense::attend_dense;
pub use paged::{Pages, attend_paged};

use super::{Floats, Machine, Rows, RowsMut};
use crate::simd::{self, Kernel, wide};
use engraft_core::mem::Float;
use engraft_core::params::{Heads, Scores};
use engraft_core::{Error, Result};
use tile::Tile;

/// Positions of a chunk.
pub const CHUNK: usize = 64;
/// Consecutive positions of a chunk that lie together.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// First position, from the chunk's start.
    at: usize,
    /// Positions.
    len: usize,
    /// Keys: element `(d, i)` at `d * k_stride + i`.
    k: *const u8,
    /// Elements from one `d` to the next.
    k_stride: usize,
    /// Values: element `(i, d)` at `i * v_stride + d`.
    v: *const u8,
    /// Elements from one position to the next.
    v_stride: usize,
}

impl Run {
    const NONE: Run =
        Run { at: 0, len: 0, k: std::ptr::null(), k_stride: 0, v: std::ptr::null(), v_stride: 0 };
}

/// Where the keys of a sequence lie.
trait Keys: Sync {
    /// Element type of keys and values.
    fn dtype(&self) -> Float;
    /// Floats of scratch per thread that `runs` needs.
    fn scratch(&self, heads: &Heads) -> usize;
    /// Query rows of one work item: a tile holds them for every head of a group.
    fn block_rows(&self) -> usize;
    /// Runs of positions `from..to` (within one chunk that begins at `chunk`) of sequence `seq`, head `head`.
    ///
    /// # Safety
    /// `scratch` has the floats asked for and belongs to this thread.
    unsafe fn runs<V: simd::Lanes>(
        &self,
        seq: usize,
        head: usize,
        chunk: usize,
        from: usize,
        to: usize,
        scratch: *mut f32,
        runs: &mut [Run; CHUNK],
    ) -> usize;
    /// `(first query row, rows, keys)` of a sequence.
    fn rows(&self, seq: usize) -> (usize, usize, usize);
    /// Sequences.
    fn seqs(&self) -> usize;
}

/// What all work items share.
struct Call<'a, K> {
    q: Rows,
    out: RowsMut,
    keys: &'a K,
    heads: Heads,
    scores: &'a Scores,
}

/// Floats per row of a tile: q, scores, output.
fn row_floats(heads: &Heads) -> usize {
    heads.k_dim.next_multiple_of(8) + (CHUNK + 8) + heads.v_dim.next_multiple_of(8)
}

fn attend<K: Keys>(machine: &Machine, call: &Call<'_, K>) -> Result<()> {
    let group = call.heads.heads / call.heads.kv_heads;
    if group > tile::MOST {
        return Err(Error::Unsupported {
            op: "attend".into(),
            backend: "cpu".into(),
            reason: format!("{group} query heads share a key head; at most {} are possible", tile::MOST),
        });
    }
    let block_rows = call.keys.block_rows();
    // A tile's rows are (query row, head of the group) pairs; the scratch of a thread holds one tile.
    let per_thread = (block_rows * group) * row_floats(&call.heads) + call.keys.scratch(&call.heads) + 64;
    let items: usize = (0..call.keys.seqs()).map(|s| call.keys.rows(s).1.div_ceil(block_rows)).sum();
    let threads = machine.pool.threads();
    machine.with_scratch(per_thread * threads, |scratch| {
        machine.pool.run(items * call.heads.kv_heads, |item, thread| {
            let (mut block, head) = (item / call.heads.kv_heads, item % call.heads.kv_heads);
            let mut seq = 0;
            loop {
                let blocks = call.keys.rows(seq).1.div_ceil(block_rows);
                if block < blocks {
                    break;
                }
                block -= blocks;
                seq += 1;
            }
            // SAFETY: each thread has its own part of the scratch.
            let scratch = unsafe { scratch.at(thread * per_thread) };
            let item = Item { call, seq, head, block, scratch: Floats(scratch) };
            wide::run_loops(machine.isa, machine.madd, item);
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

impl<K: Keys> Kernel for Item<'_, K> {
    #[inline(always)]
    fn run<V: simd::Lanes>(self) {
        match self.call.keys.dtype() {
            Float::F32 => self.walk::<V, tile::F32>(),
            Float::F16 => self.walk::<V, tile::F16>(),
            Float::Bf16 => self.walk::<V, tile::Bf16>(),
        }
    }
}

impl<K: Keys> Item<'_, K> {
    #[inline(always)]
    fn walk<V: simd::Lanes, E: tile::Element>(&self) {
        let Call { q, out, keys, heads, scores } = *self.call;
        let (first, rows, len) = keys.rows(self.seq);
        let block_rows = keys.block_rows();
        let from = self.block * block_rows;
        let count = (rows - from).min(block_rows);
        let group = heads.heads / heads.kv_heads;
        // SAFETY: `attend` sized the scratch for block_rows * group rows and the keys' own.
        unsafe {
            let own = self.scratch.at(0);
            let key_scratch = own.add(block_rows * group * row_floats(&heads));
            let mut tile = Tile::new(own, count, group, &heads, scores);
            tile.load::<V>(q, first + from, self.head);
            // The first row's position; keys before this step's rows are `len - rows`.
            let position = len - rows + from;
            let (lo, hi) = tile.place(position, len);
            let mut chunk = lo / CHUNK * CHUNK;
            let mut runs = [Run::NONE; CHUNK];
            while chunk < hi {
                let (a, b) = (chunk.max(lo), (chunk + CHUNK).min(hi));
                let n = keys.runs::<V>(self.seq, self.head, chunk, a, b, key_scratch, &mut runs);
                tile.chunk::<V, E>(chunk, &runs[..n]);
                chunk += CHUNK;
            }
            tile.store::<V>(out, first + from, self.head);
        }
    }
}
