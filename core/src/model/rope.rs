//! Rotary tables: angles in f64 on the host (own functions, the same bits everywhere), cos and sin as f32 on
//! the device.

use crate::Result;
use crate::mem::{Buf, DeviceMem};
use crate::ops::RopeView;
use crate::params::RopeStyle;
use crate::policy::{RopeScaling, RopeSpec, llama3_frequency};
use std::f64::consts::PI;

/// A rotary embedding's table on the device.
#[derive(Debug)]
pub struct RopeTable<M> {
    table: Buf<M, f32>,
    /// Rows.
    positions: usize,
    /// Positions that a sequence may come to: all rows, or half of them where there are two lists of
    /// divisors.
    reach: usize,
    pairs: usize,
    style: RopeStyle,
}

impl<M: DeviceMem> RopeTable<M> {
    /// Takes what [`angles`] gave for `reach` positions.
    pub fn new(table: Buf<M, f32>, reach: usize, spec: &RopeSpec) -> Self {
        let positions = rows(spec, reach);
        Self { table, positions, reach, pairs: spec.columns / 2, style: spec.style }
    }

    /// Positions that a sequence may come to.
    pub fn reach(&self) -> usize {
        self.reach
    }

    /// What ops take.
    pub fn view(&self) -> RopeView<'_, M> {
        RopeView { table: self.table.view(), positions: self.positions, pairs: self.pairs, style: self.style }
    }
}

/// Of models whose long prompts have another list of divisors: how far their rows of the tables lie behind
/// those of shorter prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RopeShifts(Vec<(usize, u32)>);

impl RopeShifts {
    /// Of tables and their descriptions.
    pub(super) fn new<M: DeviceMem>(specs: &[RopeSpec], tables: &[RopeTable<M>]) -> Self {
        let shift = |(spec, table): (&RopeSpec, &RopeTable<M>)| match spec.scaling {
            RopeScaling::Long { original, .. } => Some((original, table.reach() as u32)),
            _ => None,
        };
        Self(specs.iter().zip(tables).filter_map(shift).collect())
    }

    /// For prompts of so many tokens.
    pub fn of(&self, tokens: usize) -> u32 {
        let beyond = self.0.iter().filter(|(original, _)| tokens > *original);
        beyond.map(|(_, reach)| *reach).max().unwrap_or(0)
    }
}

/// Rows of the table for so many positions: twice as many where there are two lists of divisors.
fn rows(spec: &RopeSpec, positions: usize) -> usize {
    positions * if matches!(spec.scaling, RopeScaling::Long { .. }) { 2 } else { 1 }
}

/// Values of the table for so many positions: what [`angles`] gives.
pub fn table_len(spec: &RopeSpec, positions: usize) -> usize {
    2 * rows(spec, positions) * (spec.columns / 2)
}

/// `cos` then `sin`, `[2, rows, pairs]`: `cos(p * f_i) * attention_factor`, rounded once from f64. Rows are
/// positions; with two lists of divisors, positions of short prompts, then those of long ones.
pub fn angles(spec: &RopeSpec, factors: Option<&[f32]>, positions: usize) -> Result<Vec<f32>> {
    let plain = |i: usize| libm::pow(spec.theta, -(2.0 * i as f64) / spec.columns as f64);
    let divided = |by: &[f64]| by.iter().enumerate().map(|(i, by)| plain(i) / by).collect::<Vec<f64>>();
    let (lists, attention) = match &spec.scaling {
        RopeScaling::Long { short, long, attention_factor, .. } => {
            (vec![divided(short), divided(long)], *attention_factor)
        }
        _ => {
            let (frequencies, attention) = frequencies(spec, factors)?;
            (vec![frequencies], attention)
        }
    };
    let turns = lists
        .iter()
        .flat_map(|list| (0..positions).flat_map(move |p| list.iter().map(move |f| p as f64 * f)));
    let (cos, sin): (Vec<f32>, Vec<f32>) = turns
        .map(|angle| {
            let (sin, cos) = libm::sincos(angle);
            ((cos * attention) as f32, (sin * attention) as f32)
        })
        .unzip();
    Ok([cos, sin].concat())
}

/// Radians per position of every pair, and the factor of cos and sin.
fn frequencies(spec: &RopeSpec, factors: Option<&[f32]>) -> Result<(Vec<f64>, f64)> {
    let pairs = spec.columns / 2;
    let plain = |i: usize| libm::pow(spec.theta, -(2.0 * i as f64) / spec.columns as f64);
    let all = |f: &dyn Fn(usize) -> f64| (0..pairs).map(f).collect::<Vec<f64>>();
    Ok(match spec.scaling {
        // Two lists, one for each half of the table: see `angles`.
        RopeScaling::None | RopeScaling::Long { .. } => (all(&plain), 1.0),
        RopeScaling::Linear { factor } => (all(&|i| plain(i) / factor), 1.0),
        RopeScaling::Proportional { pairs: turning, factor } => {
            (all(&|i| if i < turning { plain(i) / factor } else { 0.0 }), 1.0)
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            (all(&|i| llama3_frequency(plain(i), factor, [low, high], original)), 1.0)
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor, truncate } => {
            // The pair that makes `turns` turns within the original context.
            let pair = |turns: f64| {
                let span = libm::log(original / (turns * 2.0 * PI));
                spec.columns as f64 * span / (2.0 * libm::log(spec.theta))
            };
            let (mut from, mut to) = (pair(beta_fast), pair(beta_slow));
            if truncate {
                (from, to) = (from.floor(), to.ceil());
            }
            let (from, mut to) = (from.max(0.0), to.min(spec.columns as f64 - 1.0));
            if from == to {
                to += 0.001;
            }
            let stretch = |i: usize| {
                let f = plain(i);
                let divided = ((i as f64 - from) / (to - from)).clamp(0.0, 1.0);
                f / factor * divided + f * (1.0 - divided)
            };
            (all(&stretch), attention_factor)
        }
        RopeScaling::Stored => {
            let factors = factors.filter(|f| f.len() == pairs && f.iter().all(|v| v.is_finite() && *v > 0.0));
            let factors = factors.ok_or_else(|| {
                crate::Error::tensor("rope_freqs.weight", format!("{pairs} positive divisors expected"))
            })?;
            (all(&|i| plain(i) / f64::from(factors[i])), 1.0)
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { style: RopeStyle::Half, columns: 8, theta: 10_000.0, scaling }
    }

    #[test]
    fn plain_angles() {
        let t = angles(&spec(RopeScaling::None), None, 3).unwrap();
        assert_eq!(&t[..4], [1.0; 4], "position 0 does not turn");
        assert!((t[4] - 1f32.cos()).abs() < 1e-7 && (t[12 + 4] - 1f32.sin()).abs() < 1e-7);
        assert!((t[12 + 8 + 1] - 0.2f32.sin()).abs() < 1e-7, "pair 1 turns by theta^(-1/4) = 0.1");
    }

    #[test]
    fn llama3_keeps_fast_pairs_and_divides_slow_ones() {
        let s = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 100.0 };
        let (f, a) = frequencies(&spec(s), None).unwrap();
        assert_eq!((f[0], a), (1.0, 1.0));
        assert!((f[3] - 0.001 / 8.0).abs() < 1e-15);
    }

    #[test]
    fn proportional_pairs_turn_as_in_a_whole_head_and_the_others_stay() {
        let part =
            |pairs, factor| frequencies(&spec(RopeScaling::Proportional { pairs, factor }), None).unwrap().0;
        let whole = frequencies(&spec(RopeScaling::None), None).unwrap().0;
        assert_eq!(part(2, 1.0), [whole[0], whole[1], 0.0, 0.0]);
        assert_eq!(part(1, 4.0), [whole[0] / 4.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn stored_factors_must_fit() {
        assert!(angles(&spec(RopeScaling::Stored), Some(&[1.0; 3]), 1).is_err());
        assert!(angles(&spec(RopeScaling::Stored), Some(&[1.0, 0.0, 1.0, 1.0]), 1).is_err());
        let (f, _) = frequencies(&spec(RopeScaling::Stored), Some(&[2.0; 4])).unwrap();
        assert_eq!(f[0], 0.5);
    }

    /// Head 64, original context 4096: the pairs of 32 turns and of 1 turn are 10.47 and 22.52, so the ramp
    /// goes from 10 to 23, with both ends rounded outwards.
    #[test]
    fn yarn_stretches_between_whole_pairs() {
        let yarn = |truncate| RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: 4096.0,
            attention_factor: 1.25,
            truncate,
        };
        let plain = |i: usize| 10_000f64.powf(-(i as f64) / 32.0);
        let shares = |truncate| {
            let spec = RopeSpec { columns: 64, ..spec(yarn(truncate)) };
            let (f, attention) = frequencies(&spec, None).unwrap();
            assert_eq!((f.len(), attention), (32, 1.25));
            // f / plain = 1 - share * 3/4, solved for the share of the divided frequency.
            (0..32).map(|i| (1.0 - f[i] / plain(i)) / 0.75).collect::<Vec<f64>>()
        };
        let whole = shares(true);
        for (i, share) in whole.iter().enumerate() {
            let want = ((i as f64 - 10.0) / 13.0).clamp(0.0, 1.0);
            assert!((share - want).abs() < 1e-12, "pair {i}: {share}, not {want}");
        }
        let exact = shares(false);
        assert!(exact[10].abs() < 1e-12 && whole[11] > exact[11], "from 10.47: {}", exact[11]);
        assert!((exact[23] - 1.0).abs() < 1e-12 && whole[22] < exact[22] && exact[22] < 1.0);
    }
}
