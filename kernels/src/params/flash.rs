//! Attention on tensor cores, over pages and over plain rows: `cuda/flash.cu`; many queries on Hopper:
//! `cuda/flashw.90a.cu`.
//!
//! Mode `Invariant`: a row's bits do not depend on which kernel takes its sequence, on the chunking or on the
//! paging.

use super::attention::Scores;
use super::kv::{KvView, PageTable};
use super::{Elem, MatView, launch};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Positions after which sums begin anew; spans are joined in ascending order.
pub const SPAN: u32 = 256;
/// Widths of heads that there are kernels for.
pub const WIDTHS: [u32; 7] = [64, 80, 96, 112, 128, 192, 256];
const CHUNK: u32 = 64;
const THREADS: u32 = 128;
/// Query rows of a block.
const WHOLE_ROWS: u32 = 64;
const HOPPER_ROWS: u32 = 128;
const SPLIT_ROWS: u32 = 16;

/// Whether there is a kernel for queries, keys and values of these types and widths.
///
/// # Errors
/// Why not.
pub fn supports(elem: Elem, kv_elem: Elem, k_dim: u32, v_dim: u32) -> Result<(), &'static str> {
    match () {
        _ if elem == Elem::F32 => Err("tensor cores round f32 to 10 bits: f32 takes the strict kernel"),
        _ if elem != kv_elem => Err("keys and values have the queries' type"),
        _ if k_dim != v_dim => Err("keys and values have one width"),
        _ if !WIDTHS.contains(&k_dim) => Err("heads are 64, 80, 96, 112, 128, 192 or 256 wide"),
        _ => Ok(()),
    }
}

/// Whether Hopper has a kernel of its own for heads of this width, next to those that [`supports`] speaks of.
pub fn has_hopper(width: u32) -> bool {
    matches!(width, 64 | 128)
}

/// Bytes of static shared memory of [`Flash::split`]'s kernels, as compiled.
const SPLIT_STATIC: u32 = 4864;

/// Shared memory that a block of these kernels has at most for heads of this width, in bytes: less on a
/// device, and they do not run there.
pub fn most_shared(width: u32) -> u32 {
    let kv = KvView { k_dim: width, v_dim: width, ..KvView::default() };
    let p = Flash { kv, ..Flash::zeroed() };
    p.shared(WHOLE_ROWS).max(p.shared(SPLIT_ROWS) + SPLIT_STATIC)
}

/// Attention: first [`Flash::whole`], then, for the sequences of few queries, [`Flash::split`] and
/// [`Flash::merge`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Flash {
    /// `[tokens, heads * k_dim]`.
    pub q: MatView,
    /// `[tokens, heads * v_dim]`.
    pub out: MatView,
    /// Keys and values in pages; with `page_size` 0 the first element of matrices
    /// `[tokens, kv_heads * width]`.
    pub kv: KvView,
    /// Elements from row to row of such a matrix of keys.
    pub k_pitch: u64,
    /// The same of values.
    pub v_pitch: u64,
    /// Scores and masks.
    pub scores: Scores,
    /// `[seqs + 1]` u32: sequence `s` has query rows `bounds[s]..bounds[s + 1]`.
    pub bounds: u64,
    /// `[seqs]` u32: rows of the page table; not read without pages.
    pub table_rows: u64,
    /// `[seqs]` u32: keys, this step's included; 0: as many as queries.
    pub kv_lens: u64,
    /// The page table; not read without pages.
    pub table: PageTable,
    /// Scratch of [`Flash::parts_bytes`], where `few` is not 0.
    pub parts: u64,
    /// Sequences.
    pub seqs: u32,
    /// Query heads.
    pub heads: u32,
    /// Element type of all.
    pub elem: Elem,
    /// Sequences of at most so many queries are split over blocks; 0: none is. Changes speed, never a bit.
    pub few: u32,
    /// Spans that a row has room for: the most keys of a sequence / [`SPAN`], rounded up.
    pub spans: u32,
    /// Tiles of 16 (query, head of a group) pairs that `few` queries fill; [`Flash::with_few`] knows it.
    pub tiles: u32,
}

/// The entry of a kernel for operands of this type and heads of this width.
fn entry(kernel: &str, elem: Elem, width: u32) -> String {
    format!("flash_{kernel}_{}_{width}", elem.name())
}

fn hopper_entry(elem: Elem, width: u32) -> String {
    format!("flashw_whole_{}_{width}", elem.name())
}

fn merge_entry(elem: Elem) -> String {
    format!("flash_merge_{}", elem.name())
}

/// The entries for operands of this type and heads of this width: with pages all three, without them whole
/// sequences alone; with `hopper` its own next to them, where it has one.
pub fn entries(elem: Elem, width: u32, pages: bool, hopper: bool) -> Vec<String> {
    let mut all = vec![entry("whole", elem, width)];
    if pages {
        all.extend([entry("split", elem, width), merge_entry(elem)]);
    }
    if hopper && has_hopper(width) {
        all.push(hopper_entry(elem, width));
    }
    all
}

impl Flash {
    /// The same with sequences of at most `few` queries, of at most `max_keys` keys, split over blocks.
    pub fn with_few(self, few: u32, max_keys: u32) -> Flash {
        let group = self.heads / self.kv.kv_heads.max(1);
        Flash {
            few,
            spans: max_keys.div_ceil(SPAN).max(1),
            tiles: few.saturating_mul(group).div_ceil(SPLIT_ROWS).max(1),
            ..self
        }
    }

    /// Bytes of `parts` for these numbers.
    pub fn parts_bytes(&self) -> u64 {
        let sizes = [self.heads, self.few, self.spans, self.kv.v_dim.saturating_add(2), 4];
        sizes.iter().fold(u64::from(self.seqs), |all, size| all.saturating_mul(u64::from(*size)))
    }

    /// Blocks of value columns.
    fn halves(&self) -> u32 {
        if self.kv.v_dim > 128 { 2 } else { 1 }
    }

    /// Shared memory of a block with `rows` query rows.
    fn shared(&self, rows: u32) -> u32 {
        let (k, v) = (self.kv.k_dim * 2 + 16, self.kv.v_dim / self.halves() * 2 + 16);
        rows * k + 2 * CHUNK * (k + v)
    }

    fn launch(&self, kernel: &str, grid: [u32; 3], rows: u32) -> Launch {
        let entry = entry(kernel, self.elem, self.kv.k_dim);
        Launch { shared_bytes: self.shared(rows), ..launch(&entry, grid, [THREADS, 1, 1]) }
    }

    /// Sequences of more than `few` queries, of which none has more than `max_queries`.
    pub fn whole(&self, max_queries: u32) -> Launch {
        let group = self.heads / self.kv.kv_heads.max(1);
        self.launch(
            "whole",
            [
                max_queries.saturating_mul(group).div_ceil(WHOLE_ROWS),
                self.kv.kv_heads * self.halves(),
                self.seqs,
            ],
            WHOLE_ROWS,
        )
    }

    /// The same by Hopper's kernel (`cuda/flashw.90a.cu`), in an order of its own (mode `Fast`); none for
    /// other widths than 64 and 128.
    pub fn whole_on_hopper(&self, max_queries: u32) -> Option<Launch> {
        let width = self.kv.k_dim;
        let group = self.heads / self.kv.kv_heads.max(1);
        let entry = hopper_entry(self.elem, width);
        let grid = [max_queries.saturating_mul(group).div_ceil(HOPPER_ROWS), self.kv.kv_heads, self.seqs];
        // Queries and four stages of keys and values, two barriers a stage, room to begin at a multiple of
        // 1024.
        let shared_bytes = 10 * (CHUNK * width * 2) + 64 + 1024;
        has_hopper(width).then(|| Launch { shared_bytes, ..launch(&entry, grid, [384, 1, 1]) })
    }

    /// Sequences of at most `few` queries.
    pub fn split(&self) -> Launch {
        let seqs = if self.few == 0 { 0 } else { self.seqs };
        self.launch("split", [self.spans, self.kv.kv_heads * self.tiles * self.halves(), seqs], SPLIT_ROWS)
    }

    /// Joins what [`Flash::split`] left; after it. None where no sequence can have two spans.
    pub fn merge(&self) -> Option<Launch> {
        let entry = merge_entry(self.elem);
        (self.spans > 1 && self.few > 0)
            .then(|| launch(&entry, [self.heads, self.few, self.seqs], [THREADS, 1, 1]))
    }
}
