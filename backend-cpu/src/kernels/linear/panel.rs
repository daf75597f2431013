//! A panel: 16 output columns over all of k, and how the inner loops read one, whatever its format.

use crate::simd::Lanes;
use engraft_core::mem::Block;

/// Output columns of a panel.
pub const PANEL: usize = 16;
/// Values of k that share a scale in block formats.
pub const SPAN: usize = Block::VALUES;

/// Two vectors: the 16 columns of a panel.
pub type Wide<V> = [V; 2];

/// How to read a panel.
///
/// # Safety of the methods
/// `panel` points to a whole panel of this format that covers k; `codes` is what [`Source::codes`] gives for
/// it, and the panel covers the value i behind it (and i + 1 for `pair`, with i even).
#[allow(clippy::missing_safety_doc)]
pub trait Source: Copy + 'static {
    /// What [`Source::SHARE`] consecutive k share, in registers.
    type Scales<V: Lanes>: Copy;
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
    unsafe fn scales<V: Lanes>(panel: *const u8, k: usize) -> Self::Scales<V>;
    /// The 16 weights of value i.
    unsafe fn one<V: Lanes>(codes: *const u8, i: usize, s: &Self::Scales<V>) -> Wide<V>;
    /// The weights of an even i and of i + 1.
    #[inline(always)]
    unsafe fn pair<V: Lanes>(codes: *const u8, i: usize, s: &Self::Scales<V>) -> [Wide<V>; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::one(codes, i, s), Self::one(codes, i + 1, s)] }
    }
    /// The 16 weights at k, alone.
    #[inline(always)]
    unsafe fn at<V: Lanes>(panel: *const u8, k: usize) -> Wide<V> {
        let begin = Self::begin(k);
        // SAFETY: the caller's promise.
        unsafe {
            let s = Self::scales::<V>(panel, begin);
            Self::one(Self::codes(panel, begin), k - begin, &s)
        }
    }
}
