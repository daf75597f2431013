//! Keys and values as rows of a matrix, for encoders: a chunk's keys are transposed into scratch first.

use super::*;
use engraft_core::mem::Float;

/// Attention without pages: sequence `s` has rows `bounds[s]..bounds[s + 1]` of q, k and v.
pub fn attend_dense(
    machine: &Machine,
    q: Rows,
    k: Rows,
    v: Rows,
    bounds: &[u32],
    heads: Heads,
    scores: &Scores,
    out: RowsMut,
) -> Result<()> {
    let keys = Dense { k, v, bounds, heads };
    attend(machine, &Call { q, out, keys: &keys, heads, scores })
}

struct Dense<'a> {
    k: Rows,
    v: Rows,
    bounds: &'a [u32],
    heads: Heads,
}

impl Dense<'_> {
    fn v_stride(heads: &Heads) -> usize {
        heads.v_dim.next_multiple_of(8)
    }
}

impl Keys for Dense<'_> {
    fn dtype(&self) -> Float {
        // Chunks are widened while they are transposed.
        Float::F32
    }

    fn scratch(&self, heads: &Heads) -> usize {
        // Keys transposed, values as rows, one row of keys, and room for vector loads past the end.
        heads.k_dim * CHUNK + CHUNK * Self::v_stride(heads) + heads.k_dim + 32
    }

    fn seqs(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn rows(&self, seq: usize) -> (usize, usize, usize) {
        let (from, to) = (self.bounds[seq] as usize, self.bounds[seq + 1] as usize);
        (from, to - from, to - from)
    }

    #[inline(always)]
    unsafe fn runs(
        &self,
        seq: usize,
        head: usize,
        chunk: usize,
        from: usize,
        to: usize,
        scratch: *mut f32,
        runs: &mut [Run; CHUNK],
    ) -> usize {
        let Heads { k_dim, v_dim, .. } = self.heads;
        let first = self.bounds[seq] as usize;
        let v_stride = Self::v_stride(&self.heads);
        // SAFETY: the parts of the scratch that `scratch()` asked for; rows lie inside k and v.
        unsafe {
            let keys = scratch;
            let values = keys.add(k_dim * CHUNK);
            let row = values.add(CHUNK * v_stride);
            for position in from..to {
                let i = position - chunk;
                self.k.widen::<simd::Portable<engraft_core::math::FusedMadd>>(
                    first + position,
                    head * k_dim,
                    k_dim,
                    row,
                );
                for d in 0..k_dim {
                    *keys.add(d * CHUNK + i) = *row.add(d);
                }
                self.v.widen::<simd::Portable<engraft_core::math::FusedMadd>>(
                    first + position,
                    head * v_dim,
                    v_dim,
                    values.add(i * v_stride),
                );
            }
            let at = from - chunk;
            runs[0] = Run {
                at,
                len: to - from,
                k: keys.add(at).cast_const().cast(),
                k_stride: CHUNK,
                v: values.add(at * v_stride).cast_const().cast(),
                v_stride,
            };
        }
        1
    }
}
