//! Keys and values in pages, as codes: a chunk's are widened to f32 into scratch first, exactly. So attention
//! has the bits of one over pages of f32 with the widened values.

use super::paged::Paged;
use super::*;
use crate::kernels::kv::Slab;
use crate::simd::{Lanes, WIDTH};
use engraft_core::mem::KvCode;
use engraft_core::quant::kv_row::decode_one;

/// Pages of codes.
pub(super) struct Coded<'a> {
    pub(super) paged: Paged<'a>,
    pub(super) code: KvCode,
}

/// Floats from one position's value to the next.
fn v_stride(v_dim: usize) -> usize {
    v_dim.next_multiple_of(WIDTH)
}

/// One run for a span: keys `[k_dim, CHUNK]`, values `[CHUNK, v_stride]`.
struct Wide {
    keys: *mut f32,
    values: *mut f32,
}

impl Keys for Coded<'_> {
    fn dtype(&self) -> Float {
        Float::F32
    }

    fn scratch(&self, heads: &Heads) -> usize {
        // Vector loads of keys pass a run's end.
        heads.k_dim * CHUNK + 2 * WIDTH + CHUNK * v_stride(heads.v_dim) + 4 * WIDTH
    }

    fn seqs(&self) -> usize {
        self.paged.seqs()
    }

    fn extent(&self, seq: usize) -> Extent {
        self.paged.extent(seq)
    }

    fn block_rows(&self) -> usize {
        self.paged.block_rows()
    }

    #[inline(always)]
    unsafe fn runs<V: Lanes>(&self, span: Span, scratch: *mut f32, runs: &mut [Run; CHUNK]) -> Option<usize> {
        let slab = &self.paged.slab;
        let (k_dim, v_stride) = (slab.layout.k_dim, v_stride(slab.layout.v_dim));
        // SAFETY: the parts of the scratch that `scratch()` asked for.
        let wide = unsafe { Wide { keys: scratch, values: scratch.add(k_dim * CHUNK + 2 * WIDTH) } };
        for (page, offset, len, at) in self.paged.pages_of(span)? {
            let from = (page, span.head, offset);
            // SAFETY: the page's positions exist, and the scratch has room for those of a chunk. The code is
            // known while compiling: a loop with one decoder is made of vectors.
            unsafe {
                match self.code {
                    KvCode::Int8 => {
                        wide.fill(slab, from, (len, at), |b, s| decode_one(KvCode::Int8, b, s))?
                    }
                    KvCode::Fp8 => wide.fill(slab, from, (len, at), |b, s| decode_one(KvCode::Fp8, b, s))?,
                }
            }
        }
        let (at, len) = (span.from - span.chunk, span.to - span.from);
        let (k, v) = (wide.keys.wrapping_add(at), wide.values.wrapping_add(at * v_stride));
        let (k, v) = (k.cast_const().cast(), v.cast_const().cast());
        runs[0] = Run { at, len, k, k_stride: CHUNK, v, v_stride };
        Some(1)
    }
}

impl Wide {
    /// Widens `len` positions of a page from `offset` on to the places from `to` on.
    ///
    /// # Safety
    /// They are positions of one page of the slab, and places of a chunk.
    #[inline(always)]
    unsafe fn fill(
        &self,
        slab: &Slab,
        (page, head, offset): (usize, usize, usize),
        (len, to): (usize, usize),
        decode: impl Fn(u8, f32) -> f32,
    ) -> Option<()> {
        let l = &slab.layout;
        let (k, v) = slab.at(page, head, offset)?;
        let [k_scales, v_scales] = slab.scales_at(page, head, offset)?;
        // SAFETY: the caller's promise; a page's keys are `[d][position]`, its values `[position][d]`.
        unsafe {
            let k_scales = std::slice::from_raw_parts(k_scales, len);
            for d in 0..l.k_dim {
                let codes = std::slice::from_raw_parts(k.add(d * l.page_size), len);
                let row = std::slice::from_raw_parts_mut(self.keys.add(d * CHUNK + to), len);
                for ((to, code), scale) in row.iter_mut().zip(codes).zip(k_scales) {
                    *to = decode(*code, *scale);
                }
            }
            for i in 0..len {
                let codes = std::slice::from_raw_parts(v.add(i * l.v_dim), l.v_dim);
                let place = self.values.add((to + i) * v_stride(l.v_dim));
                let (row, scale) = (std::slice::from_raw_parts_mut(place, l.v_dim), *v_scales.add(i));
                for (to, code) in row.iter_mut().zip(codes) {
                    *to = decode(*code, scale);
                }
            }
        }
        Some(())
    }
}
