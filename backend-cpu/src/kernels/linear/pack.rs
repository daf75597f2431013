//! Weights in panels: packing from stored rows, and reading a row back.
//!
//! A [`Packed`] weight is made empty and then filled in ranges of source rows, in any order and size, so that
//! the loader can drop mapped pages behind the packer; each range is packed by all threads. Sources are rows
//! as files store them (f32, f16, bf16 or GGUF blocks, of any alignment). Any source becomes any plain format
//! (converted through f32, rounded once); a block or group format only takes rows of its own.
//!
//! [`Layout::Gate`] is for weights whose first half of rows is a gate and whose second half is its value
//! ("up"): panel 2p holds 16 gate rows and panel 2p + 1 the 16 value rows that belong to them, so that one
//! work item has both. Invariant: columns beyond the last row are zero weights.

use super::panel::{PANEL, SPAN, Source, put_nibble};
use super::select::{self, with_source};
use super::{float, format, group, large, w8a8};
use crate::kernels::AlignedBytes;
use crate::pool::Pool;
use crate::simd::Lanes;
use crate::simd::wide::Lanes16;
use crate::sum::Bounds;
use engraft_core::mem::{Block, Float, Stored, WeightFormat};
use engraft_core::numerics::{LEAVES, Share, leaf_bounds, leaf_bounds_of_groups};
use engraft_core::quant;
use engraft_core::{Error, Result};
use std::ops::Range;

/// Order of the rows among the panels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row n in panel n / 16.
    Plain,
    /// Two halves, their panels alternating.
    Gate,
}

/// A weight `[n, k]` in panels of 16 rows ("output columns").
#[derive(Debug)]
pub struct Packed {
    pub(super) format: WeightFormat,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) bounds: Bounds,
    /// Where the sum of each leaf begins.
    pub(super) starts: [f32; LEAVES],
    pub(super) layout: Layout,
    pub(super) panel_bytes: usize,
    data: AlignedBytes,
}

/// Where packing writes; chunks write disjoint panels.
#[derive(Clone, Copy)]
struct Panels(*mut u8);
// SAFETY: a pointer only; see above.
unsafe impl Send for Panels {}
// SAFETY: as above.
unsafe impl Sync for Panels {}

impl Panels {
    fn get(self) -> *mut u8 {
        self.0
    }
}

impl Packed {
    /// Room for `[n, k]` in `format`, all zero; `grain` is the reduction grain of sums over k.
    ///
    /// Errors: a gate layout with odd n, a format without panels, sizes that overflow.
    pub fn new(format: WeightFormat, n: usize, k: usize, grain: usize, layout: Layout) -> Result<Packed> {
        let halves = if layout == Layout::Gate { 2 } else { 1 };
        if !n.is_multiple_of(halves) {
            return Err(Error::Shape {
                op: "linear",
                what: "rows of a gate weight modulo 2",
                got: n % 2,
                want: 0,
            });
        }
        let panels = (n / halves).div_ceil(PANEL) * halves;
        let small = k.checked_mul(64).is_some();
        let panel_bytes = small.then(|| select::panel_bytes(format, k)).flatten();
        let total = panel_bytes.and_then(|b| b.checked_mul(panels));
        let (Some(panel_bytes), Some(total)) = (panel_bytes, total) else {
            return Err(Error::Unsupported {
                op: "linear".into(),
                backend: "cpu".into(),
                reason: format!("no panels for a {format} weight of {n} x {k}"),
            });
        };
        let data = AlignedBytes::zeroed(total);
        let (bounds, starts) = (leaf_bounds(k, format.grain(grain)), [0.0; LEAVES]);
        Ok(Packed { format, n, k, bounds, starts, layout, panel_bytes, data })
    }

    /// The same, its grains in groups of so many.
    pub fn in_groups(self, grain: usize, group: usize) -> Packed {
        let bounds = leaf_bounds_of_groups(self.k, self.format.grain(grain), group);
        Packed { bounds, ..self }
    }

    /// As [`Packed::new`], for the leaves that a rank has.
    ///
    /// Errors: leaves that end inside a block of integers.
    pub fn of_share(format: WeightFormat, n: usize, share: Share) -> Result<Packed> {
        let bounds = share.bounds();
        let blocks = if format == WeightFormat::W8A8 { SPAN } else { 1 };
        if let Some(inside) = bounds.iter().find(|at| !at.is_multiple_of(blocks)) {
            let reason = format!("a leaf of its sums ends at {inside}, inside a block of {blocks}");
            let op = format!("a rank's part of a {format} matmul");
            return Err(Error::Unsupported { op, backend: "cpu".into(), reason });
        }
        let packed = Self::new(format, n, bounds[LEAVES], 1, Layout::Plain)?;
        Ok(Packed { bounds, starts: std::array::from_fn(|leaf| share.start(leaf)), ..packed })
    }

    /// A whole weight in one call: as [`Packed::fill`] with all rows.
    pub fn filled(mut self, pool: &Pool, stored: Stored, bytes: &[u8]) -> Result<Packed> {
        self.fill(pool, stored, 0..self.n, bytes)?;
        Ok(self)
    }

    /// Format of the panels.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Rows of the source: outputs (gate layout: twice the outputs).
    pub fn rows(&self) -> usize {
        self.n
    }

    /// Length of the sums.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// Row order.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Leaf boundaries of the sums over k.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Columns of `linear`'s output.
    pub fn outputs(&self) -> usize {
        self.n / self.panels_per_unit()
    }

    /// Panels that one block of 16 outputs needs.
    pub(super) fn panels_per_unit(&self) -> usize {
        if self.layout == Layout::Gate { 2 } else { 1 }
    }

    /// Blocks of 16 outputs.
    pub(super) fn units(&self) -> usize {
        self.outputs().div_ceil(PANEL)
    }

    /// Pointer to panel `p`.
    pub(super) fn panel(&self, p: usize) -> *const u8 {
        debug_assert!((p + 1) * self.panel_bytes <= self.data.len());
        self.data.as_ptr().wrapping_add(p * self.panel_bytes)
    }

    /// Panel and column of a row.
    fn place(&self, row: usize) -> (usize, usize) {
        let per = self.outputs();
        match self.layout {
            Layout::Plain => (row / PANEL, row % PANEL),
            Layout::Gate => (row % per / PANEL * 2 + row / per, row % per % PANEL),
        }
    }

    /// Packs rows `rows` from `bytes`, as a file stores them (`stored`, row-major, any alignment).
    ///
    /// Errors: rows out of range, a length that does not match, a source that does not fit the format.
    pub fn fill(&mut self, pool: &Pool, stored: Stored, rows: Range<usize>, bytes: &[u8]) -> Result<()> {
        let source = match stored {
            Stored::F32 => WeightFormat::Plain(Float::F32),
            Stored::F16 => WeightFormat::Plain(Float::F16),
            Stored::Bf16 => WeightFormat::Plain(Float::Bf16),
            Stored::Block(b) => WeightFormat::Block(b),
            other => return Err(self.refuse(other.name())),
        };
        self.fill_rows(pool, source, rows, bytes)
    }

    /// As [`Packed::fill`], from rows of any format.
    pub fn fill_rows(
        &mut self,
        pool: &Pool,
        source: WeightFormat,
        rows: Range<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        if !matches!(self.format, WeightFormat::Plain(_)) && source != self.format {
            return Err(self.refuse(source.name()));
        }
        if rows.end > self.n || rows.start > rows.end {
            return Err(Error::Shape {
                op: "pack",
                what: "end of the row range",
                got: rows.end,
                want: self.n,
            });
        }
        let row_bytes = format::row_bytes(source, self.k);
        let want = rows.len() * row_bytes;
        if bytes.len() != want {
            return Err(Error::Shape { op: "pack", what: "bytes of the rows", got: bytes.len(), want });
        }
        // Pieces of rows that share a panel, found by walking, so that ranges may start anywhere.
        let per = self.outputs().max(1);
        let first = |row: usize| row / per * per.div_ceil(PANEL) + row % per / PANEL;
        if rows.is_empty() {
            return Ok(());
        }
        let (lo, hi) = (first(rows.start), first(rows.end - 1) + 1);
        let out = Panels(self.data.as_mut_ptr());
        let this = &*self;
        pool.run(hi - lo, |c, _| {
            let group = lo + c;
            let start = group / per.div_ceil(PANEL) * per + group % per.div_ceil(PANEL) * PANEL;
            let end = (start + PANEL).min((start / per + 1) * per).min(rows.end);
            let begin = start.max(rows.start);
            let (panel, col) = this.place(begin);
            let src = &bytes[(begin - rows.start) * row_bytes..(end - rows.start) * row_bytes];
            // SAFETY: this chunk alone writes the columns of these rows; chunks have different panels.
            unsafe {
                let dst = out.get().add(panel * this.panel_bytes);
                this.fill_panel(source, src, row_bytes, dst, col..col + (end - begin));
            }
        })
    }

    fn refuse(&self, source: &str) -> Error {
        Error::Unsupported {
            op: "pack".into(),
            backend: "cpu".into(),
            reason: format!("rows of {source} into panels of {}; convert them first", self.format),
        }
    }

    /// Packs some columns of one panel.
    ///
    /// # Safety
    /// `dst` is a whole panel and nothing else uses these columns.
    unsafe fn fill_panel(
        &self,
        source: WeightFormat,
        src: &[u8],
        row_bytes: usize,
        dst: *mut u8,
        cols: Range<usize>,
    ) {
        let rows = cols.clone().zip(src.chunks_exact(row_bytes.max(1)));
        // SAFETY: `src` holds the rows, `dst` the panel; both lengths follow from n, k and the format.
        unsafe {
            match (self.format, source) {
                (WeightFormat::Plain(Float::F32), WeightFormat::Plain(Float::F32)) => {
                    transpose(src.as_ptr().cast::<u32>(), self.k, dst.cast(), cols);
                }
                (WeightFormat::Plain(_), s) if s == self.format => {
                    transpose(src.as_ptr().cast::<u16>(), self.k, dst.cast(), cols);
                }
                (WeightFormat::Plain(f), WeightFormat::Group(g)) => {
                    let mut values = vec![0.0; self.k];
                    for (j, row) in rows {
                        quant::group::decode(g, self.k, row, &mut values);
                        for (k, v) in values.iter().enumerate() {
                            put(f, dst, k * PANEL + j, *v);
                        }
                    }
                }
                (WeightFormat::Plain(f), s) => {
                    for (j, row) in rows {
                        for k in 0..self.k {
                            put(f, dst, k * PANEL + j, format::value(s, row, k));
                        }
                    }
                }
                _ => {
                    let panel = std::slice::from_raw_parts_mut(dst, self.panel_bytes);
                    rows.for_each(|(j, row)| self.spread(row, panel, j));
                }
            }
        }
    }

    /// Spreads a stored row of the weight's own block or group format over column `j` of a panel.
    fn spread(&self, row: &[u8], panel: &mut [u8], j: usize) {
        match self.format {
            WeightFormat::W8A8 => w8a8::pack(row, panel, j),
            WeightFormat::Block(b) if b.is_table() => float::pack_blocks(b, row, panel, j),
            WeightFormat::Block(b) if b.is_large() => {
                for (i, block) in row.chunks_exact(b.bytes()).enumerate() {
                    large::pack(b, block, panel, i, j);
                }
            }
            WeightFormat::Group(g) if !g.bits.is_integer() => float::pack(g, self.k, row, panel, j),
            WeightFormat::Group(g) => group::pack(g, self.k, row, panel, j),
            WeightFormat::Block(b) => {
                let size = self.panel_bytes / self.k.div_ceil(SPAN).max(1);
                for (block, out) in row.chunks_exact(b.bytes()).zip(panel.chunks_exact_mut(size.max(1))) {
                    pack_block(b, block, out, j);
                }
            }
            _ => {}
        }
    }

    /// Reads row `row` back as f32 (an embedding that shares its memory with the head).
    ///
    /// `out` has k elements; `row` is below [`Packed::rows`].
    #[inline(always)]
    pub(crate) fn unpack<V: Lanes>(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k);
        let (panel, col) = self.place(row);
        let panel = self.panel(panel);
        if self.format == WeightFormat::W8A8 {
            // SAFETY: a whole panel of this weight.
            let panel = unsafe { std::slice::from_raw_parts(panel, self.panel_bytes) };
            return w8a8::unpack(panel, col, out);
        }
        with_source!(self.format, S => {
            let mut both = [0f32; PANEL];
            for (k, o) in out.iter_mut().enumerate() {
                // SAFETY: the panel covers k.
                unsafe {
                    S::at::<[V; 2]>(panel, k).store(both.as_mut_ptr());
                }
                *o = both[col];
            }
        }, else {})
    }
}

/// Rows to columns, 16 k at a time so that a line of each row is used up before it leaves the cache.
unsafe fn transpose<T: Copy>(src: *const T, k: usize, dst: *mut T, cols: Range<usize>) {
    let whole = cols.len() == PANEL;
    let mut k0 = 0;
    while k0 < k {
        let kn = (k - k0).min(16);
        // SAFETY: rows of k elements at `src` (unaligned: a mapped file), a panel `[k][16]` at `dst`.
        unsafe {
            if whole && kn == 16 {
                let mut t = [std::mem::MaybeUninit::<T>::uninit(); 256];
                for j in 0..PANEL {
                    let row = src.add(j * k + k0);
                    for i in 0..16 {
                        t[i * PANEL + j].write(row.add(i).read_unaligned());
                    }
                }
                std::ptr::copy_nonoverlapping(t.as_ptr().cast::<T>(), dst.add(k0 * PANEL), 256);
            } else {
                for (r, j) in cols.clone().enumerate() {
                    for i in k0..k0 + kn {
                        dst.add(i * PANEL + j).write(src.add(r * k + i).read_unaligned());
                    }
                }
            }
        }
        k0 += kn;
    }
}

/// Rounds one value into a plain panel.
unsafe fn put(f: Float, dst: *mut u8, at: usize, v: f32) {
    // SAFETY: `at` lies within the panel.
    unsafe {
        match f {
            Float::F32 => dst.cast::<f32>().add(at).write(v),
            Float::F16 => dst.cast::<u16>().add(at).write(half::f16::from_f32(v).to_bits()),
            Float::Bf16 => dst.cast::<u16>().add(at).write(half::bf16::from_f32(v).to_bits()),
        }
    }
}

/// Spreads one stored block over column `j` of a panel's block.
fn pack_block(b: Block, stored: &[u8], out: &mut [u8], j: usize) {
    let min = matches!(b, Block::Q4_1 | Block::Q5_1);
    let five = matches!(b, Block::Q5_0 | Block::Q5_1);
    out[2 * j..2 * j + 2].copy_from_slice(&stored[..2]);
    let mut at = 32;
    if min {
        out[at + 2 * j..at + 2 * j + 2].copy_from_slice(&stored[2..4]);
        at += 32;
    }
    let bits = at;
    if five {
        at += SPAN * 2;
    }
    for i in 0..SPAN {
        let q = format::code(b, stored, i);
        if b == Block::Q8_0 {
            out[at + i * PANEL + j] = q;
            continue;
        }
        // With the sign that 8 less gives.
        let q = if b == Block::Q4_0 { q ^ 8 } else { q };
        put_nibble(&mut out[at..], i, j, q);
        if five {
            let mask = &mut out[bits + 2 * i + j / 8];
            *mask = *mask & !(1 << (j % 8)) | (q >> 4) << (j % 8);
        }
    }
}
