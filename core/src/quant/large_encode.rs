//! Rounding to GGUF's blocks of 256 values (`large.rs` has their bytes and decodes them).
//!
//! A part of a block wishes for a scale, and for a minimum where the format has one: of a few ways to give
//! its values codes the one whose weighted squares, at the scale that fits these codes best, are the least.
//! The largest wish sets the block's `d` and `e`, rounded to f16; then every part takes small whole numbers
//! `s` and `t` next to its wish, and codes once more, by the same squares. A value weighs its own magnitude
//! and the root of the mean square of its part: large values matter more, small ones do not vanish.
//!
//! All is f32 in one fixed order, so a block's bytes depend on its values alone.

use super::large::{PART, put_code, put_halves, put_scale};
use super::small_float::{IQ4, finite_f16};
use crate::mem::Block;
use half::f16;
use std::array::from_fn;

/// Sums that are kept side by side.
const LANES: usize = 8;
/// Larger magnitudes than any block can have: 65504 * 128 * 32 is less.
const LIMIT: f32 = (1 << 28) as f32;
/// Added and taken away again it rounds a small f32 to a whole number, of two the even one.
const ROUND: f32 = (3 << 22) as f32;

/// Encodes whole blocks: `values` has `n * 256` values, `out` `n * block.bytes()` bytes; what is left over in
/// the longer of the two is not touched. NaN counts as zero and what is too large as the largest that there
/// is.
pub fn encode(block: Block, values: &[f32], out: &mut [u8]) {
    let (values, _) = values.as_chunks::<{ Block::LARGE }>();
    for (values, raw) in values.iter().zip(out.chunks_exact_mut(block.bytes())) {
        let values = values.map(|v| if v.is_nan() { 0.0 } else { v.clamp(-LIMIT, LIMIT) });
        raw.fill(0);
        match block {
            Block::Q2K => rounded::<Whole<0, 3>, 16>(block, &values, [0, 15], raw),
            Block::Q3K => rounded::<Whole<-4, 3>, 16>(block, &values, [-32, 31], raw),
            Block::Q4K => rounded::<Whole<0, 15>, 32>(block, &values, [0, 63], raw),
            Block::Q5K => rounded::<Whole<0, 31>, 32>(block, &values, [0, 63], raw),
            Block::Q6K => rounded::<Whole<-32, 31>, 16>(block, &values, [-128, 127], raw),
            Block::Iq4Xs => rounded::<Table, 32>(block, &values, [-32, 31], raw),
            // Those of 32 values have codecs of their own and never come here.
            _ => {}
        }
    }
}

/// What codes stand for.
trait Codes {
    /// The ends.
    const ENDS: [f32; 2];
    /// How far apart the places are that an extreme value is tried at.
    const STEP: f32;

    /// What stands next to `v`.
    fn nearest(v: f32) -> f32;

    /// Its stored code.
    fn stored(value: f32) -> u8;
}

/// Whole numbers.
struct Whole<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Codes for Whole<LOW, HIGH> {
    const ENDS: [f32; 2] = [LOW as f32, HIGH as f32];
    const STEP: f32 = 0.15;

    fn nearest(v: f32) -> f32 {
        (v.clamp(LOW as f32, HIGH as f32) + ROUND) - ROUND
    }

    fn stored(value: f32) -> u8 {
        (value as i32 - LOW) as u8
    }
}

/// Places in [`IQ4`].
struct Table;

impl Codes for Table {
    const ENDS: [f32; 2] = [IQ4[0], IQ4[15]];
    const STEP: f32 = 2.0;

    fn nearest(v: f32) -> f32 {
        // Differences of small whole numbers: their sum is an entry. Of two the lower one.
        let beyond = |pair: &[f32]| if v > (pair[0] + pair[1]) / 2.0 { pair[1] - pair[0] } else { 0.0 };
        IQ4.windows(2).fold(IQ4[0], |sum, pair| sum + beyond(pair))
    }

    fn stored(value: f32) -> u8 {
        IQ4.iter().take_while(|entry| **entry < value).count() as u8
    }
}

/// What a part becomes: a value is `scale * code - minimum`.
#[derive(Clone, Copy, Default)]
struct Wish {
    scale: f32,
    minimum: f32,
}

/// A block in parts of `N` values, whose small whole numbers lie from `least` to `most`; where they are not
/// negative there are minima. Its bytes are zero before.
fn rounded<C: Codes, const N: usize>(
    block: Block,
    values: &[f32; Block::LARGE],
    [least, most]: [i32; 2],
    raw: &mut [u8],
) {
    let parts = values.as_chunks::<N>().0;
    let mut w = [0.0; Block::LARGE];
    let w = w.as_chunks_mut::<N>().0;
    w.iter_mut().zip(parts).for_each(|(w, x)| *w = weights(x));
    let wish = |x, w| if least < 0 { around_zero::<C, N>(x, w) } else { with_minimum::<C, N>(x, w) };
    let mut wishes = [Wish::default(); Block::LARGE / PART];
    wishes.iter_mut().zip(parts.iter().zip(&*w)).for_each(|(to, (x, w))| *to = wish(x, w));
    let largest = |most: f32, v: f32| if v.abs() > most.abs() { v } else { most };
    let scale = wishes.iter().map(|wish| wish.scale).fold(0.0, largest);
    let minimum = wishes.iter().map(|wish| wish.minimum).fold(0.0, largest);
    // To the end that reaches further.
    let (d, e) = (step(scale / if least < 0 { least } else { most } as f32), step(minimum / most as f32));
    put_halves(block, raw, d, e);
    for (p, ((x, w), wish)) in parts.iter().zip(&*w).zip(wishes).enumerate() {
        let (scales, codes) = settled::<C, N>(x, w, wish, [d.to_f32(), e.to_f32()], [least, most]);
        put_scale(block, raw, p * (N / PART), scales);
        for (i, code) in codes.into_iter().enumerate() {
            put_code(block, raw, p * N + i, C::stored(code));
        }
    }
}

/// A step in f16. Of the smallest ones, which are far apart, the next larger one, or values would be beyond
/// the largest code, or vanish.
fn step(v: f32) -> f16 {
    let step = finite_f16(v);
    let near = v.abs() * (1.0 - 1.0 / 512.0);
    match step.to_f32().abs() < near && step.to_f32().abs() < f16::MIN_POSITIVE.to_f32() {
        // The bits of a magnitude are in its order.
        true => f16::from_bits(step.to_bits() + 1),
        false => step,
    }
}

/// Magnitudes, and the root of the mean square.
fn weights<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let [square] = sums::<N, 1>(|i| [x[i] * x[i]]);
    let root = libm::sqrtf(square / N as f32);
    x.map(|v| root + v.abs())
}

/// Scale and minimum, not negative, of codes from zero: the distance between the ends is tried as one code
/// less to one code more than there are.
fn with_minimum<C: Codes, const N: usize>(x: &[f32; N], w: &[f32; N]) -> Wish {
    let (low, high) = x.iter().fold((0f32, f32::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)));
    if high <= low {
        return Wish { scale: 0.0, minimum: -low };
    }
    let (range, top) = (high - low, C::ENDS[1]);
    let codes = |places: f32| -> [f32; N] { from_fn(|i| C::nearest((x[i] - low) * (places / range))) };
    let error = |wish: Wish, q: &[f32; N]| squares(x, w, wish, q);
    let plain = Wish { scale: range / top, minimum: -low };
    let mut best = (error(plain, &codes(top)), plain);
    let [all, sum] = sums::<N, 2>(|i| [w[i], w[i] * (x[i] - low)]);
    for at in -5i8..=5 {
        let q = codes(top + f32::from(at) * 0.2);
        let [first, second, dot] =
            sums::<N, 3>(|i| [w[i] * q[i], w[i] * q[i] * q[i], w[i] * q[i] * (x[i] - low)]);
        let under = all * second - first * first;
        let above = low + (second * sum - first * dot) / under;
        let wish = match above > 0.0 {
            // The least minimum that can be.
            true => Wish { scale: (dot + low * first) / second, minimum: 0.0 },
            false => Wish { scale: (all * dot - sum * first) / under, minimum: -above },
        };
        // Codes that are all the same fit anything: what is no number is not less.
        let error = error(wish, &q);
        if error < best.0 && wish.scale > 0.0 {
            best = (error, wish);
        }
    }
    best.1
}

/// The scale, of either sign, of codes on both sides of zero: the value of largest magnitude is tried at and
/// next to either end.
fn around_zero<C: Codes, const N: usize>(x: &[f32; N], w: &[f32; N]) -> Wish {
    let extreme = x.iter().fold(0f32, |most, v| if v.abs() > most.abs() { *v } else { most });
    let mut best = (0.0, 0.0);
    for end in C::ENDS {
        for at in -6i8..=6 {
            let factor = (end + f32::from(at) * C::STEP) / extreme;
            let q: [f32; N] = from_fn(|i| C::nearest(x[i] * factor));
            let [dot, second] = sums::<N, 2>(|i| [w[i] * q[i] * x[i], w[i] * q[i] * q[i]]);
            // What the squares are less than those of the values.
            let scale = dot / second;
            if dot * scale > best.0 {
                best = (dot * scale, scale);
            }
        }
    }
    Wish { scale: best.1, minimum: 0.0 }
}

/// `s` and `t` next to what a part wishes for, and what its codes stand for.
fn settled<C: Codes, const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    wish: Wish,
    [d, e]: [f32; 2],
    [least, most]: [i32; 2],
) -> ((i32, i32), [f32; N]) {
    // Of no step: 0 / 0 becomes 0.
    let near = |wish: f32, step: f32| (libm::roundf(wish / step) as i32).clamp(least, most);
    let (s, t) = (near(wish.scale, d), near(wish.minimum, e));
    let aside: &[i32] = if e == 0.0 { &[0] } else { &[0, -1, 1] };
    let mut best = (f32::INFINITY, (0, 0), [0.0; N]);
    for s in [s, s - 1, s + 1].into_iter().filter(|s| (least..=most).contains(s)) {
        for t in aside.iter().map(|off| t + off).filter(|t| (0..=most).contains(t)) {
            let wish = Wish { scale: d * s as f32, minimum: e * t as f32 };
            let factor = if wish.scale == 0.0 { 0.0 } else { 1.0 / wish.scale };
            let q = from_fn(|i| C::nearest((x[i] + wish.minimum) * factor));
            let error = squares(x, w, wish, &q);
            if error < best.0 {
                best = (error, (s, t), q);
            }
        }
    }
    (best.1, best.2)
}

/// The weighted squares of what is off.
fn squares<const N: usize>(x: &[f32; N], w: &[f32; N], wish: Wish, q: &[f32; N]) -> f32 {
    let [sum] = sums::<N, 1>(|i| {
        let off = wish.scale * q[i] - wish.minimum - x[i];
        [w[i] * off * off]
    });
    sum
}

/// Sums of `N` terms each, in lanes.
fn sums<const N: usize, const K: usize>(terms: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    let mut lanes = [[0f32; LANES]; K];
    for first in (0..N).step_by(LANES) {
        for lane in 0..LANES {
            let terms = terms(first + lane);
            lanes.iter_mut().zip(terms).for_each(|(sums, term)| sums[lane] += term);
        }
    }
    lanes.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (c + g)) + ((b + f) + (d + h)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::super::large::decode;
    use super::*;

    const ALL: [Block; 6] = [Block::Q2K, Block::Q3K, Block::Q4K, Block::Q5K, Block::Q6K, Block::Iq4Xs];

    fn back(block: Block, values: &[f32; Block::LARGE]) -> [f32; Block::LARGE] {
        let (mut raw, mut got) = (vec![0xff; block.bytes()], [f32::NAN; Block::LARGE]);
        encode(block, values, &mut raw);
        decode(block, &raw, &mut got);
        assert!(got.iter().all(|v| v.is_finite()), "{}", block.name());
        got
    }

    /// Uniform from -1 to 1.
    fn uniform(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Sums of twelve are near enough to normal.
    fn normal(state: &mut u64) -> f32 {
        (0..12).map(|_| uniform(state)).sum::<f32>() / 2.0
    }

    /// The largest magnitude that each format has.
    fn largest(block: Block) -> f32 {
        let dot = match block {
            Block::Q2K => 15.0 * 3.0,
            Block::Q3K => 32.0 * 4.0,
            Block::Q4K => 63.0 * 15.0,
            Block::Q5K => 63.0 * 31.0,
            Block::Q6K => 128.0 * 32.0,
            _ => 32.0 * 127.0,
        };
        f16::MAX.to_f32() * dot
    }

    #[test]
    fn odd_values() {
        for block in ALL {
            let name = block.name();
            assert_eq!(back(block, &[0.0; 256]), [0.0; 256], "{name}");
            // NaN counts as zero.
            let mixed: [f32; 256] = from_fn(|i| if i % 3 == 0 { f32::NAN } else { i as f32 - 100.0 });
            let zeros = mixed.map(|v| if v.is_nan() { 0.0 } else { v });
            assert_eq!(back(block, &mixed), back(block, &zeros), "{name}");
            assert_eq!(back(block, &[f32::NAN; 256]), [0.0; 256], "{name}");
            // One value, at every place: it is kept, and zeros are as near as the table has them. A small
            // one's steps are few of the smallest: half of one in 31 is 1.6 %.
            for place in 0..256 {
                for v in [2.0f32, -3e-3, 700.0] {
                    let got = back(block, &from_fn(|i| if i == place { v } else { 0.0 }));
                    let off = |i: usize| (got[i] - if i == place { v } else { 0.0 }).abs();
                    assert!((0..256).all(|i| off(i) <= v.abs() / 50.0), "{name} {place} {v}: {}", off(place));
                }
            }
            // All the same, of either sign.
            for v in [1.0f32, -1.0, 0.7, -0.7, 1e-3, 123.4, -5e4] {
                assert!(
                    back(block, &[v; 256]).iter().all(|got| (got - v).abs() <= v.abs() / 50.0),
                    "{name} {v}"
                );
            }
            // What is too large becomes the largest.
            for v in [f32::INFINITY, f32::MAX, 1e30] {
                for got in [back(block, &[v; 256]), back(block, &[-v; 256]).map(|v| -v)] {
                    // A minimum has no codes above it.
                    let most = largest(block);
                    assert!(
                        got.iter().all(|got| (most / 40.0..=most).contains(got)),
                        "{name} {v}: {}",
                        got[0]
                    );
                }
                let got = back(block, &from_fn(|i| if i % 2 == 0 { v } else { 0.0 }));
                assert!(got.iter().step_by(2).all(|got| *got >= 0.9 * largest(block)), "{name} {v}");
            }
        }
    }

    /// Steps below those of f16 are the smallest one, values below it zero.
    #[test]
    fn small_values() {
        let mut state = 3;
        for block in ALL {
            for v in [1e-45f32, 1e-40, 1e-30, 1e-15, 1e-10] {
                for v in [v, -v] {
                    assert!(back(block, &[v; 256]).iter().all(|got| *got == 0.0), "{} {v}", block.name());
                    let mixed = back(block, &from_fn(|i| v * (i as f32 - 128.0)));
                    assert!(mixed.iter().all(|got| got.abs() < 6e-8), "{} {v}", block.name());
                }
            }
            let values: [f32; 256] = from_fn(|_| normal(&mut state) * 1e-6);
            let (all, off) = (square(&values, &[0.0; 256]), square(&values, &back(block, &values)));
            assert!(off < 0.2 * all, "{}: {}", block.name(), off / all);
        }
    }

    fn square(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    /// Scales that reach the largest magnitude or both ends, rounded to nearest, and codes next to the
    /// values: what an encoder without a search makes.
    fn plain<C: Codes, const N: usize>(
        values: &[f32; Block::LARGE],
        [least, most]: [i32; 2],
    ) -> [f32; Block::LARGE] {
        let parts = values.as_chunks::<N>().0;
        let reach = |x: &[f32; N]| {
            let (low, high) = x.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
            match least < 0 {
                true => (low.abs().max(high) / C::ENDS[0].abs(), 0.0),
                false => ((high - low) / C::ENDS[1], -low),
            }
        };
        let wishes: Vec<_> = parts.iter().map(reach).collect();
        let top = |of: fn(&(f32, f32)) -> f32| wishes.iter().map(of).fold(0.0, f32::max) / most as f32;
        let (d, e) = (finite_f16(top(|w| w.0)).to_f32(), finite_f16(top(|w| w.1)).to_f32());
        let near = |wish: f32, step: f32| ((wish / step).round() as i32).clamp(0, most) as f32 * step;
        let mut out = [0.0; Block::LARGE];
        for ((x, (scale, minimum)), to) in parts.iter().zip(&wishes).zip(out.as_chunks_mut::<N>().0) {
            let (scale, minimum) = (near(*scale, d), near(*minimum, e));
            let one =
                |v: f32| scale * C::nearest(if scale == 0.0 { 0.0 } else { (v + minimum) / scale }) - minimum;
            *to = x.map(one);
        }
        out
    }

    fn by_plain(block: Block, values: &[f32; Block::LARGE]) -> [f32; Block::LARGE] {
        match block {
            Block::Q2K => plain::<Whole<0, 3>, 16>(values, [0, 15]),
            Block::Q3K => plain::<Whole<-4, 3>, 16>(values, [-32, 31]),
            Block::Q4K => plain::<Whole<0, 15>, 32>(values, [0, 63]),
            Block::Q5K => plain::<Whole<0, 31>, 32>(values, [0, 63]),
            Block::Q6K => plain::<Whole<-32, 31>, 16>(values, [-128, 127]),
            _ => plain::<Table, 32>(values, [-32, 31]),
        }
    }

    /// Off by these weighted squares, as the search counts them.
    fn weighted<const N: usize>(values: &[f32; Block::LARGE], got: &[f32; Block::LARGE]) -> f64 {
        let of_part = |(x, got): (&[f32; N], &[f32; N])| -> f64 {
            let terms = x.iter().zip(got).zip(weights(x));
            terms.map(|((x, got), w)| f64::from(w) * f64::from(got - x).powi(2)).sum()
        };
        values.as_chunks::<N>().0.iter().zip(got.as_chunks::<N>().0).map(of_part).sum()
    }

    /// Values in blocks are nearer than without a search; a block alone may be worse: what its parts wish
    /// for is rounded to common steps.
    #[test]
    fn blocks_are_nearer_than_without_a_search() {
        type Kind = (&'static str, fn(&mut u64) -> f32);
        let kinds: [Kind; 6] = [
            ("normal", |state| normal(state) * 0.05),
            ("uniform", uniform),
            ("heavy", |state| normal(state).powi(5)),
            ("negative", |state| -normal(state).abs() - 0.1),
            ("positive", |state| uniform(state) + 3.0),
            ("few", |state| if uniform(state) > 0.9 { normal(state) } else { 0.0 }),
        ];
        let mut state = 5;
        for block in ALL {
            for (kind, value) in kinds {
                let (mut own, mut without, mut worst) = (0.0, 0.0, 0f64);
                for _ in 0..64 {
                    let values = from_fn(|_| value(&mut state));
                    let by = |got| match block {
                        Block::Q4K | Block::Q5K | Block::Iq4Xs => weighted::<32>(&values, &got),
                        _ => weighted::<16>(&values, &got),
                    };
                    let pair = (by(back(block, &values)), by(by_plain(block, &values)));
                    (own, without) = (own + pair.0, without + pair.1);
                    worst = worst.max(pair.0 / pair.1);
                }
                println!("{} {kind}: {:.3} of plain, worst block {worst:.3}", block.name(), own / without);
                assert!(own < without, "{} {kind}: {own} of {without}", block.name());
                assert!(worst <= 2.0, "{} {kind}: {worst}", block.name());
            }
        }
    }

    /// Blocks one after the other are what each is alone; what is left over stays.
    #[test]
    fn blocks_do_not_touch_each_other() {
        let mut state = 7;
        for block in ALL {
            let values: Vec<f32> = (0..3 * 256 + 9).map(|_| uniform(&mut state)).collect();
            let mut all = vec![0x5a; 3 * block.bytes() + 5];
            encode(block, &values, &mut all);
            for (i, values) in values.as_chunks::<256>().0.iter().enumerate() {
                let mut one = vec![0; block.bytes()];
                encode(block, values, &mut one);
                assert!(one == all[i * block.bytes()..(i + 1) * block.bytes()], "{} {i}", block.name());
            }
            assert!(all.ends_with(&[0x5a; 5]), "{}", block.name());
        }
    }
}
