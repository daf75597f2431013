//! What one window of a sound gives, and what is wrong with a sound.

use engraft_core::Error;

/// Loudness below which a window is silent.
const SILENCE: f32 = 1e-4;

/// Text, and when it was said in seconds of the window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    pub times: [f64; 2],
    pub text: String,
}

/// A window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heard {
    /// Samples up to where the next window begins.
    pub samples: usize,
    pub segments: Vec<Timed>,
}

/// Whether a window has nothing to hear.
pub(super) fn is_silent(samples: &[f32]) -> bool {
    samples.iter().all(|x| x.abs() <= SILENCE)
}

/// What is wrong with a sound or a feature extractor, in the words of this crate.
pub(super) fn of_audio(error: engraft_audio::Error) -> Error {
    match error {
        engraft_audio::Error::Config { field, got, allowed } => Error::config(field, got, allowed),
        engraft_audio::Error::Limit { what, got, allowed } => Error::config(what, got, allowed),
        other => Error::text(other.to_string()),
    }
}
