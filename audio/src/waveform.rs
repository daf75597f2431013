//! Feature extractors that leave the samples as they are, or only bring them to mean 0 and variance 1
//! (wav2vec 2.0, Moonshine).

use crate::{Error, Result};
use serde::Deserialize;

/// What `preprocessor_config.json` says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Waveform {
    /// Samples of a second.
    #[serde(default = "rate")]
    pub sampling_rate: u32,
    /// Whether samples are brought to mean 0 and variance 1.
    #[serde(default = "yes")]
    pub do_normalize: bool,
    /// Whether the model is told what is padding: then that counts for neither, and is not normalized.
    #[serde(default)]
    pub return_attention_mask: bool,
    /// What shorter sounds of a batch are filled with.
    #[serde(default)]
    pub padding_value: f32,
}

fn yes() -> bool {
    true
}

fn rate() -> u32 {
    16_000
}

impl Waveform {
    /// Features `[samples]` of a sound filled up to so many samples: `(x - mean) / sqrt(variance + 1e-7)`
    /// where they are normalized, of the sound itself where there is a mask, else of the sound and its
    /// padding.
    ///
    /// # Errors
    /// `Limit` for a sound that is longer.
    pub fn features(&self, sound: &[f32], samples: usize) -> Result<Vec<f32>> {
        if sound.len() > samples {
            return Err(Error::limit("the number of samples", sound.len(), format!("at most {samples}")));
        }
        let mut features = sound.to_vec();
        if !self.return_attention_mask {
            features.resize(samples, self.padding_value);
        }
        if self.do_normalize {
            let count = features.len().max(1) as f64;
            let mean = features.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let variance = features.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
            let by = (variance + 1e-7).sqrt();
            features.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) / by) as f32);
        }
        features.resize(samples, self.padding_value);
        Ok(features)
    }
}
