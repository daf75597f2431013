//! Paged keys and values: append, copy, read.
//!
//! A page of the key slab is `[kv_head][d][position]`, of the value slab `[kv_head][position][d]`: scores
//! vectorise over positions, outputs over value columns. Of codes a head of a page ends in the scales of its
//! positions. Slabs end in [`PAD`] bytes that vector loads may touch: they belong to the slab.

use super::{Machine, RawMat, RawMatMut, check_factors, narrow, over, same};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::Result;
use engraft_core::mem::{Float, KvCode, KvFormat, KvLayout};
use engraft_core::quant::kv_row;

/// Bytes behind a slab that loads may read and nothing uses.
pub const PAD: usize = 128;

/// Bytes of the key and the value slab.
pub fn slab_bytes(layout: &KvLayout) -> (usize, usize) {
    let heads = layout.pages * layout.kv_heads;
    (heads * head_bytes(layout, layout.k_dim) + PAD, heads * head_bytes(layout, layout.v_dim) + PAD)
}

/// Bytes of a head of a page; whole words, so that scales are aligned.
fn head_bytes(l: &KvLayout, width: usize) -> usize {
    match l.format {
        KvFormat::Plain(dtype) => l.page_size * width * dtype.bytes(),
        KvFormat::Coded(_) => scales_at(l, width) + l.page_size * KvFormat::SCALE,
    }
}

/// Where the scales of a head of a page begin.
fn scales_at(l: &KvLayout, width: usize) -> usize {
    (l.page_size * width).next_multiple_of(KvFormat::SCALE)
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
        let [k, v] = self.heads_at(page, head, offset)?;
        let bytes = l.format.float().map_or(1, Float::bytes);
        Some((k.wrapping_add(offset * bytes), v.wrapping_add(offset * l.v_dim * bytes)))
    }

    /// The scales of the same position's key and value, where the slab is of codes.
    #[inline(always)]
    pub(super) fn scales_at(&self, page: usize, head: usize, offset: usize) -> Option<[*mut f32; 2]> {
        let l = &self.layout;
        let [k, v] = self.heads_at(page, head, offset)?;
        let scale = |start: *mut u8, width| {
            start.wrapping_add(scales_at(l, width)).cast::<f32>().wrapping_add(offset)
        };
        l.format.float().is_none().then_some([scale(k, l.k_dim), scale(v, l.v_dim)])
    }

    /// Where a head of a page begins in both slabs.
    #[inline(always)]
    fn heads_at(&self, page: usize, head: usize, offset: usize) -> Option<[*mut u8; 2]> {
        let l = &self.layout;
        if page >= l.pages || head >= l.kv_heads || offset >= l.page_size {
            return None;
        }
        let head = page * l.kv_heads + head;
        let start = |slab: *mut u8, width| slab.wrapping_add(head * head_bytes(l, width));
        Some([start(self.k, l.k_dim), start(self.v, l.v_dim)])
    }

    /// A position's key and value.
    #[inline(always)]
    fn places(&self, page: usize, head: usize, offset: usize) -> Option<[Place; 2]> {
        let l = &self.layout;
        let (k, v) = self.at(page, head, offset)?;
        let [k_scale, v_scale] = self.scales_at(page, head, offset).unwrap_or([std::ptr::null_mut(); 2]);
        let place = |start, stride, scale| Place { start, format: l.format, stride, scale };
        Some([place(k, l.page_size, k_scale), place(v, 1, v_scale)])
    }

    fn page_bytes(&self) -> (usize, usize) {
        let l = &self.layout;
        (l.kv_heads * head_bytes(l, l.k_dim), l.kv_heads * head_bytes(l, l.v_dim))
    }
}

/// Elements of one type, or codes with their scale.
#[derive(Clone, Copy)]
struct Place {
    start: *mut u8,
    format: KvFormat,
    /// Elements from one to the next.
    stride: usize,
    /// Of codes.
    scale: *mut f32,
}

impl Place {
    /// Elements of a row.
    fn row(start: *mut u8, dtype: Float) -> Self {
        Place { start, format: dtype.into(), stride: 1, scale: std::ptr::null_mut() }
    }

    /// Rounds `count` values to this place's format; they are read twice.
    ///
    /// # Safety
    /// It has so many elements, which belong to the caller.
    #[inline(always)]
    unsafe fn put(self, count: usize, values: impl Fn(usize) -> f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.format {
                KvFormat::Plain(dtype) => {
                    (0..count).for_each(|i| store(self.start, dtype, i * self.stride, values(i)));
                }
                KvFormat::Coded(code) => self.put_codes(code, count, values),
            }
        }
    }

    #[inline(always)]
    unsafe fn put_codes(self, code: KvCode, count: usize, values: impl Fn(usize) -> f32) {
        let top = (0..count).fold(0, |top, i| kv_row::larger(top, values(i)));
        let (scale, inverse) = kv_row::scale(code, top);
        // SAFETY: the caller's promise.
        unsafe {
            *self.scale = scale;
            for i in 0..count {
                *self.start.add(i * self.stride) = kv_row::encode_one(code, values(i), inverse);
            }
        }
    }

    /// One value, widened.
    ///
    /// # Safety
    /// It has more than `i` elements.
    #[inline(always)]
    unsafe fn get(self, i: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.format {
                KvFormat::Plain(dtype) => load(self.start, dtype, i * self.stride),
                KvFormat::Coded(code) => {
                    kv_row::decode_one(code, *self.start.add(i * self.stride), *self.scale)
                }
            }
        }
    }
}

/// Copies `count` elements, rounded to the format of `to`.
///
/// # Safety
/// Both have so many elements; those of `to` belong to the caller.
#[inline(always)]
unsafe fn scatter(from: Place, to: Place, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.put(count, |i| from.get(i)) }
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
    over(machine, l.kv_heads, heads, |heads, _| match l.format {
        KvFormat::Plain(dtype) => {
            simd::run(machine.isa, machine.madd, Append { k, v, slots, slab, dtype, heads });
        }
        KvFormat::Coded(_) => append_heads(k, v, slots, slab, heads),
    })
}

/// Some heads of [`append`] to a slab of elements.
struct Append<'a> {
    k: RawMat,
    v: RawMat,
    slots: &'a [i32],
    slab: Slab,
    dtype: Float,
    heads: std::ops::Range<usize>,
}

impl Kernel for Append<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let l = self.slab.layout;
        for (t, slot) in self.slots.iter().enumerate() {
            let Ok(slot) = usize::try_from(*slot) else { continue };
            for head in self.heads.clone() {
                let Some((k, v)) = self.slab.at(slot / l.page_size, head, slot % l.page_size) else { break };
                // SAFETY: rows have kv_heads * dim elements; the slot exists, and this head of it belongs to
                // this call.
                unsafe {
                    self.key::<V>(t, head, k);
                    self.value::<V>(t, head, v);
                }
            }
        }
    }
}

impl Append<'_> {
    /// Columns that are rounded at a time.
    const SOME: usize = 64;

    /// Writes a head's key of row `t` to the slab, where its elements lie a page apart.
    ///
    /// # Safety
    /// Row and head exist, and the elements from `to` on belong to this call.
    #[inline(always)]
    unsafe fn key<V: Lanes>(&self, t: usize, head: usize, to: *mut u8) {
        let l = &self.slab.layout;
        let (mut wide, mut some) = ([0f32; Self::SOME], [0u32; Self::SOME]);
        let some = some.as_mut_ptr();
        for c in (0..l.k_dim).step_by(Self::SOME) {
            let n = (l.k_dim - c).min(Self::SOME);
            // SAFETY: the caller's promise; at most as many elements as the arrays have.
            unsafe {
                self.k.widen::<V>(t, head * l.k_dim + c, n, wide.as_mut_ptr());
                narrow::<V>(wide.as_ptr(), n, some.cast(), self.dtype);
                match self.dtype {
                    Float::F32 => apart(some, n, to.cast::<u32>().add(c * l.page_size), l.page_size),
                    Float::F16 | Float::Bf16 => {
                        apart(some.cast::<u16>(), n, to.cast::<u16>().add(c * l.page_size), l.page_size);
                    }
                }
            }
        }
    }

    /// The same of its value, whose elements lie together.
    ///
    /// # Safety
    /// As for `key`.
    #[inline(always)]
    unsafe fn value<V: Lanes>(&self, t: usize, head: usize, to: *mut u8) {
        let l = &self.slab.layout;
        let mut wide = [0f32; Self::SOME];
        for c in (0..l.v_dim).step_by(Self::SOME) {
            let n = (l.v_dim - c).min(Self::SOME);
            // SAFETY: as above.
            unsafe {
                self.v.widen::<V>(t, head * l.v_dim + c, n, wide.as_mut_ptr());
                narrow::<V>(wide.as_ptr(), n, to.add(c * self.dtype.bytes()), self.dtype);
            }
        }
    }
}

/// Copies `n` elements to places so far apart.
///
/// # Safety
/// There are `n` at `from`, and places for them from `to` on.
#[inline(always)]
unsafe fn apart<T: Copy>(from: *const T, n: usize, to: *mut T, stride: usize) {
    for i in 0..n {
        // SAFETY: the caller's promise.
        unsafe { *to.add(i * stride) = *from.add(i) };
    }
}

/// Some heads of [`append`] to a slab of codes.
fn append_heads(k: RawMat, v: RawMat, slots: &[i32], slab: Slab, heads: std::ops::Range<usize>) {
    let l = slab.layout;
    for (t, slot) in slots.iter().enumerate() {
        let Ok(slot) = usize::try_from(*slot) else { continue };
        for head in heads.clone() {
            let Some([to_k, to_v]) = slab.places(slot / l.page_size, head, slot % l.page_size) else { break };
            // SAFETY: rows have kv_heads * dim elements; the slot exists, and this head of it belongs to this
            // call.
            unsafe {
                let from = k.row(t).add(head * l.k_dim * k.dtype.bytes()).cast_mut();
                scatter(Place::row(from, k.dtype), to_k, l.k_dim);
                let from = v.row(t).add(head * l.v_dim * v.dtype.bytes()).cast_mut();
                scatter(Place::row(from, v.dtype), to_v, l.v_dim);
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
            let Some([k, v]) = slab.places(*page as usize, head, position % l.page_size) else { break };
            // SAFETY: as in `append_heads`, the other way round.
            unsafe {
                let to = out_k.row(position).add(head * l.k_dim * out_k.dtype.bytes());
                scatter(k, Place::row(to, out_k.dtype), l.k_dim);
                let to = out_v.row(position).add(head * l.v_dim * out_v.dtype.bytes());
                scatter(v, Place::row(to, out_v.dtype), l.v_dim);
            }
        }
    }
    Ok(())
}
