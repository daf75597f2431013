//! Paged keys and values: append, copy, read.
//!
//! A page of the key slab is `[kv_head][d][position]`, of the value slab `[kv_head][position][d]`: scores
//! vectorise over positions, outputs over value columns. Slabs end in [`PAD`] bytes that vector loads may
//! touch: they belong to the slab.

use super::{Machine, RawMat, RawMatMut, check_factors, over, same};
use engraft_core::Result;
use engraft_core::mem::{Float, KvLayout};

/// Bytes behind a slab that loads may read and nothing uses.
pub const PAD: usize = 128;

/// Bytes of the key and the value slab.
pub fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let elements = layout.pages * layout.page_size * layout.kv_heads * layout.dtype.bytes();
    (elements * layout.k_dim + PAD, elements * layout.v_dim + PAD)
}

/// One layer's slabs.
#[derive(Debug, Clone, Copy)]
pub struct Slab {
    k: *mut u8,
    v: *mut u8,
    pub(super) layout: KvLayout,
}

// SAFETY: pointers only; who may touch the slabs when is the stream's affair, and kernels write disjoint
// slots.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Slabs of [`slab_bytes`].
    ///
    /// # Safety
    /// They are that large, aligned to their element, and stay alive while the slab is used; nothing
    /// else writes them meanwhile, nor reads them while a kernel writes.
    pub unsafe fn new(k: *mut u8, v: *mut u8, layout: KvLayout) -> Slab {
        Slab { k, v, layout }
    }

    /// Elements `(d = 0, offset)` of a page's keys and `(offset, d = 0)` of its values; none where there are
    /// no such.
    #[inline(always)]
    pub(super) fn at(&self, page: usize, head: usize, offset: usize) -> Option<(*mut u8, *mut u8)> {
        let l = &self.layout;
        if page >= l.pages || head >= l.kv_heads || offset >= l.page_size {
            return None;
        }
        let head = page * l.kv_heads + head;
        let (k, v) = (head * l.k_dim * l.page_size + offset, (head * l.page_size + offset) * l.v_dim);
        Some((self.k.wrapping_add(k * l.dtype.bytes()), self.v.wrapping_add(v * l.dtype.bytes())))
    }

    fn page_bytes(&self) -> (usize, usize) {
        let per = self.layout.kv_heads * self.layout.page_size * self.layout.dtype.bytes();
        (per * self.layout.k_dim, per * self.layout.v_dim)
    }
}

/// Elements of one type.
#[derive(Clone, Copy)]
struct Place {
    start: *mut u8,
    dtype: Float,
    /// Elements from one to the next.
    stride: usize,
}

/// Copies `count` elements, each rounded to the type of `to`.
///
/// # Safety
/// Both have so many elements; those of `to` belong to the caller.
#[inline(always)]
unsafe fn scatter(from: Place, to: Place, count: usize) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let value = load(from.start, from.dtype, i * from.stride);
            store(to.start, to.dtype, i * to.stride, value);
        }
    }
}

#[inline(always)]
unsafe fn load(p: *const u8, dtype: Float, i: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Float::F32 => *p.cast::<f32>().add(i),
            Float::F16 => (*p.cast::<half::f16>().add(i)).to_f32(),
            Float::Bf16 => (*p.cast::<half::bf16>().add(i)).to_f32(),
        }
    }
}

#[inline(always)]
unsafe fn store(p: *mut u8, dtype: Float, i: usize, value: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Float::F32 => *p.cast::<f32>().add(i) = value,
            Float::F16 => *p.cast::<half::f16>().add(i) = half::f16::from_f32(value),
            Float::Bf16 => *p.cast::<half::bf16>().add(i) = half::bf16::from_f32(value),
        }
    }
}

/// Rows of keys and of values for a slab.
fn rows_fit(op: &'static str, k: RawMat, v: RawMat, l: KvLayout) -> Result<()> {
    same(op, "rows of v", v.rows, k.rows)?;
    check_factors(op, "columns of k", k.cols, l.kv_heads, l.k_dim)?;
    check_factors(op, "columns of v", v.cols, l.kv_heads, l.v_dim)
}

/// Writes row `t` of k and v to `slots[t]`; negative slots and slots beyond the slab are skipped. Heads are
/// shared out.
pub fn append(machine: &Machine, k: RawMat, v: RawMat, slots: &[i32], slab: Slab) -> Result<()> {
    let l = slab.layout;
    rows_fit("kv_append", k, v, l)?;
    same("kv_append", "slots", slots.len(), k.rows)?;
    // One row is written faster than a thread wakes.
    let heads = if slots.len() < 8 { l.kv_heads } else { 1 };
    over(machine, l.kv_heads, heads, |heads, _| append_heads(k, v, slots, slab, heads))
}

fn append_heads(k: RawMat, v: RawMat, slots: &[i32], slab: Slab, heads: std::ops::Range<usize>) {
    let l = slab.layout;
    for (t, slot) in slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        for head in heads.clone() {
            let Some((to_k, to_v)) = slab.at(slot / l.page_size, head, slot % l.page_size) else { break };
            let place = |start, dtype, stride| Place { start, dtype, stride };
            // SAFETY: rows have kv_heads * dim elements; the slot exists, and this head of it belongs to this
            // call.
            unsafe {
                let from = k.row(t).add(head * l.k_dim * k.dtype.bytes()).cast_mut();
                scatter(place(from, k.dtype, 1), place(to_k, l.dtype, l.page_size), l.k_dim);
                let from = v.row(t).add(head * l.v_dim * v.dtype.bytes()).cast_mut();
                scatter(place(from, v.dtype, 1), place(to_v, l.dtype, 1), l.v_dim);
            }
        }
    }
}

/// Copies whole pages, `[from, to, from, to, ...]`; pairs of equal pages or with a page beyond the slab do
/// nothing.
pub fn copy_pages(pairs: &[u32], slab: Slab) {
    let (k_bytes, v_bytes) = slab.page_bytes();
    for [from, to] in pairs.as_chunks().0 {
        let place = |page: &u32| slab.at(*page as usize, 0, 0);
        if let (true, Some((from_k, from_v)), Some((to_k, to_v))) = (from != to, place(from), place(to)) {
            // SAFETY: both pages exist, whole; distinct pages do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(from_k, to_k, k_bytes);
                std::ptr::copy_nonoverlapping(from_v, to_v, v_bytes);
            }
        }
    }
}

/// Reads positions `0..out_k.rows` of a page-table row as plain rows; those in no page of the slab are not
/// written.
pub fn read(slab: Slab, pages: &[u32], out_k: RawMatMut, out_v: RawMatMut) -> Result<()> {
    let l = slab.layout;
    rows_fit("kv_read", out_k.as_raw(), out_v.as_raw(), l)?;
    for position in 0..out_k.rows {
        let Some(page) = pages.get(position / l.page_size) else { break };
        for head in 0..l.kv_heads {
            let Some((k, v)) = slab.at(*page as usize, head, position % l.page_size) else { break };
            let place = |start, dtype, stride| Place { start, dtype, stride };
            // SAFETY: as in `append_heads`, the other way round.
            unsafe {
                let to = out_k.row(position).add(head * l.k_dim * out_k.dtype.bytes());
                scatter(place(k, l.dtype, l.page_size), place(to, out_k.dtype, 1), l.k_dim);
                let to = out_v.row(position).add(head * l.v_dim * out_v.dtype.bytes());
                scatter(place(v, l.dtype, 1), place(to, out_v.dtype, 1), l.v_dim);
            }
        }
    }
    Ok(())
}
