//! Paged keys and values: append, copy, read.
//!
//! A page of the key slab is `[kv_head][d][position]`, of the value slab `[kv_head][position][d]`: scores vectorise over
//! positions, outputs over value columns. Slabs end in [`PAD`] bytes that vector loads may touch.

use super::{Machine, Rows, RowsMut, over};
use engraft_core::Result;
use engraft_core::kv::KvLayout;
use engraft_core::mem::Float;

/// Bytes behind a slab that loads may read and nobody uses.
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
    /// Shape.
    pub layout: KvLayout,
}

// SAFETY: pointers only; who may touch the slabs when is the stream's affair, and kernels write disjoint slots.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Slabs of [`slab_bytes`].
    ///
    /// # Safety
    /// They are that large and stay alive while the slab is used.
    pub unsafe fn new(k: *mut u8, v: *mut u8, layout: KvLayout) -> Slab {
        Slab { k, v, layout }
    }

    /// Element `(d = 0, offset)` of a page's keys.
    #[inline(always)]
    pub fn key(&self, page: usize, head: usize, offset: usize) -> *mut u8 {
        let l = &self.layout;
        assert!(page < l.pages && head < l.kv_heads && offset < l.page_size, "page {page} of {}", l.pages);
        let at = (page * l.kv_heads + head) * l.k_dim * l.page_size + offset;
        self.k.wrapping_add(at * l.dtype.bytes())
    }

    /// Element `(offset, d = 0)` of a page's values.
    #[inline(always)]
    pub fn value(&self, page: usize, head: usize, offset: usize) -> *mut u8 {
        let l = &self.layout;
        assert!(page < l.pages && head < l.kv_heads && offset < l.page_size, "page {page} of {}", l.pages);
        let at = ((page * l.kv_heads + head) * l.page_size + offset) * l.v_dim;
        self.v.wrapping_add(at * l.dtype.bytes())
    }

    fn page_bytes(&self) -> (usize, usize) {
        let per = self.layout.kv_heads * self.layout.page_size * self.layout.dtype.bytes();
        (per * self.layout.k_dim, per * self.layout.v_dim)
    }
}

/// Copies `count` elements, each rounded from `from`'s type to `to`'s.
///
/// # Safety
/// `from` has `count` elements in sequence; `to` has them `stride` elements apart.
unsafe fn scatter(
    from: *const u8,
    from_dtype: Float,
    to: *mut u8,
    to_dtype: Float,
    stride: usize,
    count: usize,
) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let value = load(from, from_dtype, i);
            store(to, to_dtype, i * stride, value);
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

/// Writes row `t` of k and v to `slots[t]`; negative slots are skipped. Slots are distinct, heads are shared out.
///
/// Errors: a slot beyond the slab (as a failed assertion).
pub fn append(machine: &Machine, k: Rows, v: Rows, slots: &[i32], slab: Slab) -> Result<()> {
    let l = slab.layout;
    // One row is written faster than a thread wakes.
    let heads = if slots.len() < 8 { l.kv_heads } else { 1 };
    over(machine, l.kv_heads, heads, |heads, _| append_heads(k, v, slots, slab, heads))
}

fn append_heads(k: Rows, v: Rows, slots: &[i32], slab: Slab, heads: std::ops::Range<usize>) {
    let l = slab.layout;
    for (t, slot) in slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        let (page, offset) = (slot / l.page_size, slot % l.page_size);
        for head in heads.clone() {
            // SAFETY: `key` and `value` assert that the slot exists; rows have kv_heads * dim elements.
            unsafe {
                let from = k.row(t).add(head * l.k_dim * k.dtype.bytes());
                scatter(from, k.dtype, slab.key(page, head, offset), l.dtype, l.page_size, l.k_dim);
                let from = v.row(t).add(head * l.v_dim * v.dtype.bytes());
                scatter(from, v.dtype, slab.value(page, head, offset), l.dtype, 1, l.v_dim);
            }
        }
    }
}

/// Copies whole pages, `[from, to, from, to, ...]`.
pub fn copy_pages(pairs: &[u32], slab: Slab) {
    let (k_bytes, v_bytes) = slab.page_bytes();
    for pair in pairs.chunks_exact(2) {
        let (from, to) = (pair[0] as usize, pair[1] as usize);
        if from != to {
            // SAFETY: `key` and `value` assert that the pages exist; distinct pages do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(slab.key(from, 0, 0), slab.key(to, 0, 0), k_bytes);
                std::ptr::copy_nonoverlapping(slab.value(from, 0, 0), slab.value(to, 0, 0), v_bytes);
            }
        }
    }
}

/// Reads positions `0..out_k.rows` of a page-table row as plain rows.
pub fn read(slab: Slab, pages: &[u32], out_k: RowsMut, out_v: RowsMut) {
    let l = slab.layout;
    for position in 0..out_k.rows {
        let (page, offset) = (pages[position / l.page_size] as usize, position % l.page_size);
        for head in 0..l.kv_heads {
            let (k, v) = (slab.key(page, head, offset), slab.value(page, head, offset));
            for d in 0..l.k_dim {
                // SAFETY: as in `append`.
                unsafe {
                    let value = load(k, l.dtype, d * l.page_size);
                    store(out_k.row(position), out_k.dtype, head * l.k_dim + d, value);
                }
            }
            for d in 0..l.v_dim {
                // SAFETY: as in `append`.
                unsafe { store(out_v.row(position), out_v.dtype, head * l.v_dim + d, load(v, l.dtype, d)) };
            }
        }
    }
}
