//! Panels of GGUF's blocks of 256 values (the K-quants).
//!
//! A panel holds 16 output columns. Per 256 k: `d` (f16 x 16) and, in formats with minima, `e` (f16 x 16);
//! then eight spans of 32 k, each with its small scales (signed byte x 16 per part), its small minima
//! likewise, and its codes. Q2_K, Q3_K and Q4_K keep nibbles (4.6 to 5.1 bits per weight), those of Q3_K
//! with a sign; Q5_K and Q6_K keep a byte per code (8.6 bits). The format's zero is subtracted. Their files'
//! 2, 3, 5 and 6 bits would cost more to take apart per product than the rest costs to read.
//!
//! `d s` and `e t` are exact in f32, and so is `(d s) q`; the minimum is subtracted with one rounding in
//! either variant of multiply-add. Invariant: weights equal `engraft_core::quant::large`.

use super::panel::{PANEL, SPAN, Source, put_nibble};
use crate::simd::wide::Lanes16;
use engraft_core::mem::Block;
use engraft_core::quant::large::{code, scale_codes};

/// Spans of a block.
const SPANS: usize = Block::LARGE / SPAN;

/// K-quant panels: parts of a span that have scales of their own (1 or 2), whether there are minima, and what
/// codes are: [`BYTES`], [`NIBBLES`] or [`SIGNED`].
#[derive(Clone, Copy)]
pub struct Large<const PARTS: usize, const MIN: bool, const CODES: u8>;

/// Bytes with a sign.
const BYTES: u8 = 0;
/// Nibbles from 0 to 15.
const NIBBLES: u8 = 1;
/// Nibbles from -8 to 7. Lanes have them times 2^28, so 2^-28 goes to the scale, which is exact: products of
/// binary16 and small integers are far from subnormal.
const SIGNED: u8 = 2;

impl<const PARTS: usize, const MIN: bool, const CODES: u8> Large<PARTS, MIN, CODES> {
    /// Bytes of `d` and `e`.
    const HEAD: usize = 32 + if MIN { 32 } else { 0 };
    /// Bytes of small scales.
    const SCALES: usize = PARTS * PANEL;
    /// Bytes before a span's codes.
    const BEFORE: usize = Self::SCALES * if MIN { 2 } else { 1 };
    /// Bytes of a span.
    const SPAN: usize = Self::BEFORE + SPAN * Self::STRIDE;
    /// Bytes of a block.
    const BLOCK: usize = Self::HEAD + SPANS * Self::SPAN;

    #[inline(always)]
    fn span(k: usize) -> usize {
        k / Block::LARGE * Self::BLOCK + Self::HEAD + k % Block::LARGE / SPAN * Self::SPAN
    }

    #[inline(always)]
    fn weigh<W: Lanes16>(q: W, d: W, m: W) -> W {
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
                match CODES {
                    BYTES => span[Self::BEFORE + k * PANEL + j] = q as i8 as u8,
                    _ => put_nibble(&mut span[Self::BEFORE..], k, j, q as u8),
                }
            }
        }
    }
}

impl<const PARTS: usize, const MIN: bool, const CODES: u8> Source for Large<PARTS, MIN, CODES> {
    /// Factor, and minimum with its sign turned.
    type Scales<W: Lanes16> = [W; 2];
    /// Nibbles, or where bytes stand.
    type Eight<W: Lanes16> = (Option<W::Packed>, *const u8);
    const SHARE: usize = SPAN / PARTS;
    const STRIDE: usize = if CODES == BYTES { PANEL } else { PANEL / 2 };
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(Block::LARGE) * Self::BLOCK
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add(Self::span(k) + Self::BEFORE + k % SPAN * Self::STRIDE) }
    }
    // No closures here: they are compiled without the instruction set of the kernel around them, and what
    // the optimiser then leaves as calls took more time than the products.
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> [W; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let block = panel.add(k / Block::LARGE * Self::BLOCK);
            let small = panel.add(Self::span(k) + k % SPAN / Self::SHARE * PANEL);
            let mut d = W::load_f16(block.cast()).mul(W::load_i8(small));
            if CODES == SIGNED {
                d = d.mul(W::splat(1.0 / (1u32 << 28) as f32));
            }
            if !MIN {
                return [d, d];
            }
            let e = W::load_f16(block.add(32).cast()).mul(W::splat(-1.0));
            [d, e.mul(W::load_i8(small.add(Self::SCALES)))]
        }
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> Self::Eight<W> {
        let at = codes.wrapping_add(i * Self::STRIDE);
        // SAFETY: the caller's promise: whole spans.
        (if CODES == BYTES { None } else { Some(unsafe { W::packed(at) }) }, at)
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &Self::Eight<W>, s: &[W; 2]) -> W {
        let q = match eight.0 {
            Some(q) if CODES == SIGNED => W::signed::<J>(q),
            Some(q) => W::nibble::<J>(q),
            // SAFETY: the caller's promise.
            None => unsafe { W::load_i8(eight.1.add(J * PANEL)) },
        };
        Self::weigh(q, s[0], s[1])
    }
}

/// Panels of Q4_K.
pub type Nibbles4 = Large<1, true, NIBBLES>;
/// Panels of Q2_K.
pub type Nibbles2 = Large<2, true, NIBBLES>;
/// Panels of Q3_K.
pub type Nibbles3 = Large<2, false, SIGNED>;
/// Panels of Q5_K.
pub type Bytes5 = Large<1, true, BYTES>;
/// Panels of Q6_K.
pub type Bytes6 = Large<2, false, BYTES>;

/// Spreads block `i` of a row over column `j` of a panel.
pub fn pack(format: Block, stored: &[u8], panel: &mut [u8], i: usize, j: usize) {
    match format {
        Block::Q2K => Nibbles2::pack(format, stored, panel, i, j),
        Block::Q3K => Nibbles3::pack(format, stored, panel, i, j),
        Block::Q4K => Nibbles4::pack(format, stored, panel, i, j),
        Block::Q6K => Bytes6::pack(format, stored, panel, i, j),
        _ => Bytes5::pack(format, stored, panel, i, j),
    }
}
