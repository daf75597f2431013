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

/// Attention over pages: out `[tokens, heads * v_dim]`.
///
/// # Errors
/// `Shape` and `Internal` for bounds, lengths, table rows and pages out of range.
pub fn attend_paged(
    machine: &Machine,
    queries: Queries<'_>,
    slab: Slab,
    pages: Pages<'_>,
    out: RawMatMut,
) -> Result<()> {
    let (heads, layout) = (queries.heads, &slab.layout);
    let group = check_queries(OP, &queries, out)?;
    same(OP, "kv heads of the slab", layout.kv_heads, heads.kv_heads)?;
    same(OP, "key width of the slab", layout.k_dim, heads.k_dim)?;
    same(OP, "value width of the slab", layout.v_dim, heads.v_dim)?;
    pages.check(queries.q.rows, layout.page_size, queries.scores.go_by_position())?;
    let keys = Paged { slab, pages, group, lost: AtomicBool::new(false) };
    attend(machine, &Call { queries, group, out, keys: &keys })?;
    match keys.lost.into_inner() {
        true => Err(Error::internal(format!("{OP}: a page beyond the {} of the slab", layout.pages))),
        false => Ok(()),
    }
}

const OP: &str = "attend";

impl Pages<'_> {
    /// Every sequence that has query rows has a row of the table that holds its keys, and as many keys where
    /// what a query sees goes by its position.
    fn check(&self, rows: usize, page_size: usize, by_position: bool) -> Result<()> {
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

struct Paged<'a> {
    slab: Slab,
    pages: Pages<'a>,
    group: usize,
    /// Whether a page was met that the slab does not have.
    lost: AtomicBool,
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

    fn extent(&self, seq: usize) -> Extent {
        let (from, to) = (self.pages.bounds[seq] as usize, self.pages.bounds[seq + 1] as usize);
        Extent { first: from, rows: to - from, keys: self.pages.lens[seq] as usize }
    }

    fn block_rows(&self) -> usize {
        (2 * CHUNK / self.group).clamp(1, 16)
    }

    #[inline(always)]
    unsafe fn runs<V: simd::Lanes>(&self, span: Span, _: *mut f32, runs: &mut [Run; CHUNK]) -> Option<usize> {
        let layout = &self.slab.layout;
        let row = self.pages.table_rows[span.seq] as usize * self.pages.stride;
        let (mut position, mut n) = (span.from, 0);
        while position < span.to {
            let (entry, offset) = (position / layout.page_size, position % layout.page_size);
            let page = self.pages.pages[row + entry] as usize;
            let Some((k, v)) = self.slab.at(page, span.head, offset) else {
                self.lost.store(true, Relaxed);
                return None;
            };
            let len = (layout.page_size - offset).min(span.to - position);
            let at = position - span.chunk;
            runs[n] = Run { at, len, k, k_stride: layout.page_size, v, v_stride: layout.v_dim };
            position += len;
            n += 1;
        }
        Some(n)
    }
}
