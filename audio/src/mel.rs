//! Log-mel energies as Whisper's feature extractor makes them: periodic Hann window, frames around every hop
//! of the sound reflected at its ends, squared magnitudes, triangular filters on Slaney's scale, decimal
//! logarithm, a floor 8 below the loudest. Computed in f64, rounded once.

use crate::{Error, Result};
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use serde::Deserialize;
use std::f64::consts::PI;
use std::ops::Range;
use std::sync::Arc;

/// What `preprocessor_config.json` says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LogMelConfig {
    /// Bands.
    #[serde(default = "of::<80>")]
    pub feature_size: usize,
    /// Samples from frame to frame.
    #[serde(default = "of::<160>")]
    pub hop_length: usize,
    /// Samples of a frame.
    #[serde(default = "of::<400>")]
    pub n_fft: usize,
    /// Seconds of a window.
    #[serde(default = "of::<30>")]
    pub chunk_length: usize,
    /// Samples of a second.
    #[serde(default = "of::<16000>")]
    pub sampling_rate: usize,
    /// What shorter sounds are filled with.
    #[serde(default)]
    pub padding_value: f32,
}

const fn of<const N: usize>() -> usize {
    N
}

/// The feature extractor.
pub struct LogMel {
    config: LogMelConfig,
    window: Vec<f64>,
    /// Of every band the first frequency that it hears, and weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    fft: Arc<dyn RealToComplex<f64>>,
}

impl std::fmt::Debug for LogMel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogMel").field("config", &self.config).finish_non_exhaustive()
    }
}

impl LogMelConfig {
    /// Refuses sizes that no extractor has.
    fn check(&self) -> Result<()> {
        for (field, got, most) in [
            ("feature_size", self.feature_size, 1 << 10),
            ("hop_length", self.hop_length, 1 << 16),
            ("n_fft", self.n_fft, 1 << 16),
            ("chunk_length", self.chunk_length, 3600),
            ("sampling_rate", self.sampling_rate, 768_000),
        ] {
            if got == 0 || got > most {
                return Err(Error::config(field, got, format!("1 to {most}")));
            }
        }
        match self.n_fft >= 2 && self.padding_value.is_finite() {
            true => Ok(()),
            false => {
                Err(Error::config("n_fft, padding_value", self.n_fft, "at least 2, and a finite number"))
            }
        }
    }

    /// Samples of a window.
    pub fn samples(&self) -> usize {
        self.chunk_length * self.sampling_rate
    }

    /// Frames of a window.
    pub fn frames(&self) -> usize {
        self.samples() / self.hop_length
    }
}

impl LogMel {
    /// An extractor of this configuration.
    ///
    /// # Errors
    /// `Config` for sizes that no extractor has.
    pub fn new(config: LogMelConfig) -> Result<Self> {
        config.check()?;
        let n = config.n_fft;
        let window = (0..n).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / n as f64).cos()).collect();
        let filters = filters(&config);
        Ok(Self { window, filters, fft: RealFftPlanner::new().plan_fft_forward(n), config })
    }

    /// Its configuration.
    pub fn config(&self) -> &LogMelConfig {
        &self.config
    }

    /// Features `[samples / hop, bands]` of a sound filled up, or cut, to so many samples; the floor is 8
    /// below its own loudest.
    pub fn features(&self, sound: &[f32], samples: usize) -> Vec<f32> {
        let logs = self.logs(sound, samples, 0..samples / self.config.hop_length);
        let peak = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scaled(&logs, peak)
    }

    /// As [`LogMel::features`], of a window of a longer sound: the floor is 8 below `peak`, the loudest of
    /// all of it by [`LogMel::peak`].
    pub fn features_below(&self, sound: &[f32], samples: usize, peak: f64) -> Vec<f32> {
        scaled(&self.logs(sound, samples, 0..samples / self.config.hop_length), peak)
    }

    /// The greatest decimal logarithm of an energy in these frames of a sound filled up, or truncated, to so
    /// many samples; -infinity of no frames.
    pub fn peak(&self, sound: &[f32], samples: usize, frames: Range<usize>) -> f64 {
        let all = frames.end.min(samples / self.config.hop_length);
        let logs = self.logs(sound, samples, frames.start.min(all)..all);
        logs.into_iter().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Decimal logarithms of energies `[frames, bands]`.
    fn logs(&self, sound: &[f32], samples: usize, frames: Range<usize>) -> Vec<f64> {
        let LogMelConfig { feature_size: bands, hop_length: hop, n_fft, padding_value, .. } = self.config;
        let at = |i: usize| f64::from(sound.get(i).copied().unwrap_or(padding_value));
        // Position `i - n_fft / 2` of the sound, which goes back from its ends.
        let reflected = |i: usize| {
            let last = samples as i64 - 1;
            let mut i = i as i64 - (n_fft / 2) as i64;
            while last > 0 && !(0..=last).contains(&i) {
                i = if i < 0 { -i } else { 2 * last - i };
            }
            at(i.clamp(0, last.max(0)) as usize)
        };
        let mut scratch = self.fft.make_scratch_vec();
        let (mut frame, mut spectrum) = (vec![0.0; n_fft], vec![Complex::default(); n_fft / 2 + 1]);
        let mut powers = vec![0.0; spectrum.len()];
        let mut logs = Vec::with_capacity(frames.len() * bands);
        for start in frames.map(|frame| frame * hop) {
            for (i, (to, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
                *to = reflected(start + i) * weight;
            }
            // Sizes are those that the plan was made for: it cannot fail.
            let done = self.fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok());
            powers.iter_mut().zip(&spectrum).for_each(|(power, x)| *power = x.norm_sqr());
            logs.extend(self.filters.iter().map(|(first, weights)| {
                let energy: f64 = weights.iter().zip(&powers[*first..]).map(|(w, p)| w * p).sum();
                energy.max(1e-10).log10()
            }));
        }
        logs
    }
}

/// Features of logarithms whose floor is 8 below `peak`.
fn scaled(logs: &[f64], peak: f64) -> Vec<f32> {
    let floor = peak - 8.0;
    logs.iter().map(|log| ((log.max(floor) + 4.0) / 4.0) as f32).collect()
}

/// Slaney's scale: linear up to 1 kHz, logarithmic from there on.
fn mel(hz: f64) -> f64 {
    if hz < 1000.0 { 3.0 * hz / 200.0 } else { 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn hertz(mel: f64) -> f64 {
    if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}

/// Triangles of equal area between neighbours on the scale, from 0 Hz to half the rate (at most 8 kHz).
fn filters(config: &LogMelConfig) -> Vec<(usize, Vec<f64>)> {
    let (bands, rate, bins) = (config.feature_size, config.sampling_rate as f64, config.n_fft / 2 + 1);
    let top = mel((rate / 2.0).min(8000.0));
    let corner = |i: usize| hertz(top * i as f64 / (bands + 1) as f64);
    // As the reference has them: evenly up to half the rate.
    let frequency = |bin: usize| (rate / 2.0).floor() * bin as f64 / (bins - 1).max(1) as f64;
    let filter = |band: usize| {
        let [left, middle, right] = [band, band + 1, band + 2].map(corner);
        let weight = |hz: f64| {
            let (up, down) = ((hz - left) / (middle - left), (right - hz) / (right - middle));
            up.min(down).max(0.0) * 2.0 / (right - left)
        };
        let all: Vec<f64> = (0..bins).map(|bin| weight(frequency(bin))).collect();
        let first = all.iter().position(|w| *w > 0.0).unwrap_or(0);
        let end = all.iter().rposition(|w| *w > 0.0).map_or(first, |last| last + 1);
        (first, all[first..end].to_vec())
    };
    (0..bands).map(filter).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn plain() -> LogMelConfig {
        serde_json::from_str("{}").unwrap()
    }

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let extractor = LogMel::new(plain()).unwrap();
        for hz in [200.0, 1000.0, 4000.0] {
            let sound: Vec<f32> =
                (0..16_000).map(|i| (2.0 * PI * hz * f64::from(i) / 16_000.0).sin() as f32).collect();
            let features = extractor.features(&sound, 16_000);
            assert_eq!(features.len(), 100 * 80);
            let row = &features[50 * 80..51 * 80];
            let loudest = (0..80).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            let (low, high) = (
                hertz(mel(8000.0) * loudest as f64 / 81.0),
                hertz(mel(8000.0) * (loudest + 2) as f64 / 81.0),
            );
            assert!(low < hz && hz < high, "{hz} Hz in {low} to {high}");
        }
    }

    #[test]
    fn a_window_has_the_floor_of_its_sound() {
        let extractor = LogMel::new(plain()).unwrap();
        let tone = |i: u32| (f64::from(i) * 0.3).sin() as f32;
        // Silence behind a tone that is louder in its first half.
        let sound: Vec<f32> = (0..8000)
            .map(|i| match i {
                0..2000 => tone(i),
                2000..4000 => tone(i) * 0.01,
                _ => 0.0,
            })
            .collect();
        let whole = extractor.features(&sound, 8000);
        let peak = extractor.peak(&sound, 8000, 0..50);
        assert_eq!(extractor.features_below(&sound, 8000, peak), whole);
        // In parts, of which one has no more frames.
        let parts = [0..20, 20..90, 90..100].map(|frames| extractor.peak(&sound, 8000, frames));
        assert_eq!(parts.iter().copied().fold(f64::NEG_INFINITY, f64::max), peak);
        assert_eq!(parts[2], f64::NEG_INFINITY);
        let least = |features: &[f32]| features.iter().copied().fold(f32::INFINITY, f32::min);
        let quiet = &sound[2400..];
        let window = extractor.features_below(quiet, quiet.len(), peak);
        assert_eq!(least(&window), ((peak - 8.0 + 4.0) / 4.0) as f32);
        assert!(least(&extractor.features(quiet, quiet.len())) < least(&window));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_and_others_work() {
        for (field, json) in
            [("hop_length", r#"{"hop_length": 0}"#), ("feature_size", r#"{"feature_size": 5000}"#)]
        {
            let error = LogMel::new(serde_json::from_str(json).unwrap()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        // An odd transform, a sound shorter than a frame, silence, none.
        let odd = LogMelConfig { n_fft: 33, hop_length: 7, feature_size: 5, ..plain() };
        let extractor = LogMel::new(odd).unwrap();
        assert_eq!(extractor.features(&[0.5; 10], 10).len(), 5);
        assert!(extractor.features(&[], 70).iter().all(|x| *x == -1.5));
        assert!(extractor.features(&[], 0).is_empty());
    }
}
