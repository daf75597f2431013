//! From files of sound to what models of speech read, and from their tokens to segments of text.
//!
//! [`decode`] reads WAV and FLAC, [`Sound::at`] brings one to a model's rate, [`LogMel`] and [`Waveform`] are
//! the feature extractors of published checkpoints (`preprocessor_config.json`), [`segments`] reads the
//! timestamps of Whisper's tokens, [`Format`] writes them as text, JSON, SRT or WebVTT. No model is needed
//! for any of it.

mod decode;
mod error;
mod extract;
mod format;
mod header;
mod mel;
mod resample;
mod segment;
mod waveform;

pub use decode::{Limits, Sound, decode};
pub use error::{Error, Result};
pub use extract::Extractor;
pub use format::Format;
pub use mel::{LogMel, LogMelConfig};
pub use segment::{Segment, TimedTokens, Timestamps, segments};
pub use waveform::Waveform;
