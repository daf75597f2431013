//! Panels of the own integer formats. They are those of GGUF's small blocks: a group's scale (and offset)
//! stands once per 32 k, whatever the group's size, so tails and groups of a whole row need no code of their
//! own in the inner loops. That costs 0.5 bit per weight (1 with offsets).
//!
//! int8 is read as Q8_0, int4 as Q4_0, int4 with offsets as Q4_1; only int8 with offsets has panels of its
//! own.

use super::panel::{PANEL, SPAN, Source, put_nibble};
use crate::simd::wide::Lanes16;
use engraft_core::mem::{GroupBits, Groups};
use engraft_core::quant::group::code;

/// Bytes with a scale and an offset per 32 k.
#[derive(Clone, Copy)]
pub struct BytesOffset;

/// Bytes of a span: scales, offsets, codes.
const BLOCK: usize = 64 + SPAN * PANEL;

impl Source for BytesOffset {
    type Scales<W: Lanes16> = [W; 2];
    type Eight<W: Lanes16> = *const u8;
    const SHARE: usize = SPAN;
    const STRIDE: usize = PANEL;
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(SPAN) * BLOCK
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add(k / SPAN * BLOCK + 64) }
    }
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> [W; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let p = panel.add(k / SPAN * BLOCK).cast::<u16>();
            [W::load_f16(p), W::load_f16(p.add(16))]
        }
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> *const u8 {
        codes.wrapping_add(i * PANEL)
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &*const u8, [d, m]: &[W; 2]) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_i8(eight.add(J * PANEL)).madd(*d, *m) }
    }
}

/// Spreads a stored row of `k` values over column `j` of a panel.
pub fn pack(format: Groups, k: usize, row: &[u8], panel: &mut [u8], j: usize) {
    let head = 32 + if format.asymmetric { 32 } else { 0 };
    let block = head + SPAN * PANEL / if format.bits == GroupBits::Four { 2 } else { 1 };
    let (size, mut rest) = (format.group(k), row);
    let mut at = 0;
    while at < k {
        let n = size.min(k - at);
        let (group, after) = rest.split_at(format.group_bytes(n));
        rest = after;
        for i in 0..n {
            let place = at + i;
            let span = &mut panel[place / SPAN * block..][..block];
            // Groups begin at multiples of 32, so a span has one scale.
            if place % SPAN == 0 {
                span[2 * j..2 * j + 2].copy_from_slice(&group[..2]);
                if format.asymmetric {
                    span[32 + 2 * j..32 + 2 * j + 2].copy_from_slice(&group[2..4]);
                }
            }
            let q = code(format, group, i);
            match format.bits {
                GroupBits::Eight => span[head + place % SPAN * PANEL + j] = q as i8 as u8,
                _ => put_nibble(&mut span[head..], place % SPAN, j, q as u8),
            }
        }
        at += n;
    }
}
