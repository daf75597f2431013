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
/// `panel` points to a whole panel of this format that covers k (and k + 1 for `pair`, with k even).
#[allow(clippy::missing_safety_doc)]
pub trait Source: Copy + 'static {
    /// What 32 consecutive k share, in registers.
    type Scales<V: Lanes>: Copy;
    /// Whether scales exist: then loops stop at multiples of 32.
    const BLOCKED: bool;
    /// Whether a pair of k fills two cache lines (what prefetching wants to know).
    const WIDE: bool;
    /// Bytes of a panel over `k` values.
    fn panel_bytes(k: usize) -> usize;
    /// About where the weights at k lie in a panel.
    fn offset(k: usize) -> usize;
    /// The scales at k.
    unsafe fn scales<V: Lanes>(panel: *const u8, k: usize) -> Self::Scales<V>;
    /// The 16 weights at k.
    unsafe fn one<V: Lanes>(panel: *const u8, k: usize, s: &Self::Scales<V>) -> Wide<V>;
    /// The weights at even k and at k + 1.
    #[inline(always)]
    unsafe fn pair<V: Lanes>(panel: *const u8, k: usize, s: &Self::Scales<V>) -> [Wide<V>; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::one(panel, k, s), Self::one(panel, k + 1, s)] }
    }
}
