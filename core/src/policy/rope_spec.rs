//! Rotary embeddings, as a model's description has them.

use crate::params::RopeStyle;
use std::f64::consts::PI;

/// How rotary frequencies are stretched.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Original context length.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// Rotations above which frequencies are kept.
        beta_fast: f64,
        /// Rotations below which they are divided.
        beta_slow: f64,
        /// Original context length.
        original: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753): each frequency divided by its own factor, by one list for prompts within
    /// the original context and another one for longer ones. A sequence keeps the list it began with.
    Long {
        /// Divisors for prompts of up to `original` tokens.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Original context length.
        original: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// Pairs of the whole head, of which the first ones turn, as fast as they would in a head that turns as a
    /// whole; the others stay as they are (Gemma 4).
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// Divisor of their frequencies.
        factor: f64,
    },
    /// Each frequency divided by its own factor, from [`Slot::RopeFactors`](super::Slot::RopeFactors) (GGUF's
    /// `rope_freqs`).
    Stored,
}

/// A rotary embedding.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RopeSpec {
    /// How pairs lie.
    pub style: RopeStyle,
    /// Rotated columns of a head.
    pub columns: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Stretching.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Rotation of so many columns of every head, unstretched.
    pub fn new(style: RopeStyle, columns: usize, theta: f64) -> Self {
        Self { style, columns, theta, scaling: RopeScaling::None }
    }

    /// What the frequency of every pair is divided by, as GGUF's `rope_freqs` keeps it (in f32): of Llama 3's
    /// stretching; none of any other.
    pub fn divisors(&self) -> Option<Vec<f32>> {
        let RopeScaling::Llama3 { factor, low, high, original } = self.scaling else { return None };
        let plain = |i: usize| libm::pow(self.theta, -(2.0 * i as f64) / self.columns as f64);
        let divisor = |f: f64| (f / llama3_frequency(f, factor, [low, high], original)) as f32;
        Some((0..self.columns / 2).map(|i| divisor(plain(i))).collect())
    }
}

/// A frequency as Llama 3 stretches it.
pub(crate) fn llama3_frequency(f: f64, factor: f64, [low, high]: [f64; 2], original: f64) -> f64 {
    let turns = original * f / (2.0 * PI);
    // Share of the unstretched frequency: 0 below `low` turns in the original context, 1 above `high`.
    let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    (1.0 - share) * f / factor + share * f
}
