//! The feature extractor that a checkpoint names.

use crate::{Error, LogMel, LogMelConfig, Result, Waveform};
use serde_json::Value;

/// A feature extractor.
#[derive(Debug)]
#[non_exhaustive]
pub enum Extractor {
    /// Whisper's.
    LogMel(LogMel),
    /// wav2vec 2.0's and Moonshine's.
    Waveform(Waveform),
}

impl Extractor {
    /// The one that a `preprocessor_config.json` describes; one that names no type is wav2vec 2.0's, whose
    /// oldest files do not.
    ///
    /// # Errors
    /// `Config` for text that is no such configuration, an unknown type, and sizes that no extractor has.
    ///
    /// ```
    /// let config = r#"{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128}"#;
    /// let engraft_audio::Extractor::LogMel(mel) = engraft_audio::Extractor::from_json(config)? else {
    /// panic!() }; assert_eq!((mel.config().frames(), mel.config().feature_size), (3000, 128));
    /// # Ok::<(), engraft_audio::Error>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self> {
        let no = |e: serde_json::Error| {
            Error::config("preprocessor_config.json", e, "a feature extractor's fields")
        };
        let value: Value = serde_json::from_str(text).map_err(no)?;
        let named = value.get("feature_extractor_type").map(|name| name.as_str().unwrap_or_default());
        let by_samples = || value.get("sampling_rate").is_some() && value.get("n_fft").is_none();
        match named.unwrap_or(if by_samples() { "Wav2Vec2FeatureExtractor" } else { "" }) {
            "WhisperFeatureExtractor" => {
                let config: LogMelConfig = serde_json::from_value(value).map_err(no)?;
                LogMel::new(config).map(Self::LogMel)
            }
            "Wav2Vec2FeatureExtractor" => serde_json::from_value(value).map(Self::Waveform).map_err(no),
            other => Err(Error::config(
                "feature_extractor_type",
                format!("\"{other}\""),
                "WhisperFeatureExtractor, Wav2Vec2FeatureExtractor",
            )),
        }
    }
}
