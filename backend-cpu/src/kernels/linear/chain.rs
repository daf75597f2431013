//! The inner loops: ascending chains of multiply-adds into registers.
//!
//! [`panels`] advances one row against P panels (P memory streams at once) and continues the chains it is
//! given, so a sum may be split anywhere in k without a change of bits. [`fold`] is the tree over the 8
//! leaves as a binary counter: leaf l is added to as many waiting sums as l has trailing ones.

// Of closures intrinsics are calls: see `large`.
#![allow(clippy::needless_range_loop)]

use super::panel::{Source, Wide};
use crate::simd::Lanes;
use crate::simd::wide::Lanes16;

/// Prefetch distance in bytes: far enough for DRAM at full speed, and across the page boundary where the
/// hardware stops.
const AHEAD: usize = 2048;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Calls `$one` and `$pair` for `$i` in `$range`, ascending, pairs from even values on.
macro_rules! walk {
    ($range:expr, |$i:ident| $one:expr, $pair:expr) => {{
        let (mut $i, end) = $range;
        if $i < end && $i % 2 == 1 {
            $one;
            $i += 1;
        }
        while $i + 2 <= end {
            $pair;
            $i += 2;
        }
        if $i < end {
            $one;
        }
    }};
}

/// Asks for what a panel holds a little behind value i; may point beyond the panel, where the next one
/// begins.
#[inline(always)]
fn ahead<V: Lanes, S: Source>(codes: *const u8, i: usize) {
    let at = codes.wrapping_add(i * S::STRIDE + AHEAD);
    V::prefetch(at);
    if S::STRIDE == LINE {
        V::prefetch(at.wrapping_add(LINE));
    }
}

/// Where the codes that share scales with k end, at most at k1.
#[inline(always)]
fn end<S: Source>(k: usize, k1: usize) -> usize {
    if S::SHARE == 0 { k1 } else { k1.min(S::begin(k) + S::SHARE) }
}

/// The codes of P panels, and their scales.
#[derive(Clone, Copy)]
struct Part<V: Lanes, S: Source, const P: usize> {
    codes: [*const u8; P],
    scales: [S::Scales<V>; P],
}

impl<V: Lanes, S: Source, const P: usize> Part<V, S, P> {
    /// # Safety
    /// As [`panels`], for the k that share scales from k on.
    #[inline(always)]
    unsafe fn new(panels: &[*const u8; P], k: usize) -> Self {
        // SAFETY: the caller's promise. Loops and no closures: see `large`.
        unsafe {
            let mut part = Part { codes: *panels, scales: [S::scales::<V>(panels[0], k); P] };
            for p in 0..P {
                part.codes[p] = S::codes(panels[p], k);
                part.scales[p] = S::scales::<V>(panels[p], k);
            }
            part
        }
    }

    /// `acc[p] += x . weights` at value i; x begins at value 0.
    ///
    /// # Safety
    /// The panels and x have the value.
    #[inline(always)]
    unsafe fn one(&self, x: *const f32, i: usize, acc: &mut [Wide<V>; P]) {
        // SAFETY: the caller's promise.
        unsafe {
            let v = V::splat(*x.add(i));
            for p in 0..P {
                let w = S::one(self.codes[p], i, &self.scales[p]);
                acc[p] = [v.madd(w[0], acc[p][0]), v.madd(w[1], acc[p][1])];
            }
        }
    }

    /// The same at an even i and at i + 1; asks for what comes later, if told to.
    ///
    /// # Safety
    /// The panels and x have both values.
    #[inline(always)]
    unsafe fn pair(&self, x: *const f32, i: usize, ask: bool, acc: &mut [Wide<V>; P]) {
        // SAFETY: the caller's promise.
        unsafe {
            let (v0, v1) = (V::splat(*x.add(i)), V::splat(*x.add(i + 1)));
            for p in 0..P {
                let w = S::pair(self.codes[p], i, &self.scales[p]);
                if ask {
                    ahead::<V, S>(self.codes[p], i);
                }
                acc[p] = [v0.madd(w[0][0], acc[p][0]), v0.madd(w[0][1], acc[p][1])];
                acc[p] = [v1.madd(w[1][0], acc[p][0]), v1.madd(w[1][1], acc[p][1])];
            }
        }
    }

    /// The same over all values that share these scales.
    ///
    /// # Safety
    /// The panels and x have them all.
    #[inline(always)]
    unsafe fn whole(&self, x: *const f32, acc: &mut [Wide<V>; P]) {
        // A line at a time: each is asked for once, and a loop that short is unrolled.
        let line = const { if S::SHARE == 0 { 2 } else { LINE / S::STRIDE } };
        for first in (0..S::SHARE).step_by(line) {
            for i in (0..line).step_by(2) {
                // SAFETY: the caller's promise.
                unsafe { self.pair(x, first + i, i == 0, acc) };
            }
        }
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
    let (mut a, mut k) = (*acc, k0);
    while k < k1 {
        let (begin, end) = (S::begin(k), end::<S>(k, k1));
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            let part = Part::<V, S, P>::new(panels, begin);
            let x = x.add(begin);
            if S::SHARE != 0 && end - k == S::SHARE {
                part.whole(x, &mut a);
            } else {
                walk!((k - begin, end - begin), |i| part.one(x, i, &mut a), part.pair(x, i, true, &mut a));
            }
        }
        k = end;
    }
    *acc = a;
}

/// Widens a panel's `k0..k1` to f32 at `out`, `[k1 - k0][16]`.
///
/// # Safety
/// The panel covers the range, `out` has room.
#[inline(always)]
pub unsafe fn decode<V: Lanes, S: Source>(panel: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let mut k = k0;
    while k < k1 {
        let (begin, end) = (S::begin(k), end::<S>(k, k1));
        let out = out.wrapping_add((k - k0) * 16).wrapping_sub((k - begin) * 16);
        // SAFETY: the caller's promise.
        unsafe {
            let (codes, s) = (S::codes(panel, begin), S::scales::<V>(panel, begin));
            walk!((k - begin, end - begin), |i| put(out, i, S::one(codes, i, &s)), {
                let w = S::pair(codes, i, &s);
                put(out, i, w[0]);
                put(out, i + 1, w[1]);
            });
        }
        k = end;
    }
}

/// Writes the weights of value i, `[i][16]`.
///
/// # Safety
/// `out` has room for them.
#[inline(always)]
unsafe fn put<V: Lanes>(out: *mut f32, i: usize, w: Wide<V>) {
    let to = out.wrapping_add(i * 16);
    // SAFETY: the caller's promise.
    unsafe {
        w[0].store(to);
        w[1].store(to.add(8));
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
