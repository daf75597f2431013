//! Keys and values as rows of a matrix, for encoders: a chunk's keys are transposed into scratch first.

use super::*;
use crate::simd::{Lanes, WIDTH};
use engraft_core::mem::Float;

/// Keys and values of all sequences, one after the other: sequence `s` has rows `bounds[s]..bounds[s + 1]` of
/// q, k and v.
#[derive(Debug, Clone, Copy)]
pub struct DenseKeys<'a> {
    /// `[tokens, kv_heads * k_dim]`.
    pub k: RawMat,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: RawMat,
    /// `[seqs + 1]`.
    pub bounds: &'a [u32],
}

/// Attention without pages: out `[tokens, heads * v_dim]`.
///
/// # Errors
/// `Shape` and `Internal` for bounds that do not ascend or end beyond the rows.
pub fn attend_dense(
    machine: &Machine,
    queries: Queries<'_>,
    keys: DenseKeys<'_>,
    out: RawMatMut,
) -> Result<()> {
    const OP: &str = "attend_dense";
    let (DenseKeys { k, v, bounds }, heads) = (keys, queries.heads);
    let group = check_queries(OP, &queries, out)?;
    // Numbers, since there are no fewer query heads.
    same(OP, "rows of k", k.rows, queries.q.rows)?;
    same(OP, "rows of v", v.rows, queries.q.rows)?;
    same(OP, "columns of k", k.cols, heads.kv_heads * heads.k_dim)?;
    same(OP, "columns of v", v.cols, heads.kv_heads * heads.v_dim)?;
    check_bounds(OP, bounds, queries.q.rows)?;
    let keys = Dense { k, v, bounds, heads, group };
    attend(machine, &Call { queries, group, out, keys: &keys })
}

struct Dense<'a> {
    k: RawMat,
    v: RawMat,
    bounds: &'a [u32],
    heads: Heads,
    group: usize,
}

impl Dense<'_> {
    fn v_stride(heads: &Heads) -> usize {
        heads.v_dim.next_multiple_of(WIDTH)
    }

    fn k_stride(heads: &Heads) -> usize {
        heads.k_dim.next_multiple_of(WIDTH)
    }
}

impl Keys for Dense<'_> {
    fn dtype(&self) -> Float {
        // Chunks are widened while they are transposed.
        Float::F32
    }

    fn scratch(&self, heads: &Heads) -> usize {
        // Keys transposed, values as rows, a few rows of keys, and room for vector loads past the end.
        Self::k_stride(heads) * (CHUNK + WIDTH) + CHUNK * Self::v_stride(heads) + 32
    }

    fn seqs(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn extent(&self, seq: usize) -> Extent {
        let (from, to) = (self.bounds[seq] as usize, self.bounds[seq + 1] as usize);
        Extent { first: from, rows: to - from, keys: to - from }
    }

    fn block_rows(&self) -> usize {
        // A text of 64 words is one block: its keys are turned once.
        (4 * CHUNK / self.group).clamp(1, CHUNK)
    }

    #[inline(always)]
    unsafe fn runs<V: Lanes>(&self, span: Span, scratch: *mut f32, runs: &mut [Run; CHUNK]) -> Option<usize> {
        let Span { seq, head, chunk, from, to } = span;
        let Heads { k_dim, v_dim, .. } = self.heads;
        let first = self.bounds[seq] as usize;
        let v_stride = Self::v_stride(&self.heads);
        let k_stride = Self::k_stride(&self.heads);
        // SAFETY: the parts of the scratch that `scratch()` asked for; rows lie inside k and v. Whole vectors
        // of positions and of a key's values are turned; what is beyond them is never looked at.
        unsafe {
            let keys = scratch;
            let values = keys.add(k_stride * CHUNK);
            let rows = values.add(CHUNK * v_stride);
            for group in (from..to).step_by(WIDTH) {
                for position in group..to.min(group + WIDTH) {
                    let row = rows.add((position - group) * k_stride);
                    self.k.widen::<V>(first + position, head * k_dim, k_dim, row);
                    let value = values.add((position - chunk) * v_stride);
                    self.v.widen::<V>(first + position, head * v_dim, v_dim, value);
                }
                for d in (0..k_dim).step_by(WIDTH) {
                    let mut some = [V::splat(0.0); WIDTH];
                    for (i, v) in some.iter_mut().enumerate() {
                        *v = V::load(rows.add(i * k_stride + d));
                    }
                    for (i, turned) in V::transpose(some).into_iter().enumerate() {
                        turned.store(keys.add((d + i) * CHUNK + group - from));
                    }
                }
            }
            let at = from - chunk;
            runs[0] = Run {
                at,
                len: to - from,
                k: keys.cast_const().cast(),
                k_stride: CHUNK,
                v: values.add(at * v_stride).cast_const().cast(),
                v_stride,
            };
        }
        Some(1)
    }
}
