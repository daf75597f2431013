//! Sampling a token by sorting everything, straight from the rule in the head of `core::sample::reference`.

use crate::compare::Want;
use crate::spec::sample::Case;
use engraft_core::math::{FusedMadd, SeparateMadd, exp};
use engraft_core::numerics::Madd;
use engraft_core::sample::philox::random_bits;
use engraft_core::sample::{NO_TOKEN, SampleRow};

/// Index of the largest value, the first among equals; [`NO_TOKEN`] where none is above -infinity.
pub fn first_largest(values: &[f32]) -> u32 {
    let best = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    match values.iter().position(|v| *v == best && *v > f32::NEG_INFINITY) {
        Some(index) => index as u32,
        None => NO_TOKEN,
    }
}

/// Tokens of all rows, and the bits of tokens seen afterwards.
pub fn sample(case: &Case, madd: Madd) -> Vec<Want> {
    let vocab = case.logits.cols;
    let words = vocab.div_ceil(32);
    let (mut tokens, mut seen) = (Vec::new(), case.seen.clone());
    for (r, slot) in case.slots.iter().enumerate() {
        let Some(row) = case.table.get(*slot as usize).copied() else {
            tokens.push(u32::MAX);
            continue;
        };
        let is_seen = |t: usize| {
            row.seen_slot >= 0 && case.seen[row.seen_slot as usize * words + t / 32] >> (t % 32) & 1 == 1
        };
        let logits: Vec<f32> = case
            .logits
            .row(r)
            .iter()
            .enumerate()
            .map(|(t, l)| (t, if l.is_nan() { &f32::NEG_INFINITY } else { l }))
            .map(|(t, l)| match (is_seen(t), *l > 0.0) {
                (false, _) => *l,
                (true, true) => l * row.inv_penalty,
                (true, false) => l * row.penalty,
            })
            .collect();
        let token = pick(&logits, &row, case.positions[r], madd);
        if row.seen_slot >= 0 && token != NO_TOKEN {
            seen[row.seen_slot as usize * words + token as usize / 32] |= 1 << (token % 32);
        }
        tokens.push(token);
    }
    vec![Want::Words(tokens), Want::Words(seen)]
}

fn pick(logits: &[f32], row: &SampleRow, position: u32, madd: Madd) -> u32 {
    if row.inv_temperature == 0.0 {
        return first_largest(logits);
    }
    let exp = match madd {
        Madd::Fused => exp::<FusedMadd>,
        Madd::Separate => exp::<SeparateMadd>,
    };
    let z: Vec<f32> = logits.iter().map(|l| (l * row.inv_temperature).min(f32::MAX)).collect();
    let Some(best) = z.get(first_largest(&z) as usize).copied() else { return NO_TOKEN };
    let weigh = |z: f32| if z - best >= -21.0 { (exp(z - best) * (1u32 << 30) as f32) as u64 } else { 0 };
    let mut ranked: Vec<(usize, u64)> = z.iter().map(|z| weigh(*z)).enumerate().collect();
    // A stable sort keeps the lower index first among equals; + 0.0 makes -0 equal to +0.
    ranked.sort_by(|(a, _), (b, _)| (z[*b] + 0.0).total_cmp(&(z[*a] + 0.0)));
    if row.top_k > 0 {
        ranked.truncate(row.top_k as usize);
    }
    let total: u64 = ranked.iter().map(|(_, w)| w).sum();
    let mut before = 0u64;
    let mut kept = Vec::new();
    for (token, w) in ranked {
        let inside = u128::from(before) << 24 < u128::from(row.top_p) * u128::from(total);
        if row.top_p >= 1 << 24 || inside {
            kept.push((token, w));
        }
        before += w;
    }
    kept.retain(|(_, w)| *w > 0 && *w >= u64::from(row.min_weight));
    kept.sort_unstable();
    let total: u64 = kept.iter().map(|(_, w)| w).sum();
    let bits = random_bits(row.seed, row.subsequence, position, row.index);
    let target = ((u128::from(bits) * u128::from(total)) >> 64) as u64;
    let mut running = 0;
    for (token, w) in kept {
        running += w;
        if running > target {
            return token as u32;
        }
    }
    u32::MAX
}
