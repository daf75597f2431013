//! The definition of sampling: logits of one row and a [`SampleRow`] in, one token out.
//!
//! The rule is order-free by construction, so that a kernel needs no sort and no sum of floats:
//!
//! 1. `l` is the logit, NaN counting as -infinity. Where the row's bitmap says *seen*, it is multiplied: by
//!    `inv_penalty` if `l > 0`, by `penalty` otherwise.
//! 2. Greedy (`inv_temperature == 0`): the largest `l`; ties go to the lowest index. Nothing else is read.
//! 3. `z = clamp(l * inv_temperature)` to at most the largest finite f32; `zmax` is the largest `z`. -0
//!    equals +0.
//! 4. Weight `w = floor(exp(z - zmax) * 2^30)`, and 0 where `z - zmax < -21` (there `exp` times 2^30 is below
//!    1).
//! 5. Tokens are ranked by `z` descending, then index ascending. Top-k keeps the first k. `total` is their
//!    weights' sum.
//! 6. Top-p keeps a token while the sum of the weights ranked before it is below `top_p * total`: compared
//!    exactly as
//!    `before * 2^24 < top_p_fixed * total`. The first token therefore always stays.
//! 7. Min-p keeps tokens with `w >= min_weight`.
//! 8. `r` is 64 random bits ([`random_bits`]); `target = (r * kept_total) >> 64` in 128 bits. The token is
//!    the first, in
//!    *ascending index order* over the kept ones, whose running sum of weights exceeds `target`.
//!
//! A row without any logit above -infinity, all of NaN for example, gives no token: [`NO_TOKEN`]. Weights are
//! integers, so every sum is exact in any order; with at most 2^32 tokens it fits 62 bits. Tokens below 2^-30
//! of the best one have weight 0 and are never sampled. The penalty multiplies by a reciprocal instead of
//! dividing, because not every device rounds division correctly.
//!
//! `exp` is a parameter: the contract's exponential exists in a fused and a separate multiply-add
//! (`core::math`), and both must be available as the oracle. It must give exactly 1 at 0 and is called with
//! arguments in [-21, 0] only.

use super::params::{SampleRow, TOP_P_BITS, WEIGHT_BITS};
use super::philox::random_bits;

/// Takes the place of a token where nothing can be sampled.
pub const NO_TOKEN: u32 = u32::MAX;

/// Differences `z - zmax` below this weigh nothing: `exp(-21) * 2^30` is 0.81.
const NEGLIGIBLE: f32 = -21.0;

/// Buffers of [`sample_row`], sized once for a vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Scaled logits, `[vocab]`.
    z: Vec<f32>,
    /// Fixed-point weights, `[vocab]`.
    weight: Vec<u32>,
    /// Ranking keys of the tokens of weight above 0, in no lasting order.
    candidates: Vec<u64>,
}

impl Scratch {
    /// Buffers for rows of `vocab` logits; rows of at most this length never allocate.
    pub fn new(vocab: usize) -> Self {
        Scratch {
            z: Vec::with_capacity(vocab),
            weight: Vec::with_capacity(vocab),
            candidates: Vec::with_capacity(vocab),
        }
    }
}

/// Sets the bit of `token` in a bitmap of seen tokens (bit `t % 32` of word `t / 32`); out of range is
/// ignored.
pub fn mark_seen(bitmap: &mut [u32], token: u32) {
    if let Some(word) = bitmap.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// Chooses a token from `logits` `[vocab]` by the module's rule.
///
/// `seen` is a bitmap as [`mark_seen`] writes it, for the penalty; tokens beyond its end count as unseen.
/// Greedy is one pass; sampling is three passes and, with top-k or top-p, an expected linear selection (never
/// a sort).
pub fn sample_row(
    logits: &[f32],
    seen: Option<&[u32]>,
    row: &SampleRow,
    exp: fn(f32) -> f32,
    scratch: &mut Scratch,
) -> u32 {
    let penalised = |i: usize| {
        let l = if logits[i].is_nan() { f32::NEG_INFINITY } else { logits[i] };
        match seen {
            Some(bits) if is_seen(bits, i) => l * if l > 0.0 { row.inv_penalty } else { row.penalty },
            _ => l,
        }
    };
    if row.inv_temperature == 0.0 {
        return greedy(logits.len(), penalised);
    }
    let Scratch { z, weight, candidates } = scratch;
    z.clear();
    z.extend((0..logits.len()).map(|i| (penalised(i) * row.inv_temperature).min(f32::MAX)));
    let zmax = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if zmax == f32::NEG_INFINITY {
        return NO_TOKEN;
    }
    weight.clear();
    weight.extend(z.iter().map(|&z| weigh(z - zmax, exp)));
    let last = if row.top_k == 0 && row.top_p >= 1 << TOP_P_BITS {
        u64::MAX
    } else {
        candidates.clear();
        let weighty = (0..z.len()).filter(|&i| weight[i] > 0);
        candidates.extend(weighty.map(|i| key(z[i], i as u32)));
        last_kept(candidates, weight, row)
    };
    pick(z, weight, last, row)
}

/// The largest of `len` values, the lowest index among equals, none if all are -infinity.
fn greedy(len: usize, value: impl Fn(usize) -> f32) -> u32 {
    let (mut best, mut top) = (NO_TOKEN, f32::NEG_INFINITY);
    for i in 0..len {
        let v = value(i);
        if v > top {
            (best, top) = (i as u32, v);
        }
    }
    best
}

fn is_seen(bits: &[u32], i: usize) -> bool {
    bits.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1)
}

/// Step 4: the fixed-point weight of a token `d = z - zmax` below the best.
fn weigh(d: f32, exp: fn(f32) -> f32) -> u32 {
    // Not `d < NEGLIGIBLE`: -infinity minus anything must weigh nothing, too.
    if d >= NEGLIGIBLE { (exp(d) * (1u32 << WEIGHT_BITS) as f32) as u32 } else { 0 }
}

/// A token's place in the ranking as one integer: ascending keys are `z` descending, then the index
/// ascending.
fn key(z: f32, index: u32) -> u64 {
    // Adding +0 makes -0 equal to it. No NaN is left in z, so the flipped bits order as the floats do.
    let bits = (z + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(index)
}

/// Steps 5 and 6: the key of the worst-ranked token that top-k and top-p keep.
///
/// Tokens of weight 0 are not among the candidates: they change no sum and cannot be sampled.
fn last_kept(candidates: &mut [u64], weight: &[u32], row: &SampleRow) -> u64 {
    let mut kept = candidates;
    let k = row.top_k as usize;
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable(k - 1);
        kept = &mut kept[..k];
    }
    let weight = |key: u64| u64::from(weight[key as u32 as usize]);
    let sum = |keys: &[u64]| keys.iter().map(|&key| weight(key)).sum::<u64>();
    if row.top_p < 1 << TOP_P_BITS {
        let bound = u128::from(row.top_p) * u128::from(sum(kept));
        // Bisection by quickselect: everything before `low` is kept and weighs `before`, nothing from `high`
        // on is.
        let (mut low, mut high, mut before) = (0, kept.len(), 0u64);
        while low < high {
            let half = (high - low) / 2;
            kept[low..high].select_nth_unstable(half);
            let mid = low + half;
            let ahead = before + sum(&kept[low..mid]);
            if u128::from(ahead) << TOP_P_BITS < bound {
                before = ahead + weight(kept[mid]);
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        kept = &mut kept[..low];
    }
    kept.iter().copied().max().unwrap_or(u64::MAX)
}

/// Steps 7 and 8: samples among the tokens ranked up to `last` that min-p keeps.
fn pick(z: &[f32], weight: &[u32], last: u64, row: &SampleRow) -> u32 {
    let least = row.min_weight.max(1);
    let kept = || (0..z.len()).filter(|&i| weight[i] >= least && key(z[i], i as u32) <= last);
    let total: u64 = kept().map(|i| u64::from(weight[i])).sum();
    let bits = random_bits(row.seed, row.subsequence, row.position, row.index);
    let target = ((u128::from(bits) * u128::from(total)) >> 64) as u64;
    let mut running = 0u64;
    for i in kept() {
        running += u64::from(weight[i]);
        if running > target {
            return i as u32;
        }
    }
    // Only an `exp` that is not 1 at 0 can bring us here: nothing weighs enough.
    greedy(z.len(), |i| z[i])
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
