//! Codes of weights as sixteen lanes of f32, the columns of one panel.

use super::{Lanes, WIDTH};

/// Sixteen lanes that weights' codes are widened into, exactly.
///
/// # Safety of the loads
/// Each reads exactly 16 elements at the pointer, which needs no alignment.
#[allow(clippy::missing_safety_doc)]
pub trait Codes16: Copy + 'static {
    /// Eight nibbles a lane, the first one in the lowest bits.
    type Packed: Copy;
    /// 16 signed bytes.
    unsafe fn load_i8(p: *const u8) -> Self;
    /// 16 bytes of e5m2; with `E4M3` of that type, times 2^-8, and NaN as 480 times that.
    unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self;
    /// 16 words of 32 bits.
    unsafe fn packed(p: *const u8) -> Self::Packed;
    /// Nibble J of each lane.
    fn nibble<const J: usize>(q: Self::Packed) -> Self;
    /// Nibble J as a number with a sign, times 2^28.
    fn signed<const J: usize>(q: Self::Packed) -> Self;
    /// Nibble J with bit i of `fifth` as bit 4 of lane i, and minus `offset`, 0 or 16.
    fn five_bits<const J: usize>(q: Self::Packed, fifth: u16, offset: i32) -> Self;
    /// What stands in a table at nibble J.
    fn entry<const J: usize>(q: Self::Packed, table: &[f32; 16]) -> Self;
}

impl<V: Lanes> Codes16 for [V; 2] {
    type Packed = [V::Packed; 2];
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: 16 elements, the caller's promise (here and below).
        unsafe { [V::load_i8(p), V::load_i8(p.add(WIDTH))] }
    }
    #[inline(always)]
    unsafe fn load_f8<const E4M3: bool>(p: *const u8) -> Self {
        // SAFETY: as above.
        unsafe { [V::load_f8::<E4M3>(p), V::load_f8::<E4M3>(p.add(WIDTH))] }
    }
    #[inline(always)]
    unsafe fn packed(p: *const u8) -> Self::Packed {
        // SAFETY: as above.
        unsafe { [V::packed(p), V::packed(p.add(4 * WIDTH))] }
    }
    #[inline(always)]
    fn nibble<const J: usize>(q: Self::Packed) -> Self {
        [V::nibble::<J>(q[0]), V::nibble::<J>(q[1])]
    }
    #[inline(always)]
    fn signed<const J: usize>(q: Self::Packed) -> Self {
        [V::signed::<J>(q[0]), V::signed::<J>(q[1])]
    }
    #[inline(always)]
    fn five_bits<const J: usize>(q: Self::Packed, fifth: u16, offset: i32) -> Self {
        let [low, high] = fifth.to_le_bytes();
        [V::five_bits::<J>(q[0], low, offset), V::five_bits::<J>(q[1], high, offset)]
    }
    #[inline(always)]
    fn entry<const J: usize>(q: Self::Packed, table: &[f32; 16]) -> Self {
        [V::entry::<J>(q[0], table), V::entry::<J>(q[1], table)]
    }
}
