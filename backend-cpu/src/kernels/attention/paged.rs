//! Keys and values in pages.

use super::*;
use crate::kernels::kv::Slab;

/// The sequences of a step and where their pages are.
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
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
}

/// Attention over pages: q `[tokens, heads * k_dim]`, out `[tokens, heads * v_dim]`.
///
/// Errors: a page table entry beyond the slab (as a worker's failed assertion).
pub fn attend_paged(
    machine: &Machine,
    q: Rows,
    slab: Slab,
    pages: Pages<'_>,
    heads: Heads,
    scores: &Scores,
    out: RowsMut,
) -> Result<()> {
    let keys = Paged { slab, pages, heads };
    attend(machine, &Call { q, out, keys: &keys, heads, scores })
}

struct Paged<'a> {
    slab: Slab,
    pages: Pages<'a>,
    heads: Heads,
}

impl Keys for Paged<'_> {
    fn dtype(&self) -> Float {
        self.slab.layout.dtype
    }

    fn scratch(&self, _: &Heads) -> usize {
        0
    }

    fn seqs(&self) -> usize {
        self.pages.lens.len()
    }

    fn rows(&self, seq: usize) -> (usize, usize, usize) {
        let (from, to) = (self.pages.bounds[seq] as usize, self.pages.bounds[seq + 1] as usize);
        (from, to - from, self.pages.lens[seq] as usize)
    }

    fn block_rows(&self) -> usize {
        let Heads { heads, kv_heads, .. } = self.heads;
        (2 * CHUNK / (heads / kv_heads)).clamp(1, 16)
    }

    #[inline(always)]
    unsafe fn runs<V: simd::Lanes>(
        &self,
        seq: usize,
        head: usize,
        chunk: usize,
        from: usize,
        to: usize,
        _: *mut f32,
        runs: &mut [Run; CHUNK],
    ) -> usize {
        let layout = &self.slab.layout;
        let row = self.pages.table_rows[seq] as usize * self.pages.stride;
        let (mut position, mut n) = (from, 0);
        while position < to {
            let (entry, offset) = (position / layout.page_size, position % layout.page_size);
            let page = self.pages.pages[row + entry] as usize;
            let len = (layout.page_size - offset).min(to - position);
            runs[n] = Run {
                at: position - chunk,
                len,
                k: self.slab.key(page, head, offset),
                k_stride: layout.page_size,
                v: self.slab.value(page, head, offset),
                v_stride: layout.v_dim,
            };
            position += len;
            n += 1;
        }
        n
    }
}
