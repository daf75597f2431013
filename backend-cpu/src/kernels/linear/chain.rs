//! The inner loops: ascending chains of multiply-adds into registers.
//!
//! [`panels`] advances one row against P panels (P memory streams at once) and continues the chains it is
//! given, so a sum may be split anywhere in k without a change of bits. [`fold`] is the tree over the 8
//! leaves as a binary counter: leaf l is added to as many waiting sums as l has trailing ones.

// Of closures intrinsics are calls: see `large`.
#![allow(clippy::needless_range_loop)]

use super::panel::Source;
use crate::simd::wide::Lanes16;

/// Prefetch distance in bytes: far enough for DRAM at full speed, and across the page boundary where the
/// hardware stops.
const AHEAD: usize = 2048;

/// From so many bytes a value of 16 columns on the hardware follows the panels by itself, and asking for what
/// it has on the way costs up to a fifth of a token; what is smaller is widened for longer than it is read.
const FOLLOWED: usize = 32;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Values whose codes are read together.
const EIGHT: usize = 8;

/// Calls `$one` and `$eight` for `$i` in `$range`, ascending, eights from multiples of 8 on. Each stands here
/// once: they are what this crate takes longest to compile.
macro_rules! walk {
    ($range:expr, |$i:ident| $one:expr, $eight:expr) => {{
        let (mut $i, end) = $range;
        while $i < end {
            if $i % EIGHT == 0 && $i + EIGHT <= end {
                $eight;
                $i += EIGHT;
            } else {
                $one;
                $i += 1;
            }
        }
    }};
}

/// Asks for what a panel holds a little behind value i, or, beyond its end, what the panel holds that follows
/// in this place: P panels further on.
#[inline(always)]
fn ahead<W: Lanes16, S: Source>(codes: *const u8, i: usize, (end, jump): (*const u8, usize)) {
    let at = codes.wrapping_add(i * S::STRIDE + AHEAD);
    W::prefetch(at.wrapping_add(if at >= end { jump } else { 0 }));
}

/// Where the codes that share scales with k end, at most at k1.
#[inline(always)]
fn end<S: Source>(k: usize, k1: usize) -> usize {
    if S::SHARE == 0 { k1 } else { k1.min(S::begin(k) + S::SHARE) }
}

/// The codes of P panels, and their scales.
#[derive(Clone, Copy)]
struct Part<W: Lanes16, S: Source, const P: usize> {
    codes: [*const u8; P],
    scales: [S::Scales<W>; P],
    /// Where the panels end.
    ends: [*const u8; P],
    /// Bytes from there to the panels that follow in their places.
    jump: usize,
}

impl<W: Lanes16, S: Source, const P: usize> Part<W, S, P> {
    /// # Safety
    /// As [`panels`], for the k that share scales from k on.
    #[inline(always)]
    unsafe fn new(panels: &[*const u8; P], bytes: usize, k: usize) -> Self {
        // SAFETY: the caller's promise. Loops and no closures: see `large`.
        unsafe {
            let (scales, jump) = ([S::scales::<W>(panels[0], k); P], (P - 1) * bytes);
            let mut part = Part { codes: *panels, scales, ends: *panels, jump };
            for p in 0..P {
                part.ends[p] = panels[p].wrapping_add(bytes);
                part.codes[p] = S::codes(panels[p], k);
                part.scales[p] = S::scales::<W>(panels[p], k);
            }
            part
        }
    }

    /// `acc[p] += x . weights` at value i; x begins at value 0.
    ///
    /// # Safety
    /// The panels and x have the value.
    #[inline(always)]
    unsafe fn one(&self, x: *const f32, i: usize, acc: &mut [W; P]) {
        // SAFETY: the caller's promise.
        unsafe {
            let v = W::splat(*x.add(i));
            for p in 0..P {
                acc[p] = v.madd(S::one(self.codes[p], i, &self.scales[p]), acc[p]);
            }
        }
    }

    /// The same at i, a multiple of 8, and the seven values behind it.
    ///
    /// # Safety
    /// The panels and x have all of them.
    #[inline(always)]
    unsafe fn eight(&self, x: *const f32, i: usize, acc: &mut [W; P]) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut eights = [S::eight::<W>(self.codes[0], i); P];
            for p in 1..P {
                eights[p] = S::eight::<W>(self.codes[p], i);
            }
            let x = x.add(i);
            self.two::<0, 1>(x, i, &eights, acc);
            self.two::<2, 3>(x, i, &eights, acc);
            self.two::<4, 5>(x, i, &eights, acc);
            self.two::<6, 7>(x, i, &eights, acc);
        }
    }

    /// Values J and K of eight that begin at i; asks for what comes later where a line begins.
    ///
    /// # Safety
    /// As `eight`; x begins at i.
    #[inline(always)]
    unsafe fn two<const J: usize, const K: usize>(
        &self,
        x: *const f32,
        i: usize,
        eights: &[S::Eight<W>; P],
        acc: &mut [W; P],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (j, k) = (W::splat(*x.add(J)), W::splat(*x.add(K)));
            for p in 0..P {
                for at in [J, K] {
                    if S::STRIDE < FOLLOWED && at * S::STRIDE % LINE == 0 {
                        ahead::<W, S>(self.codes[p], i + at, (self.ends[p], self.jump));
                    }
                }
                acc[p] = j.madd(S::nth::<W, J>(&eights[p], &self.scales[p]), acc[p]);
                acc[p] = k.madd(S::nth::<W, K>(&eights[p], &self.scales[p]), acc[p]);
            }
        }
    }
}

/// `acc[p] += x . panels[p]` over `k0..k1`, x contiguous from its element 0; a panel has so many bytes.
///
/// # Safety
/// The panels cover `k0..k1` in format S, x that range.
#[inline(always)]
pub unsafe fn panels<W: Lanes16, S: Source, const P: usize>(
    x: *const f32,
    panels: &[*const u8; P],
    bytes: usize,
    [k0, k1]: [usize; 2],
    acc: &mut [W; P],
) {
    let (mut a, mut k) = (*acc, k0);
    while k < k1 {
        let (begin, end) = (S::begin(k), end::<S>(k, k1));
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            let part = Part::<W, S, P>::new(panels, bytes, begin);
            let x = x.add(begin);
            walk!((k - begin, end - begin), |i| part.one(x, i, &mut a), part.eight(x, i, &mut a));
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
pub unsafe fn decode<W: Lanes16, S: Source>(panel: *const u8, k0: usize, k1: usize, out: *mut f32) {
    let mut k = k0;
    while k < k1 {
        let (begin, end) = (S::begin(k), end::<S>(k, k1));
        let out = out.wrapping_add((k - k0) * 16).wrapping_sub((k - begin) * 16);
        // SAFETY: the caller's promise.
        unsafe {
            let (codes, s) = (S::codes(panel, begin), S::scales::<W>(panel, begin));
            walk!((k - begin, end - begin), |i| put(out, i, S::one::<W>(codes, i, &s)), {
                let eight = S::eight::<W>(codes, i);
                put(out, i, S::nth::<W, 0>(&eight, &s));
                put(out, i + 1, S::nth::<W, 1>(&eight, &s));
                put(out, i + 2, S::nth::<W, 2>(&eight, &s));
                put(out, i + 3, S::nth::<W, 3>(&eight, &s));
                put(out, i + 4, S::nth::<W, 4>(&eight, &s));
                put(out, i + 5, S::nth::<W, 5>(&eight, &s));
                put(out, i + 6, S::nth::<W, 6>(&eight, &s));
                put(out, i + 7, S::nth::<W, 7>(&eight, &s));
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
unsafe fn put<W: Lanes16>(out: *mut f32, i: usize, w: W) {
    // SAFETY: the caller's promise.
    unsafe { w.store(out.wrapping_add(i * 16)) };
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
