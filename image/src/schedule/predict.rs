//! What a model's output says about the original and about the noise, and limits of a predicted original.
//!
//! A sample is `alpha * original + sigma * noise` at every step.

use super::choices::{Clip, Prediction};
use super::run::combine;

/// Shares of original and noise in a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Level {
    pub(crate) alpha: f64,
    pub(crate) sigma: f64,
}

impl Level {
    /// From the product of `1 - beta`: `alpha^2 + sigma^2 = 1`.
    pub(crate) fn of_alpha_bar(alpha_bar: f64) -> Self {
        Self { alpha: alpha_bar.sqrt(), sigma: (1.0 - alpha_bar).sqrt() }
    }

    /// From `sigma / alpha`, with `alpha^2 + sigma^2 = 1`.
    pub(crate) fn of_ratio(ratio: f64) -> Self {
        let alpha = 1.0 / (ratio * ratio + 1.0).sqrt();
        Self { alpha, sigma: ratio * alpha }
    }

    /// Of a flow: `alpha + sigma = 1`.
    pub(crate) fn of_flow(sigma: f64) -> Self {
        Self { alpha: 1.0 - sigma, sigma }
    }

    /// Logarithm of `alpha / sigma`.
    pub(crate) fn lambda(self) -> f64 {
        self.alpha.ln() - self.sigma.ln()
    }

    /// An original with noise.
    pub(crate) fn noised(self, original: &[f32], noise: &[f32]) -> Vec<f32> {
        let one = |(x, n): (&f32, &f32)| (self.alpha * f64::from(*x) + self.sigma * f64::from(*n)) as f32;
        original.iter().zip(noise).map(one).collect()
    }
}

impl Prediction {
    /// The original that an output predicts. `flow`: the sigma that a flow's output is multiplied by.
    pub(crate) fn original(self, level: Level, flow: f64, sample: &[f64], output: &[f64]) -> Vec<f64> {
        let Level { alpha, sigma } = level;
        match self {
            Self::Epsilon => combine(sample, output, |x, m| (x - sigma * m) / alpha),
            Self::Sample => output.to_vec(),
            Self::Velocity => combine(sample, output, |x, m| alpha * x - sigma * m),
            Self::Flow => combine(sample, output, |x, m| x - flow * m),
        }
    }

    /// The noise that an output predicts.
    pub(crate) fn noise(self, level: Level, sample: &[f64], output: &[f64]) -> Vec<f64> {
        let Level { alpha, sigma } = level;
        match self {
            Self::Epsilon => output.to_vec(),
            Self::Sample => combine(sample, output, |x, m| (x - alpha * m) / sigma),
            Self::Velocity => combine(sample, output, |x, m| alpha * m + sigma * x),
            Self::Flow => combine(sample, output, |x, m| x + alpha * m),
        }
    }
}

impl Clip {
    /// Clips a predicted original. Dynamic thresholding (arXiv:2205.11487) clips every picture at the
    /// quantile `s` of its magnitudes, with `s` at least 1 and at most the configuration's value, and divides
    /// by `s`.
    pub(crate) fn apply(self, original: &mut [f64], images: usize) {
        match self {
            Self::Nothing => {}
            Self::Range(most) => original.iter_mut().for_each(|x| *x = x.clamp(-most, most)),
            Self::Dynamic { ratio, most } => {
                for image in original.chunks_mut((original.len() / images.max(1)).max(1)) {
                    let s = quantile(image, ratio).max(1.0).min(most);
                    image.iter_mut().for_each(|x| *x = x.clamp(-s, s) / s);
                }
            }
        }
    }
}

/// The quantile of magnitudes, linear between neighbours.
fn quantile(values: &[f64], ratio: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(|x| x.abs()).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = ratio * last as f64;
    let low = (at as usize).min(last);
    let share = at - low as f64;
    sorted[low] + share * (sorted[(low + 1).min(last)] - sorted[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_agree_with_each_other() {
        let (original, noise) = ([0.3, -1.5], [0.7, 0.2]);
        let level = Level::of_ratio(1.7);
        let Level { alpha, sigma } = level;
        assert!((alpha * alpha + sigma * sigma - 1.0).abs() < 1e-15);
        let sample = combine(&original, &noise, |x, n| alpha * x + sigma * n);
        for (kind, output) in [
            (Prediction::Epsilon, noise.to_vec()),
            (Prediction::Sample, original.to_vec()),
            (Prediction::Velocity, combine(&original, &noise, |x, n| alpha * n - sigma * x)),
        ] {
            let got = (kind.original(level, 0.0, &sample, &output), kind.noise(level, &sample, &output));
            for i in 0..2 {
                assert!((got.0[i] - original[i]).abs() < 1e-14 && (got.1[i] - noise[i]).abs() < 1e-14);
            }
        }
        let level = Level::of_flow(0.4);
        let sample = combine(&original, &noise, |x, n| 0.6 * x + 0.4 * n);
        let output = combine(&original, &noise, |x, n| n - x);
        let got = Prediction::Flow.original(level, 0.4, &sample, &output);
        assert!((got[0] - 0.3).abs() < 1e-14 && (got[1] + 1.5).abs() < 1e-14);
        assert!((Prediction::Flow.noise(level, &sample, &output)[0] - 0.7).abs() < 1e-14);
    }

    #[test]
    fn thresholds_are_those_of_one_picture() {
        let clip = Clip::Dynamic { ratio: 0.5, most: 3.0 };
        let mut values = [0.5, -2.0, 8.0, 0.1, 0.2, 0.3];
        clip.apply(&mut values, 2);
        assert_eq!(values, [0.25, -1.0, 1.0, 0.1, 0.2, 0.3]);
        let mut large = [50.0, -20.0];
        clip.apply(&mut large, 1);
        assert_eq!(large, [1.0, -1.0]);
        assert_eq!(quantile(&[4.0, -1.0, 2.0], 0.75), 3.0);
    }
}
