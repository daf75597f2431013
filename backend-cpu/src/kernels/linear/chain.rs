//! The inner loops: ascending chains of multiply-adds into registers.
//!
//! [`panels`] advances one row against P panels (P memory streams at once) and continues the chains it is
//! given, so a sum may be split anywhere in k without a change of bits. [`fold`] is the tree over the 8
//! leaves as a binary counter: leaf l is added to as many waiting sums as l has trailing ones.

use super::panel::{SPAN, Source, Wide};
use crate::simd::Lanes;
use crate::simd::wide::Lanes16;

/// Prefetch distance in bytes: far enough for DRAM at full speed, and across the page boundary where the
/// hardware stops.
const AHEAD: usize = 2048;

/// Calls `$one(k)` and `$pair(k)` over `$k0..$k1`, in ascending order, with `$s` set to the scales of each
/// block.
macro_rules! walk {
    ($S:ty, $V:ty, $k0:expr, $k1:expr, $scales:expr, |$k:ident, $s:ident| $one:expr, $pair:expr) => {{
        let (mut $k, k1) = ($k0, $k1);
        while $k < k1 {
            let end = if <$S>::BLOCKED { k1.min(($k / SPAN + 1) * SPAN) } else { k1 };
            let $s = $scales($k);
            if $k % 2 == 1 {
                $one;
                $k += 1;
            }
            while $k + 2 <= end {
                $pair;
                $k += 2;
            }
            if $k < end {
                $one;
                $k += 1;
            }
        }
    }};
}

/// Asks for what a panel holds a little behind the pair at k; may point beyond the panel, where the next one
/// begins.
#[inline(always)]
fn ahead<V: Lanes, S: Source>(panel: *const u8, k: usize) {
    let at = panel.wrapping_add(S::offset(k) + AHEAD);
    V::prefetch(at);
    if S::WIDE {
        V::prefetch(at.wrapping_add(64));
    }
}

/// `acc[p] += x . panels[p]` over `k0..k1`, x contiguous from its element 0.
///
/// # Safety
/// The panels cover `k0..k1` in format S, x that range.
#[inline(always)]
pub unsafe fn panels<V: Lanes, S: Source, const P: usize>(
    x: *const f32,
    panels: &[*const u8; P],
    k0: usize,
    k1: usize,
    acc: &mut [Wide<V>; P],
) {
    // SAFETY: the caller's promise; prefetches may point anywhere.
    unsafe {
        let mut a = *acc;
        let scales =
            |k: usize| -> [S::Scales<V>; P] { std::array::from_fn(|p| S::scales::<V>(panels[p], k)) };
        walk!(
            S,
            V,
            k0,
            k1,
            scales,
            |k, s| {
                let v = V::splat(*x.add(k));
                for p in 0..P {
                    let w = S::one(panels[p], k, &s[p]);
                    a[p] = [v.madd(w[0], a[p][0]), v.madd(w[1], a[p][1])];
                }
            },
            {
                let (v0, v1) = (V::splat(*x.add(k)), V::splat(*x.add(k + 1)));
                for p in 0..P {
                    let w = S::pair(panels[p], k, &s[p]);
                    ahead::<V, S>(panels[p], k);
                    a[p] = [v0.madd(w[0][0], a[p][0]), v0.madd(w[0][1], a[p][1])];
                    a[p] = [v1.madd(w[1][0], a[p][0]), v1.madd(w[1][1], a[p][1])];
                }
            }
        );
        *acc = a;
    }
}

/// Widens a panel's `k0..k1` to f32 at `out`, `[k1 - k0][16]`.
///
/// # Safety
/// The panel covers the range, `out` has room.
#[inline(always)]
pub unsafe fn decode<V: Lanes, S: Source>(panel: *const u8, k0: usize, k1: usize, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let put = |k: usize, w: Wide<V>| {
            let o = out.add((k - k0) * 16);
            w[0].store(o);
            w[1].store(o.add(8));
        };
        walk!(S, V, k0, k1, |k| S::scales::<V>(panel, k), |k, s| put(k, S::one(panel, k, &s)), {
            let w = S::pair(panel, k, &s);
            put(k, w[0]);
            put(k + 1, w[1]);
        });
    }
}

/// Sums that wait for their right neighbour: level i holds `2^i` leaves.
pub const LEVELS: usize = 3;

/// Adds finished leaf `leaf` into the tree; `waiting` has [`LEVELS`] slots of `N` times 16 floats.
///
/// Returns the whole tree's sum after leaf 7, and before that what it put into its slot.
///
/// # Safety
/// `waiting` has room, and held the results of the leaves before.
#[inline(always)]
pub unsafe fn fold<W: Lanes16, const N: usize>(leaf: usize, mut acc: [W; N], waiting: *mut f32) -> [W; N] {
    let level = leaf.trailing_ones() as usize;
    // SAFETY: the caller's promise; level 3 (leaf 7) is returned, not stored.
    unsafe {
        for i in 0..level {
            for (n, a) in acc.iter_mut().enumerate() {
                *a = W::load(waiting.add((i * N + n) * 16)).add(*a);
            }
        }
        if level < LEVELS {
            for (n, a) in acc.iter().enumerate() {
                a.store(waiting.add((level * N + n) * 16));
            }
        }
    }
    acc
}
