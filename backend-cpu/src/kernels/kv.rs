//! The KV slab of one layer: its layout inside a page, appending, copying pages, reading back.
//!
//! A slot is `page * page_size + position in page`. Inside a page, keys lie transposed in panels of w positions (w = 16
//! where that divides the page size, else the whole page): `[kv head][page_size / w][k_dim][w]`; values lie in panels of 16
//! dimensions: `[kv head][v_dim / 16, rounded up][page_size][16]`. So the lanes of attention run over positions for keys
//! and over dimensions for values. Only [`KvShape`] knows this; no bit of a result depends on it.

use super::{Machine, Rows, over};
use crate::simd::{self, Kernel, Lanes};
use engraft_core::mem::Float;
use engraft_core::{Error, Result};
use std::ops::Range;

/// Dimensions of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Pages.
    pub pages: usize,
    /// Positions of a page.
    pub page_size: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub k_dim: usize,
    /// Width of a value.
    pub v_dim: usize,
    /// Element type.
    pub dtype: Float,
}

/// One layer's keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Kv {
    k: *mut u8,
    v: *mut u8,
    /// Dimensions.
    pub shape: KvShape,
}

// SAFETY: a view, as `RowsMut`: the maker promises that the kernels' threads may use the memory.
unsafe impl Send for Kv {}
// SAFETY: as above.
unsafe impl Sync for Kv {}

impl KvShape {
    /// Positions of a key panel.
    #[inline(always)]
    fn lane(&self) -> usize {
        if self.page_size.is_multiple_of(16) { 16 } else { self.page_size }
    }

    /// Elements of a page's keys.
    pub fn k_page(&self) -> usize {
        self.kv_heads * self.page_size * self.k_dim
    }

    /// Elements of a page's values.
    pub fn v_page(&self) -> usize {
        self.kv_heads * self.page_size * self.v_dim.next_multiple_of(16)
    }

    /// Bytes of the key slab.
    pub fn k_bytes(&self) -> usize {
        self.pages * self.k_page() * self.dtype.bytes()
    }

    /// Bytes of the value slab.
    pub fn v_bytes(&self) -> usize {
        self.pages * self.v_page() * self.dtype.bytes()
    }

    /// Element index of a key's dimension d.
    #[inline(always)]
    fn k_at(&self, slot: usize, head: usize, d: usize) -> usize {
        let (page, pos, w) = (slot / self.page_size, slot % self.page_size, self.lane());
        page * self.k_page() + ((head * (self.page_size / w) + pos / w) * self.k_dim + d) * w + pos % w
    }

    /// Element index of a value's dimension d.
    #[inline(always)]
    fn v_at(&self, slot: usize, head: usize, d: usize) -> usize {
        let (page, pos) = (slot / self.page_size, slot % self.page_size);
        page * self.v_page()
            + ((head * self.v_dim.div_ceil(16) + d / 16) * self.page_size + pos) * 16
            + d % 16
    }
}

impl Kv {
    /// A view of two slabs, which start out zeroed.
    ///
    /// # Safety
    /// While kernels use the view, `k` and `v` have `k_bytes` and `v_bytes` readable and writable bytes, aligned to the
    /// element, used by nobody else.
    pub unsafe fn new(k: *mut u8, v: *mut u8, shape: KvShape) -> Kv {
        Kv { k, v, shape }
    }

    /// Widens `count` consecutive positions of one key dimension; all lie in one panel.
    ///
    /// # Safety
    /// In range; `out` has room.
    #[inline(always)]
    pub(super) unsafe fn keys<V: Lanes>(
        &self,
        slot: usize,
        head: usize,
        d: usize,
        count: usize,
        out: *mut f32,
    ) {
        let s = &self.shape;
        // SAFETY: the caller's promise.
        unsafe { super::widen::<V>(self.k.add(s.k_at(slot, head, d) * s.dtype.bytes()), s.dtype, count, out) }
    }

    /// Positions from `slot` that share its key panel.
    #[inline(always)]
    pub(super) fn run_length(&self, slot: usize) -> usize {
        let (pos, w) = (slot % self.shape.page_size, self.shape.lane());
        w - pos % w
    }

    /// Widens 16 dimensions (from `16 * panel`) of `count` positions of one page, `[count][16]`.
    ///
    /// # Safety
    /// In range; `out` has room.
    #[inline(always)]
    pub(super) unsafe fn values<V: Lanes>(
        &self,
        slot: usize,
        head: usize,
        panel: usize,
        count: usize,
        out: *mut f32,
    ) {
        let s = &self.shape;
        // SAFETY: the caller's promise.
        unsafe {
            super::widen::<V>(
                self.v.add(s.v_at(slot, head, panel * 16) * s.dtype.bytes()),
                s.dtype,
                count * 16,
                out,
            );
        }
    }

    /// Writes element `at` of a slab.
    unsafe fn put(&self, slab: *mut u8, at: usize, v: f32) {
        // SAFETY: the caller's index lies in the slab.
        unsafe {
            match self.shape.dtype {
                Float::F32 => slab.cast::<f32>().add(at).write(v),
                Float::F16 => slab.cast::<u16>().add(at).write(half::f16::from_f32(v).to_bits()),
                Float::Bf16 => slab.cast::<u16>().add(at).write(half::bf16::from_f32(v).to_bits()),
            }
        }
    }

    /// Copies one page onto another.
    unsafe fn copy_page(&self, from: usize, to: usize) {
        let s = &self.shape;
        for (slab, elements) in [(self.k, s.k_page()), (self.v, s.v_page())] {
            let bytes = elements * s.dtype.bytes();
            // SAFETY: the caller's pages lie in the slab; `copy` also allows them to be the same.
            unsafe { std::ptr::copy(slab.add(from * bytes), slab.add(to * bytes), bytes) };
        }
    }

    unsafe fn get(&self, slab: *const u8, at: usize) -> f32 {
        // SAFETY: the caller's index lies in the slab.
        unsafe {
            match self.shape.dtype {
                Float::F32 => slab.cast::<f32>().add(at).read(),
                Float::F16 => half::f16::from_bits(slab.cast::<u16>().add(at).read()).to_f32(),
                Float::Bf16 => half::bf16::from_bits(slab.cast::<u16>().add(at).read()).to_f32(),
            }
        }
    }
}

fn bad<T>(what: &'static str, got: usize, want: usize) -> Result<T> {
    Err(Error::Shape { op: "kv", what, got, want })
}

/// Writes row t of `k` `[tokens, kv_heads * k_dim]` and `v` into slot `slots[t]`, rounded to the slab's dtype; -1 skips.
///
/// Slots within one call are distinct. Errors: shapes; a slot beyond the slab.
pub fn kv_append(machine: &Machine, kv: Kv, k: Rows, v: Rows, slots: &[i32]) -> Result<()> {
    let s = kv.shape;
    if k.rows != slots.len() || v.rows != slots.len() {
        return bad("rows of k and v", k.rows.min(v.rows), slots.len());
    }
    if k.cols != s.kv_heads * s.k_dim {
        return bad("columns of k", k.cols, s.kv_heads * s.k_dim);
    }
    if v.cols != s.kv_heads * s.v_dim {
        return bad("columns of v", v.cols, s.kv_heads * s.v_dim);
    }
    let total = s.pages * s.page_size;
    if let Some(slot) = slots.iter().find(|x| **x >= 0 && **x as usize >= total) {
        return bad("slot", *slot as usize, total);
    }
    over(machine, slots.len(), 16, |rows, _| {
        simd::run(machine.isa, machine.madd, Append { kv, k, v, slots, rows });
    })
}

struct Append<'a> {
    kv: Kv,
    k: Rows,
    v: Rows,
    slots: &'a [i32],
    rows: Range<usize>,
}

impl Kernel for Append<'_> {
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let s = self.kv.shape;
        let mut part = [0f32; 16];
        for t in self.rows {
            let Ok(slot) = usize::try_from(self.slots[t]) else { continue };
            for head in 0..s.kv_heads {
                for d in (0..s.k_dim).step_by(16) {
                    let n = (s.k_dim - d).min(16);
                    // SAFETY: slot, head and dimensions are in range; slots are distinct, so chunks write apart.
                    unsafe {
                        self.k.widen::<V>(t, head * s.k_dim + d, n, part.as_mut_ptr());
                        for (i, x) in part[..n].iter().enumerate() {
                            self.kv.put(self.kv.k, s.k_at(slot, head, d + i), *x);
                        }
                    }
                }
                for d in (0..s.v_dim).step_by(16) {
                    let n = (s.v_dim - d).min(16);
                    // SAFETY: as above.
                    unsafe {
                        self.v.widen::<V>(t, head * s.v_dim + d, n, part.as_mut_ptr());
                        let to = self.kv.v.add(s.v_at(slot, head, d) * s.dtype.bytes());
                        super::narrow::<V>(part.as_ptr(), n, to, s.dtype);
                    }
                }
            }
        }
    }
}

/// Copies whole pages: each `(from, to)` of `pairs`; no page is both a source and a target.
pub fn kv_copy_pages(machine: &Machine, kv: Kv, pairs: &[[u32; 2]]) -> Result<()> {
    let s = kv.shape;
    if let Some(p) = pairs.iter().flatten().find(|p| **p as usize >= s.pages) {
        return bad("page", *p as usize, s.pages);
    }
    over(machine, pairs.len(), 1, |range, _| {
        for [from, to] in &pairs[range] {
            // SAFETY: both pages lie in the slab, and no other chunk writes this target.
            unsafe { kv.copy_page(*from as usize, *to as usize) };
        }
    })
}

/// Reads the first `len` positions of a page list: k to `[len, kv_heads * k_dim]`, v to `[len, kv_heads * v_dim]`.
pub fn kv_gather(kv: Kv, pages: &[u32], len: usize, k: &mut [f32], v: &mut [f32]) -> Result<()> {
    let s = kv.shape;
    if let Some(p) = pages.iter().find(|p| **p as usize >= s.pages) {
        return bad("page", *p as usize, s.pages);
    }
    if pages.len() * s.page_size < len {
        return bad("positions of the pages", pages.len() * s.page_size, len);
    }
    let (kw, vw) = (s.kv_heads * s.k_dim, s.kv_heads * s.v_dim);
    if k.len() != len * kw || v.len() != len * vw {
        return bad("elements of k and v", k.len() + v.len(), len * (kw + vw));
    }
    for i in 0..len {
        let slot = pages[i / s.page_size] as usize * s.page_size + i % s.page_size;
        // SAFETY: slot, head and dimension in range.
        unsafe {
            for c in 0..kw {
                k[i * kw + c] = kv.get(kv.k, s.k_at(slot, c / s.k_dim, c % s.k_dim));
            }
            for c in 0..vw {
                v[i * vw + c] = kv.get(kv.v, s.v_at(slot, c / s.v_dim, c % s.v_dim));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::kernels::AlignedBytes;
    use crate::kernels::testing::{loaded, machines, stored, values};
    use engraft_core::numerics::Madd;

    #[test]
    fn what_is_appended_comes_back_also_from_a_copied_page() {
        for m in machines(Madd::Fused) {
            for dtype in [Float::F32, Float::F16, Float::Bf16] {
                for page_size in [1, 5, 16, 48] {
                    let s = KvShape {
                        pages: 96usize.div_ceil(page_size),
                        page_size,
                        kv_heads: 2,
                        k_dim: 7,
                        v_dim: 19,
                        dtype,
                    };
                    let (mut ks, mut vs) =
                        (AlignedBytes::zeroed(s.k_bytes()), AlignedBytes::zeroed(s.v_bytes()));
                    // SAFETY: the slabs outlive the calls.
                    let kv = unsafe { Kv::new(ks.as_mut_ptr(), vs.as_mut_ptr(), s) };
                    let len = 40usize;
                    let pages: Vec<u32> = (0..len.div_ceil(page_size) as u32).rev().collect();
                    let slot = |i: usize| (pages[i / page_size] as usize * page_size + i % page_size) as i32;
                    let mut slots: Vec<i32> = (0..len).map(slot).collect();
                    slots.push(-1);
                    let (k, v) = (values((len + 1) * 14, 1), values((len + 1) * 38, 2));
                    // SAFETY: the slices outlive the call.
                    let (kr, vr) = unsafe { (Rows::of(&k, 14), Rows::of(&v, 38)) };
                    kv_append(&m, kv, kr, vr, &slots).unwrap();
                    let last = s.pages as u32 - 1;
                    let mut moved = pages.clone();
                    if !pages.contains(&last) {
                        kv_copy_pages(&m, kv, &[[pages[0], last]]).unwrap();
                        moved[0] = last;
                    }
                    for list in [&pages, &moved] {
                        let (mut gk, mut gv) = (vec![0f32; len * 14], vec![0f32; len * 38]);
                        kv_gather(kv, list, len, &mut gk, &mut gv).unwrap();
                        assert_eq!(gk, loaded(&stored(&k[..len * 14], dtype), dtype));
                        assert_eq!(gv, loaded(&stored(&v[..len * 38], dtype), dtype));
                    }
                    slots[0] = (s.pages * page_size) as i32;
                    assert!(kv_append(&m, kv, kr, vr, &slots).is_err());
                }
            }
        }
    }
}
