//! Another sample rate: a sinc under a Hann window, 6 zero crossings to each side, of 0.99 of the lower
//! rate's band, one set of weights for each place between two samples. In f64 up to the rounded weights'
//! sums.

use crate::decode::Sound;
use crate::{Error, Result};
use std::f64::consts::PI;

/// Zero crossings of the sinc to each side.
const CROSSINGS: f64 = 6.0;
/// Share of the lower rate's band that passes.
const ROLLOFF: f64 = 0.99;
/// Weights at most: rates whose ratio needs more are refused.
const MOST_WEIGHTS: usize = 1 << 24;

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Weights of the samples around every output of a period.
struct Weights {
    /// Input samples and outputs of a period.
    from: usize,
    to: usize,
    /// Samples to each side of an output that it reads.
    width: usize,
    /// `[to, taps]`.
    of: Vec<f64>,
}

impl Weights {
    fn new(from: usize, to: usize) -> Result<Self> {
        let band = from.min(to) as f64 * ROLLOFF;
        // One more than the window reaches: an output may lie anywhere behind the sample at its left.
        let width = (CROSSINGS * from as f64 / band).ceil() as usize + 1;
        let taps = 2 * width + 1;
        if taps.saturating_mul(to) > MOST_WEIGHTS {
            let allowed = format!("rates whose ratio needs at most {MOST_WEIGHTS} weights");
            return Err(Error::limit("the ratio of sample rates", format!("{from} to {to}"), allowed));
        }
        let weight = |output: usize, tap: usize| {
            let sample = (output * from / to + tap) as f64 - width as f64;
            let t = sample / from as f64 - output as f64 / to as f64;
            let t = (t * band).clamp(-CROSSINGS, CROSSINGS);
            let window = (t * PI / CROSSINGS / 2.0).cos().powi(2);
            let sinc = if t == 0.0 { 1.0 } else { (t * PI).sin() / (t * PI) };
            sinc * window * band / from as f64
        };
        let of = (0..to).flat_map(|output| (0..taps).map(move |tap| (output, tap)));
        Ok(Self { from, to, width, of: of.map(|(output, tap)| weight(output, tap)).collect() })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let taps = 2 * self.width + 1;
        let count = (x.len() as u128 * self.to as u128).div_ceil(self.from as u128) as usize;
        let output = |i: usize| {
            let (period, place) = (i / self.to, i % self.to);
            let weights = &self.of[place * taps..][..taps];
            // The first sample that has a weight; what lies outside is silence.
            let first = (period * self.from + place * self.from / self.to) as i64 - self.width as i64;
            let (skip, start) = ((-first).max(0) as usize, first.max(0) as usize);
            let there = x.get(start..).unwrap_or(&[]);
            let sum =
                weights[skip.min(taps)..].iter().zip(there).map(|(w, x)| w * f64::from(*x)).sum::<f64>();
            sum as f32
        };
        (0..count).map(output).collect()
    }
}

impl Sound {
    /// The sound at another rate.
    ///
    /// # Errors
    /// `Limit` for rates whose ratio needs too many weights.
    pub fn at(self, rate: u32) -> Result<Sound> {
        if rate == self.rate || rate == 0 {
            return Ok(self);
        }
        let shared = gcd(self.rate, rate);
        let weights = Weights::new((self.rate / shared) as usize, (rate / shared) as usize)?;
        Ok(Sound { rate, samples: weights.apply(&self.samples), missing: self.missing })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_keeps_its_pitch_and_length() {
        let tone = |rate: u32| -> Vec<f32> {
            (0..rate).map(|i| (2.0 * PI * 440.0 * f64::from(i) / f64::from(rate)).sin() as f32).collect()
        };
        for from in [8_000, 11_025, 22_050, 44_100, 47_992, 48_000, 96_000, 767_987] {
            let sound = Sound::new(from, tone(from)).at(16_000).unwrap();
            assert_eq!((sound.rate, sound.samples.len()), (16_000, 16_000));
            let far = sound.samples.iter().zip(tone(16_000)).skip(200).take(15_600);
            let worst = far.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 3e-3, "{from}: {worst}");
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_hold_does_not_pass() {
        let samples = (0..48_000).map(|i| (2.0 * PI * 15_000.0 * f64::from(i) / 48_000.0).sin() as f32);
        let sound = Sound::new(48_000, samples.collect()).at(16_000).unwrap();
        let loudest = sound.samples[100..15_900].iter().fold(0.0, |m, x| f32::max(m, x.abs()));
        assert!(loudest < 1e-3, "{loudest}");
    }

    #[test]
    fn the_same_rate_and_impossible_ones() {
        let sound = Sound { missing: 0.5, ..Sound::new(16_000, vec![0.5, -0.25]) };
        assert_eq!(sound.clone().at(8_000).unwrap().missing, 0.5);
        assert_eq!(sound.clone().at(16_000).unwrap(), sound);
        let odd = Sound::new(767_987, vec![0.0; 4]);
        assert!(odd.at(4_000_000_007).unwrap_err().to_string().contains("767987 to 4000000007"));
    }
}
