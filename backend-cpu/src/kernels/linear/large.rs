//! Panels of GGUF's blocks of 256 values (the K-quants).
//!
//! A panel holds 16 output columns. Per 256 k: `d` (f16 x 16) and, in formats with minima, `e` (f16 x 16);
//! then eight spans of 32 k, each with its small scales (signed byte x 16 per part), its small minima
//! likewise, and its codes. Q4_K keeps nibbles (4.7 bits per weight); the others keep a byte per code, with
//! the format's zero subtracted (8.6 to 9.1 bits): their files' 2, 3, 5 and 6 bits would cost more to take
//! apart per product than the bytes cost to read.
//!
//! `d s` and `e t` are exact in f32, and so is `(d s) q`; the minimum is subtracted with one rounding in
//! either variant of multiply-add. Invariant: `one` and `pair` equal `engraft_core::quant::large`.

use super::panel::{PANEL, SPAN, Source, Wide};
use crate::simd::Lanes;
use engraft_core::mem::Block;
use engraft_core::quant::large::{code, scale_codes, zero};

/// Spans of a block.
const SPANS: usize = Block::LARGE / SPAN;

/// K-quant panels: parts of a span that have scales of their own (1 or 2), whether there are minima, whether
/// codes are nibbles.
#[derive(Clone, Copy)]
pub struct Large<const PARTS: usize, const MIN: bool, const NIBBLES: bool>;

impl<const PARTS: usize, const MIN: bool, const NIBBLES: bool> Large<PARTS, MIN, NIBBLES> {
    /// Bytes of `d` and `e`.
    const HEAD: usize = 32 + if MIN { 32 } else { 0 };
    /// Bytes of small scales.
    const SCALES: usize = PARTS * PANEL;
    /// Bytes before a span's codes.
    const CODES: usize = Self::SCALES * if MIN { 2 } else { 1 };
    /// Bytes of a span.
    const SPAN: usize = Self::CODES + SPAN * PANEL / if NIBBLES { 2 } else { 1 };
    /// Bytes of a block.
    const BLOCK: usize = Self::HEAD + SPANS * Self::SPAN;

    #[inline(always)]
    fn span(k: usize) -> usize {
        k / Block::LARGE * Self::BLOCK + Self::HEAD + k % Block::LARGE / SPAN * Self::SPAN
    }

    #[inline(always)]
    fn weigh<V: Lanes>(q: V, d: V, m: V) -> V {
        if MIN { q.madd(d, m) } else { q.mul(d) }
    }

    /// Spreads block `i` of a row over column `j` of a panel.
    pub fn pack(format: Block, stored: &[u8], panel: &mut [u8], i: usize, j: usize) {
        let block = &mut panel[i * Self::BLOCK..(i + 1) * Self::BLOCK];
        let (d, e) = match format {
            Block::Q2K => (80, 82),
            Block::Q3K => (108, 108),
            Block::Q6K => (208, 208),
            _ => (0, 2),
        };
        block[2 * j..2 * j + 2].copy_from_slice(&stored[d..d + 2]);
        if MIN {
            block[32 + 2 * j..32 + 2 * j + 2].copy_from_slice(&stored[e..e + 2]);
        }
        for s in 0..SPANS {
            let span = &mut block[Self::HEAD + s * Self::SPAN..][..Self::SPAN];
            for part in 0..PARTS {
                let (scale, min) = scale_codes(format, stored, 2 * s + part * (2 / PARTS));
                span[part * PANEL + j] = scale as u8;
                if MIN {
                    span[Self::SCALES + part * PANEL + j] = min as u8;
                }
            }
            for k in 0..SPAN {
                let q = code(format, stored, s * SPAN + k);
                if NIBBLES {
                    let byte = &mut span[Self::CODES + k / 2 * PANEL + j];
                    let shift = k % 2 * 4;
                    *byte = *byte & !(15 << shift) | ((q + zero(format)) as u8 & 15) << shift;
                } else {
                    span[Self::CODES + k * PANEL + j] = q as i8 as u8;
                }
            }
        }
    }
}

/// Sixteen f16 values.
#[inline(always)]
unsafe fn halves<V: Lanes>(p: *const u8) -> Wide<V> {
    // SAFETY: the caller's promise.
    unsafe { [V::load_f16(p.cast()), V::load_f16(p.cast::<u16>().add(8))] }
}

/// Sixteen signed bytes.
#[inline(always)]
unsafe fn bytes<V: Lanes>(p: *const u8) -> Wide<V> {
    // SAFETY: the caller's promise.
    unsafe { [V::load_i8(p), V::load_i8(p.add(8))] }
}

#[inline(always)]
fn times<V: Lanes>(a: Wide<V>, b: Wide<V>) -> Wide<V> {
    [a[0].mul(b[0]), a[1].mul(b[1])]
}

impl<const PARTS: usize, const MIN: bool, const NIBBLES: bool> Source for Large<PARTS, MIN, NIBBLES> {
    /// Factor, and minimum with its sign turned.
    type Scales<V: Lanes> = [Wide<V>; 2];
    const SHARE: usize = SPAN / PARTS;
    const STRIDE: usize = if NIBBLES { PANEL / 2 } else { PANEL };
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(Block::LARGE) * Self::BLOCK
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add(Self::span(k) + Self::CODES + k % SPAN * Self::STRIDE) }
    }
    // No closures here: they are compiled without the instruction set of the kernel around them, and what
    // the optimiser then leaves as calls took more time than the products.
    #[inline(always)]
    unsafe fn scales<V: Lanes>(panel: *const u8, k: usize) -> [Wide<V>; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let block = panel.add(k / Block::LARGE * Self::BLOCK);
            let small = panel.add(Self::span(k) + k % SPAN / Self::SHARE * PANEL);
            let d = times(halves::<V>(block), bytes::<V>(small));
            if !MIN {
                return [d, d];
            }
            let e = times(halves::<V>(block.add(32)), [V::splat(-1.0); 2]);
            [d, times(e, bytes::<V>(small.add(Self::SCALES)))]
        }
    }
    #[inline(always)]
    unsafe fn one<V: Lanes>(codes: *const u8, i: usize, s: &[Wide<V>; 2]) -> Wide<V> {
        // SAFETY: the caller's promise; a pair lies in one span.
        unsafe {
            if NIBBLES {
                return Self::pair(codes, i & !1, s)[i & 1];
            }
            let q = bytes::<V>(codes.add(i * PANEL));
            let [d, m] = s;
            [Self::weigh(q[0], d[0], m[0]), Self::weigh(q[1], d[1], m[1])]
        }
    }
    #[inline(always)]
    unsafe fn pair<V: Lanes>(codes: *const u8, i: usize, s: &[Wide<V>; 2]) -> [Wide<V>; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            if !NIBBLES {
                return [Self::one(codes, i, s), Self::one(codes, i + 1, s)];
            }
            let q = codes.add(i * Self::STRIDE);
            let ((a0, b0), (a1, b1)) = (V::nibbles(q), V::nibbles(q.add(8)));
            let [d, m] = s;
            [
                [Self::weigh(a0, d[0], m[0]), Self::weigh(a1, d[1], m[1])],
                [Self::weigh(b0, d[0], m[0]), Self::weigh(b1, d[1], m[1])],
            ]
        }
    }
}

/// Panels of Q4_K.
pub type Nibbles4 = Large<1, true, true>;
/// Panels of Q2_K and Q5_K.
pub type BytesMin = Large<2, true, false>;
/// Panels of Q3_K and Q6_K.
pub type BytesOnly = Large<2, false, false>;

/// Spreads block `i` of a row over column `j` of a panel.
pub fn pack(format: Block, stored: &[u8], panel: &mut [u8], i: usize, j: usize) {
    match format {
        Block::Q4K => Nibbles4::pack(format, stored, panel, i, j),
        Block::Q3K | Block::Q6K => BytesOnly::pack(format, stored, panel, i, j),
        _ => BytesMin::pack(format, stored, panel, i, j),
    }
}
