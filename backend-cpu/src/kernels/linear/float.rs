//! Panels of small floats and of codes of a table (GGUF's IQ4_NL and IQ4_XS among them): `d * value`, rounded
//! once.
//!
//! Per 32 k (FP4 in groups of 16: per 16) the scales in f32 (16 of them), then the codes: `[k][16]` bytes, or
//! nibbles as `panel::put_nibble` has them. Scales stand once per span, whatever the group's size: 1 bit
//! per weight, 2 where it is 16 values.
//!
//! Bytes widen as binary16 values do: those of e4m3 as 2^-8 times their value; those of FP6 are put into
//! panels as bytes of e5m2, where they are 2^-12 times theirs (8 bits instead of 6: memory for speed). The
//! power goes to the scale, exactly: scales are at most 2^100, or so small that a power upwards cannot round
//! them.

use super::panel::{PANEL, SPAN, Source, put_nibble};
use crate::simd::wide::Lanes16;
use engraft_core::mem::{Block, GroupBits, Groups};
use engraft_core::quant::block::places;
use engraft_core::quant::float_group::{code, scale};
use engraft_core::quant::small_float::{E2M1, IQ4, NF4};

/// Bytes of e4m3, or of e5m2, whose values are 2^-UP times those of the format.
#[derive(Clone, Copy)]
pub struct Bytes<const E4M3: bool, const UP: u32>;

/// Nibbles, places in one of [`TABLES`], with a scale for so many k.
#[derive(Clone, Copy)]
pub struct Places<const TABLE: usize, const SHARED: usize>;

/// What nibbles stand for.
const TABLES: [&[f32; 16]; 3] = [&E2M1, &NF4, &IQ4];

/// Panels of FP8 with four bits of exponent.
pub type Fp8 = Bytes<true, 8>;
/// Panels of FP8 with five bits of exponent.
pub type Fp8Wide = Bytes<false, 0>;
/// Panels of FP6.
pub type Fp6 = Bytes<false, 12>;
/// Panels of FP4 and MXFP4.
pub type Fp4 = Places<0, SPAN>;
/// Panels of FP4 in groups of 16.
pub type Fp4Fine = Places<0, 16>;
/// Panels of NF4.
pub type Nf4 = Places<1, SPAN>;
/// Panels of IQ4_NL and IQ4_XS.
pub type Iq4 = Places<2, SPAN>;

/// Bytes of the scales of a span.
const SCALES: usize = 4 * PANEL;

impl<const E4M3: bool, const UP: u32> Source for Bytes<E4M3, UP> {
    type Scales<W: Lanes16> = W;
    type Eight<W: Lanes16> = *const u8;
    const SHARE: usize = SPAN;
    const STRIDE: usize = PANEL;
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(SPAN) * (SCALES + SPAN * PANEL)
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add((k / SPAN + 1) * SCALES + k * PANEL) }
    }
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> W {
        // SAFETY: the caller's promise.
        let d = unsafe { W::load(panel.add(k / SPAN * (SCALES + SPAN * PANEL)).cast()) };
        if UP == 0 {
            return d;
        }
        d.mul(W::splat((1u32 << UP) as f32))
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> *const u8 {
        codes.wrapping_add(i * PANEL)
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &*const u8, s: &W) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_f8::<E4M3>(eight.add(J * PANEL)).mul(*s) }
    }
}

impl<const TABLE: usize, const SHARED: usize> Places<TABLE, SHARED> {
    const VALUES: &[f32; 16] = TABLES[TABLE];
    const BLOCK: usize = SCALES + SHARED * PANEL / 2;
}

impl<const TABLE: usize, const SHARED: usize> Source for Places<TABLE, SHARED> {
    type Scales<W: Lanes16> = W;
    type Eight<W: Lanes16> = W::Packed;
    const SHARE: usize = SHARED;
    const STRIDE: usize = PANEL / 2;
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(SHARED) * Self::BLOCK
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add(k / SHARED * Self::BLOCK + SCALES) }
    }
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load(panel.add(k / SHARED * Self::BLOCK).cast()) }
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> W::Packed {
        // SAFETY: the caller's promise: whole spans.
        unsafe { W::packed(codes.add(i * Self::STRIDE)) }
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &W::Packed, s: &W) -> W {
        W::entry::<J>(*eight, Self::VALUES).mul(*s)
    }
}

/// Spreads a stored row of `k` values over column `j` of a panel.
pub fn pack(format: Groups, k: usize, row: &[u8], panel: &mut [u8], j: usize) {
    let share = if format.size == 16 { 16 } else { SPAN };
    let nibbles = format.bits.count() == 4;
    let block = SCALES + share * PANEL / if nibbles { 2 } else { 1 };
    let (size, mut rest, mut at) = (format.group(k), row, 0);
    while at < k {
        let n = size.min(k - at);
        let (group, after) = rest.split_at(format.group_bytes(n));
        rest = after;
        for i in 0..n {
            let place = at + i;
            let span = &mut panel[place / share * block..][..block];
            if place % share == 0 {
                span[4 * j..4 * j + 4].copy_from_slice(&scale(format, group).to_le_bytes());
            }
            let q = code(format, group, i);
            match nibbles {
                true => {
                    put_nibble(&mut span[SCALES..], place % share, j, q);
                }
                false => {
                    let q = if format.bits == GroupBits::E3m2 { (q & 32) << 2 | q & 31 } else { q };
                    span[SCALES + place % share * PANEL + j] = q;
                }
            }
        }
        at += n;
    }
}

/// Spreads a stored row of IQ4_NL or IQ4_XS over column `j` of a panel.
pub fn pack_blocks(format: Block, row: &[u8], panel: &mut [u8], j: usize) {
    let runs = format.values() / SPAN;
    for (i, span) in panel.chunks_exact_mut(Iq4::BLOCK).enumerate() {
        let raw = &row[i / runs * format.bytes()..][..format.bytes()];
        let (d, codes) = places(format, raw, i % runs);
        span[4 * j..4 * j + 4].copy_from_slice(&d.to_le_bytes());
        for (k, q) in codes.into_iter().enumerate() {
            put_nibble(&mut span[SCALES..], k, j, q);
        }
    }
}
