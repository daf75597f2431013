//! A panel: 16 output columns over all of k, and how the inner loops read one, whatever its format.

use crate::simd::wide::Lanes16;
use engraft_core::mem::Block;

/// Output columns of a panel.
pub const PANEL: usize = 16;
/// Values of k that share a scale in block formats.
pub const SPAN: usize = Block::VALUES;

/// How to read a panel.
///
/// # Safety of the methods
/// `panel` points to a whole panel of this format that covers k; `codes` is what [`Source::codes`] gives for
/// it, and the panel covers the value i behind it, or value J of `eight`.
#[allow(clippy::missing_safety_doc)]
pub trait Source: Copy + 'static {
    /// What [`Source::SHARE`] consecutive k share, in registers.
    type Scales<W: Lanes16>: Copy;
    /// The codes of eight values, in registers as far as these save loads.
    type Eight<W: Lanes16>: Copy;
    /// How many k share scales, from a multiple of it on: 16 or 32. 0: there are none.
    const SHARE: usize;
    /// Bytes of the 16 codes of one k.
    const STRIDE: usize;
    /// Bytes of a panel over `k` values.
    fn panel_bytes(k: usize) -> usize;
    /// The first k that shares scales with this one.
    #[inline(always)]
    fn begin(k: usize) -> usize {
        k.checked_div(Self::SHARE).unwrap_or(0) * Self::SHARE
    }
    /// The codes from k on, which is a multiple of [`Source::SHARE`].
    unsafe fn codes(panel: *const u8, k: usize) -> *const u8;
    /// The scales at k.
    unsafe fn scales<W: Lanes16>(panel: *const u8, k: usize) -> Self::Scales<W>;
    /// The codes of the values from i on, a multiple of 8.
    unsafe fn eight<W: Lanes16>(codes: *const u8, i: usize) -> Self::Eight<W>;
    /// The 16 weights of value J of eight.
    unsafe fn nth<W: Lanes16, const J: usize>(eight: &Self::Eight<W>, s: &Self::Scales<W>) -> W;
    /// The 16 weights of value i.
    #[inline(always)]
    unsafe fn one<W: Lanes16>(codes: *const u8, i: usize, s: &Self::Scales<W>) -> W {
        // SAFETY: the caller's promise.
        unsafe {
            let eight = Self::eight::<W>(codes, i & !7);
            match i & 7 {
                0 => Self::nth::<W, 0>(&eight, s),
                1 => Self::nth::<W, 1>(&eight, s),
                2 => Self::nth::<W, 2>(&eight, s),
                3 => Self::nth::<W, 3>(&eight, s),
                4 => Self::nth::<W, 4>(&eight, s),
                5 => Self::nth::<W, 5>(&eight, s),
                6 => Self::nth::<W, 6>(&eight, s),
                _ => Self::nth::<W, 7>(&eight, s),
            }
        }
    }
    /// The 16 weights at k, alone.
    #[inline(always)]
    unsafe fn at<W: Lanes16>(panel: *const u8, k: usize) -> W {
        let begin = Self::begin(k);
        // SAFETY: the caller's promise.
        unsafe {
            let s = Self::scales::<W>(panel, begin);
            Self::one(Self::codes(panel, begin), k - begin, &s)
        }
    }
}

/// Puts the nibble of value i of column `j` where [`Source::eight`] finds it: eight values of a column are a
/// word of 32 bits, the first one in its lowest bits, and 16 columns stand side by side.
pub fn put_nibble(codes: &mut [u8], i: usize, j: usize, q: u8) {
    let (byte, shift) = (&mut codes[i / 8 * 4 * PANEL + 4 * j + i % 8 / 2], i % 2 * 4);
    *byte = *byte & !(15 << shift) | (q & 15) << shift;
}
