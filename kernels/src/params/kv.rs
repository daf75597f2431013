//! Paged keys and values: `cuda/kv.cu`, layout in `cuda/paged.cuh`.

use super::{Elem, MOST_BLOCKS, MatView, by_elem, launch, over_rows};
use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Bytes of a scale.
const SCALE: u64 = 4;
/// Warps of a block where one takes a head.
const WARPS: u32 = 4;

/// One layer's slabs, both `[page, kv_head, position, d]`; of codes the scales, f32
/// `[page, kv_head, position]`, behind all codes, from the next multiple of 16 bytes on.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct KvView {
    /// Keys.
    pub keys: u64,
    /// Values.
    pub values: u64,
    /// Pages of the slabs.
    pub pages: u32,
    /// Positions of a page.
    pub page_size: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a key head.
    pub k_dim: u32,
    /// Width of a value head.
    pub v_dim: u32,
    /// Element type of both, or codes.
    pub elem: Elem,
}

impl KvView {
    /// Bytes of codes or elements, and of scales, of all keys or values of a width.
    fn parts(&self, width: u32) -> [u64; 2] {
        let rows = u64::from(self.pages) * u64::from(self.page_size) * u64::from(self.kv_heads);
        let scale = if self.elem.is_coded() && width > 0 { SCALE } else { 0 };
        [rows * u64::from(width) * u64::from(self.elem.bytes()), rows * scale]
    }

    /// Bytes of the key and the value slab.
    pub fn slab_bytes(&self) -> (u64, u64) {
        let slab = |width| match self.parts(width) {
            [elements, 0] => elements,
            [codes, scales] => codes.next_multiple_of(16) + scales,
        };
        (slab(self.k_dim), slab(self.v_dim))
    }

    /// Elements that a thread moves.
    fn unit(&self) -> u32 {
        if (self.k_dim | self.v_dim).is_multiple_of(8) { 8 } else { 1 }
    }

    fn columns(&self) -> u32 {
        self.kv_heads * (self.k_dim + self.v_dim)
    }
}

/// The page table, and how far a row of it may be followed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct PageTable {
    /// `[rows, stride]` u32: page numbers.
    pub numbers: u64,
    /// Rows.
    pub rows: u32,
    /// Entries of a row.
    pub stride: u32,
    /// Positions that a row has pages for; no kernel looks for one beyond. 0 where there is no page or no
    /// row.
    pub keys: u32,
    /// Zero.
    pub reserved: u32,
}

impl PageTable {
    /// Most positions that kernels count to.
    const MOST_KEYS: u64 = 1 << 31;

    /// `[rows, stride]` numbers of pages of these slabs.
    pub fn new(numbers: u64, rows: u32, stride: u32, kv: &KvView) -> PageTable {
        let keys = match rows == 0 || kv.pages == 0 {
            true => 0,
            false => (u64::from(stride) * u64::from(kv.page_size)).min(Self::MOST_KEYS) as u32,
        };
        PageTable { numbers, rows, stride, keys, reserved: 0 }
    }
}

/// Writes rows of k and v to their slots.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Append {
    /// `[tokens, kv_heads * k_dim]`.
    pub k: MatView,
    /// `[tokens, kv_heads * v_dim]`.
    pub v: MatView,
    /// Where to.
    pub kv: KvView,
    /// `[tokens]` i32: `page * page_size + offset`; negative: nothing is written.
    pub slots: u64,
    /// Element type of `k` and `v`.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Append {
    /// The entry for slabs of this type.
    pub fn entry(kv_elem: Elem) -> &'static str {
        if kv_elem.is_coded() { "kv_append_codes" } else { "kv_append" }
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.kv.elem);
        match self.kv.elem.is_coded() {
            false => over_rows(entry, self.k.rows, self.kv.columns(), self.kv.unit()),
            true => {
                let grid = [(2 * self.kv.kv_heads).div_ceil(WARPS), self.k.rows.min(MOST_BLOCKS), 1];
                launch(entry, grid, [WARPS * 32, 1, 1])
            }
        }
    }
}

/// Reads positions `0..k.rows` of a sequence as plain rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Read {
    /// `[positions, kv_heads * k_dim]`, written.
    pub k: MatView,
    /// `[positions, kv_heads * v_dim]`, written.
    pub v: MatView,
    /// Where from.
    pub kv: KvView,
    /// The sequence's row of the page table, u32.
    pub pages: u64,
    /// Element type of `k` and `v`.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl Read {
    /// The entry.
    pub const ENTRY: &str = "kv_read";

    /// One launch.
    pub fn launch(&self) -> Launch {
        over_rows(Self::ENTRY, self.k.rows, self.kv.columns(), self.kv.unit())
    }
}

/// Copies whole pages, pair after pair.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Copy {
    /// Slabs.
    pub kv: KvView,
    /// `[count, 2]` u32: from, to; equal numbers do nothing.
    pub pairs: u64,
    /// Pairs.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

impl Copy {
    /// The entries: by 16 bytes where pages allow that, else by 4, 2 or 1.
    pub const ENTRIES: [&str; 4] = ["kv_copy_wide", "kv_copy_words", "kv_copy_narrow", "kv_copy_bytes"];

    /// One launch.
    pub fn launch(&self) -> Launch {
        let one = KvView { pages: 1, ..self.kv };
        // What a page has in each slab, and where slabs begin; scales begin a multiple of 16 behind that.
        let parts = [one.parts(one.k_dim), one.parts(one.v_dim)];
        let all = parts.as_flattened().iter().fold(self.kv.keys | self.kv.values, |all, part| all | part);
        let (entry, bytes) = match all {
            _ if all.is_multiple_of(16) => (Self::ENTRIES[0], 16),
            _ if all.is_multiple_of(4) => (Self::ENTRIES[1], 4),
            _ if all.is_multiple_of(2) => (Self::ENTRIES[2], 2),
            _ => (Self::ENTRIES[3], 1),
        };
        let units = match self.count {
            0 => 0,
            _ => parts.as_flattened().iter().sum::<u64>() / bytes,
        };
        launch(entry, [units.div_ceil(256) as u32, 1, 1], [256, 1, 1])
    }
}

/// The norm of every query or key head.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct HeadNorm {
    /// `[k_dim]` f32, or 0.
    pub weight: u64,
    /// `[k_dim]` f32, or 0.
    pub bias: u64,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// [`HeadNorm::NORM`] and what holds of it; 0: no norm.
    pub flags: u32,
}

impl HeadNorm {
    /// There is a norm.
    pub const NORM: u32 = 1;
    /// Layer norm; else RMS norm.
    pub const LAYER: u32 = 2;
    /// Multiply by `1 + weight` (without a bias).
    pub const PLUS_ONE: u32 = 4;
}

/// Norms and rotates q and k of `q | k | v` in place and appends k and v.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RotateAppend {
    /// `[tokens, heads * k_dim + kv_heads * (k_dim + v_dim)]`.
    pub qkv: MatView,
    /// Where to.
    pub kv: KvView,
    /// Of query heads.
    pub q_norm: HeadNorm,
    /// Of key heads.
    pub k_norm: HeadNorm,
    /// As `Rope::table`; 0: nothing is rotated.
    pub table: u64,
    /// `[tokens]` u32; not read without a table.
    pub positions: u64,
    /// As [`Append::slots`].
    pub slots: u64,
    /// Positions of the table.
    pub table_positions: u32,
    /// Rotated pairs of a head.
    pub pairs: u32,
    /// 1: pairs are neighbours, 0: they are `pairs` columns apart.
    pub interleaved: u32,
    /// Query heads.
    pub heads: u32,
    /// Element type of `qkv`.
    pub elem: Elem,
    /// Zero.
    pub reserved: u32,
}

impl RotateAppend {
    /// Most columns of a head: every warp holds one in shared memory.
    pub const WIDEST: usize = 2048;

    /// The entry for this element type.
    pub fn entry(elem: Elem) -> &'static str {
        by_elem(elem, ["kv_rotated_f32", "kv_rotated_f16", "kv_rotated_bf16"])
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        let entry = Self::entry(self.elem);
        let heads = self.heads + 2 * self.kv.kv_heads;
        let grid = [heads.div_ceil(WARPS), self.qkv.rows.min(MOST_BLOCKS), 1];
        let shared_bytes = 4 * WARPS * self.kv.k_dim.max(self.kv.v_dim);
        Launch { shared_bytes, ..launch(entry, grid, [WARPS * 32, 1, 1]) }
    }
}
