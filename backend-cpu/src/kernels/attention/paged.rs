//! Keys and values in pages.

use super::*;
use crate::kernels::kv::Slab;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

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

pub(super) const OP: &str = "attend";

impl Pages<'_> {
    /// Every sequence that has query rows has a row of the table that holds its keys, and as many keys where
    /// what a query sees goes by its position.
    pub(super) fn check(&self, rows: usize, page_size: usize, by_position: bool) -> Result<()> {
        let seqs = self.lens.len();
        same(OP, "bounds", self.bounds.len(), seqs.saturating_add(1))?;
        same(OP, "table rows", self.table_rows.len(), seqs)?;
        check_bounds(OP, self.bounds, rows)?;
        let (table, room) = match self.pages.len().checked_div(self.stride) {
            Some(table) => (table, self.stride.saturating_mul(page_size)),
            None => (0, 0),
        };
        let refuse = |what, got: u32, want| Err(Error::Shape { op: OP, what, got: got as usize, want });
        for (seq, (len, row)) in self.lens.iter().zip(self.table_rows).enumerate() {
            let queries = self.bounds[seq + 1] - self.bounds[seq];
            match queries {
                0 => {}
                _ if by_position && *len < queries => {
                    return refuse(
                        "keys of a sequence, with fewer than its queries,",
                        *len,
                        queries as usize,
                    );
                }
                _ if *len as usize > room => return refuse("keys of a sequence", *len, room),
                _ if *row as usize >= table => return refuse("a sequence's row of the table", *row, table),
                _ => {}
            }
        }
        Ok(())
    }
}

pub(super) struct Paged<'a> {
    pub(super) slab: Slab,
    pub(super) pages: Pages<'a>,
    pub(super) group: usize,
    pub(super) dtype: Float,
    /// Whether a page was met that the slab does not have.
    pub(super) lost: &'a AtomicBool,
}

impl Paged<'_> {
    /// The parts of a span that lie in one page each: the page, the first of its positions and how many, and
    /// where they are in the chunk. None, and a note of it, where one is beyond the slab.
    #[inline(always)]
    pub(super) fn pages_of(&self, span: Span) -> Option<impl Iterator<Item = (usize, usize, usize, usize)>> {
        let size = self.slab.layout.page_size;
        let row = self.pages.table_rows[span.seq] as usize * self.pages.stride;
        let (first, last) = (span.from / size, span.to.div_ceil(size));
        let entries = &self.pages.pages[row + first..row + last];
        if entries.iter().any(|page| *page as usize >= self.slab.layout.pages) {
            self.lost.store(true, Relaxed);
            return None;
        }
        Some(entries.iter().enumerate().map(move |(entry, page)| {
            let begin = (first + entry) * size;
            let (from, to) = (begin.max(span.from), (begin + size).min(span.to));
            (*page as usize, from - begin, to - from, from - span.chunk)
        }))
    }
}

impl Keys for Paged<'_> {
    fn dtype(&self) -> Float {
        self.dtype
    }

    fn scratch(&self, _: &Heads) -> usize {
        0
    }

    fn seqs(&self) -> usize {
        self.pages.lens.len()
    }

    fn extent(&self, seq: usize) -> Extent {
        let (from, to) = (self.pages.bounds[seq] as usize, self.pages.bounds[seq + 1] as usize);
        Extent { first: from, rows: to - from, keys: self.pages.lens[seq] as usize }
    }

    fn block_rows(&self) -> usize {
        (2 * CHUNK / self.group).clamp(1, 16)
    }

    #[inline(always)]
    unsafe fn runs<V: simd::Lanes>(&self, span: Span, _: *mut f32, runs: &mut [Run; CHUNK]) -> Option<usize> {
        self.ahead(span, runs)
    }

    #[inline(always)]
    fn ahead(&self, span: Span, runs: &mut [Run; CHUNK]) -> Option<usize> {
        let (layout, mut n) = (&self.slab.layout, 0);
        for (page, offset, len, at) in self.pages_of(span)? {
            let (k, v) = self.slab.at(page, span.head, offset)?;
            runs[n] = Run { at, len, k, k_stride: layout.page_size, v, v_stride: layout.v_dim };
            n += 1;
        }
        Some(n)
    }
}
