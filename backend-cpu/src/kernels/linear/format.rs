//! Weight formats as the inner loops see them: 16 output columns of one k, widened to f32.
//!
//! A panel holds 16 output columns. Plain formats: `[k][16]` elements. Block formats: per 32 k, the scales
//! (f16 x 16), the minima (f16 x 16, `_1` formats only), the fifth bits (one u16 mask per k, 5-bit formats
//! only), and the codes:
//! `[32][16]` bytes for Q8_0, nibbles as `panel::put_nibble` has them for the others. The codes of Q4_0 have
//! their 8 subtracted, as nibbles with a sign.
//!
//! A weight is `d * q` (exact: 11 + 8 bits at most) or `d * q + m` (the product is exact, so it is rounded
//! once in both kinds of multiply-add), with q after its offset. Invariant: `one`, `pair` and `value` agree
//! bit for bit.

use super::panel::{PANEL, SPAN, Source};
use crate::simd::wide::Lanes16;
use engraft_core::mem::{Block, Float, WeightFormat};
use engraft_core::quant;
use half::f16;

/// f32 panels.
#[derive(Clone, Copy)]
pub struct PlainF32;
/// binary16 panels.
#[derive(Clone, Copy)]
pub struct PlainF16;
/// bfloat16 panels.
#[derive(Clone, Copy)]
pub struct PlainBf16;
/// Q8_0 panels.
#[derive(Clone, Copy)]
pub struct Bytes8;
/// 4- and 5-bit panels: offset of the code, whether there is a minimum, whether there is a fifth bit.
#[derive(Clone, Copy)]
pub struct Nibbles<const OFFSET: i32, const MIN: bool, const FIVE: bool>;

macro_rules! plain {
    ($name:ident, $elem:ty, $load:ident) => {
        impl Source for $name {
            type Scales<W: Lanes16> = ();
            type Eight<W: Lanes16> = *const $elem;
            const SHARE: usize = 0;
            const STRIDE: usize = PANEL * size_of::<$elem>();
            #[inline(always)]
            fn panel_bytes(k: usize) -> usize {
                k * Self::STRIDE
            }
            #[inline(always)]
            unsafe fn codes(panel: *const u8, _: usize) -> *const u8 {
                panel
            }
            #[inline(always)]
            unsafe fn scales<W: Lanes16>(_: *const u8, _: usize) {}
            #[inline(always)]
            unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> *const $elem {
                codes.cast::<$elem>().wrapping_add(i * PANEL)
            }
            #[inline(always)]
            unsafe fn nth<W: Lanes16, const J: usize>(eight: &*const $elem, _: &()) -> W {
                // SAFETY: the caller's promise: 16 elements at J.
                unsafe { W::$load(eight.add(J * PANEL)) }
            }
        }
    };
}
plain!(PlainF32, f32, load);
plain!(PlainF16, u16, load_f16);
plain!(PlainBf16, u16, load_bf16);

impl Source for Bytes8 {
    type Scales<W: Lanes16> = W;
    type Eight<W: Lanes16> = *const u8;
    const SHARE: usize = SPAN;
    const STRIDE: usize = PANEL;
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(SPAN) * (32 + SPAN * PANEL)
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add((k / SPAN + 1) * 32 + k * PANEL) }
    }
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_f16(panel.add(k / SPAN * (32 + SPAN * PANEL)).cast()) }
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> *const u8 {
        codes.wrapping_add(i * PANEL)
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &*const u8, s: &W) -> W {
        // SAFETY: the caller's promise.
        unsafe { W::load_i8(eight.add(J * PANEL)).mul(*s) }
    }
}

impl<const OFFSET: i32, const MIN: bool, const FIVE: bool> Nibbles<OFFSET, MIN, FIVE> {
    /// Codes of four bits without a minimum have a sign of their own.
    const SIGNED: bool = !MIN && !FIVE;
    const BITS: usize = 32 + if MIN { 32 } else { 0 };
    const CODES: usize = Self::BITS + if FIVE { SPAN * 2 } else { 0 };
    const BLOCK: usize = Self::CODES + SPAN * PANEL / 2;

    #[inline(always)]
    fn weigh<W: Lanes16>(q: W, d: W, m: W) -> W {
        if MIN { q.madd(d, m) } else { q.mul(d) }
    }
}

impl<const OFFSET: i32, const MIN: bool, const FIVE: bool> Source for Nibbles<OFFSET, MIN, FIVE> {
    type Scales<W: Lanes16> = [W; 2];
    /// Nibbles, and where the masks of fifth bits stand.
    type Eight<W: Lanes16> = (W::Packed, *const u16);
    const SHARE: usize = SPAN;
    const STRIDE: usize = PANEL / 2;
    #[inline(always)]
    fn panel_bytes(k: usize) -> usize {
        k.div_ceil(SPAN) * Self::BLOCK
    }
    #[inline(always)]
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8 {
        // SAFETY: the caller's promise.
        unsafe { panel.add(k / SPAN * Self::BLOCK + Self::CODES) }
    }
    #[inline(always)]
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> [W; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let b = panel.add(k / SPAN * Self::BLOCK);
            let d = W::load_f16(b.cast());
            if Self::SIGNED {
                // Nibbles with a sign come times 2^28. Both products are exact: no f16 is so small.
                return [d.mul(W::splat(1.0 / (1u32 << 28) as f32)); 2];
            }
            [d, if MIN { W::load_f16(b.add(32).cast()) } else { d }]
        }
    }
    #[inline(always)]
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> (W::Packed, *const u16) {
        // SAFETY: the caller's promise: whole spans. The fifth bits end where the codes begin.
        let q = unsafe { W::packed(codes.add(i * Self::STRIDE)) };
        (q, if FIVE { codes.wrapping_sub(SPAN * 2).wrapping_add(i * 2).cast() } else { codes.cast() })
    }
    #[inline(always)]
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &(W::Packed, *const u16), s: &[W; 2]) -> W {
        let ((q, fifth), [d, m]) = (*eight, *s);
        if Self::SIGNED {
            return W::signed::<J>(q).mul(d);
        }
        if !FIVE {
            return Self::weigh(W::nibble::<J>(q), d, m);
        }
        // SAFETY: the caller's promise: a mask for each k of the span.
        let fifth = u16::from_le(unsafe { fifth.add(J).read_unaligned() });
        Self::weigh(W::five_bits::<J>(q, fifth, OFFSET), d, m)
    }
}

/// Bytes of one row of `k` values as files store it.
pub fn row_bytes(format: WeightFormat, k: usize) -> usize {
    format.bytes(1, k)
}

/// One value of a stored row: the scalar words that define every format.
pub fn value(format: WeightFormat, row: &[u8], k: usize) -> f32 {
    let half_at = |p: usize| f16::from_le_bytes([row[p], row[p + 1]]).to_f32();
    let block = match format {
        WeightFormat::Plain(Float::F32) => {
            return f32::from_le_bytes([row[4 * k], row[4 * k + 1], row[4 * k + 2], row[4 * k + 3]]);
        }
        WeightFormat::Plain(Float::F16) => return half_at(2 * k),
        WeightFormat::Plain(Float::Bf16) => {
            return half::bf16::from_le_bytes([row[2 * k], row[2 * k + 1]]).to_f32();
        }
        WeightFormat::Block(b) if b.is_large() => {
            let (i, at) = (k % Block::LARGE, k / Block::LARGE * b.bytes());
            let (d, m) = quant::large::scale(b, &row[at..], i / quant::large::PART);
            return d * quant::large::code(b, &row[at..], i) as f32 - m;
        }
        WeightFormat::Block(b) => b,
        // Rows of the own formats cannot be entered in the middle without their length.
        _ => return f32::NAN,
    };
    let at = k / SPAN * block.bytes();
    let d = half_at(at);
    let q = i32::from(code(block, &row[at..], k % SPAN));
    match block {
        Block::Q8_0 => d * (q as u8 as i8) as f32,
        Block::Q4_0 => d * (q - 8) as f32,
        Block::Q5_0 => d * (q - 16) as f32,
        Block::Iq4Nl => d * quant::small_float::IQ4[q as usize],
        _ => d * q as f32 + half_at(at + 2),
    }
}

/// The unsigned code of value `i < 32` of a stored block (the byte itself for Q8_0).
///
/// GGUF: `[d][m]?[qh: 4 bytes]?[qs]`; nibble i < 16 is the low half of byte i, i >= 16 the high half of byte
/// i - 16.
pub fn code(block: Block, b: &[u8], i: usize) -> u8 {
    let nibble = |qs: usize| b[qs + i % 16] >> (i / 16 * 4) & 15;
    let fifth = |qh: usize| (b[qh + i / 8] >> (i % 8) & 1) << 4;
    match block {
        Block::Q8_0 => b[2 + i],
        Block::Q4_0 | Block::Iq4Nl => nibble(2),
        Block::Q4_1 => nibble(4),
        Block::Q5_0 => nibble(6) | fifth(2),
        _ => nibble(8) | fifth(4),
    }
}
