//! What is asked of a transcription.

use crate::Caller;
use engraft_core::sample::SamplingParams;
use engraft_core::{Error, Result};

/// What a model makes of speech.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// Text in the language that is spoken.
    #[default]
    Transcribe,
    /// Text in English.
    Translate,
}

/// How a sound is transcribed.
///
/// ```
/// use engraft::SpeechOptions;
///
/// let options = SpeechOptions::new().language("de").timestamps(false);
/// assert_ne!(options, SpeechOptions::new());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechOptions {
    pub(super) language: Option<String>,
    /// None for the one of the model's files.
    pub(super) task: Option<Task>,
    pub(super) timestamps: bool,
    pub(super) decoding: Decoding,
    pub(super) scores: bool,
    pub(super) caller: Caller,
}

/// How Whisper's texts are sampled, and which are taken.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decoding {
    pub prompt: String,
    pub previous: bool,
    pub temperatures: Vec<f32>,
    pub compression_ratio: Option<f64>,
    pub logprob: Option<f64>,
    pub no_speech: Option<f64>,
    pub seed: u64,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            previous: true,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio: Some(2.4),
            logprob: Some(-1.0),
            no_speech: Some(0.6),
            seed: 0,
        }
    }
}

impl Decoding {
    /// Refuses values that mean nothing.
    ///
    /// # Errors
    /// `Config`, naming the field.
    pub fn check(&self) -> Result<()> {
        if self.temperatures.is_empty() {
            return Err(Error::config("temperatures", "none", "at least one"));
        }
        for temperature in &self.temperatures {
            SamplingParams { temperature: *temperature, ..SamplingParams::default() }.validate()?;
        }
        let thresholds = [
            ("compression_ratio_threshold", self.compression_ratio),
            ("logprob_threshold", self.logprob),
            ("no_speech_threshold", self.no_speech),
        ];
        match thresholds.into_iter().find_map(|(field, at)| at.filter(|at| at.is_nan()).map(|_| field)) {
            Some(field) => Err(Error::config(field, "NaN", "a number, or none")),
            None => Ok(()),
        }
    }
}

impl Default for SpeechOptions {
    fn default() -> Self {
        let (decoding, caller) = (Decoding::default(), Caller::default());
        Self { language: None, task: None, timestamps: true, decoding, scores: false, caller }
    }
}

impl SpeechOptions {
    /// Language and task are those of the model's `generation_config.json`, or else the language is heard in
    /// the first window; segments have their times, and temperatures and thresholds are those of Whisper's
    /// own program.
    pub fn new() -> Self {
        Self::default()
    }

    /// The language that is spoken: as the model's tokens spell it (`en`, `de`), or its English name.
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// What the model makes of the speech: text in its language, unless this or the model's files say
    /// otherwise.
    pub fn task(mut self, task: Task) -> Self {
        self.task = Some(task);
        self
    }

    /// Whether segments are found by the model's timestamps; else each window is one, as it always is of
    /// models whose vocabulary has no timestamps.
    pub fn timestamps(mut self, on: bool) -> Self {
        self.timestamps = on;
        self
    }

    /// What the text before the sound might be: names and spellings that are to be expected. At most half of
    /// the decoder's positions hold it, its end where it is longer.
    pub fn prompt(mut self, prompt: impl Into<String>) -> Self {
        self.decoding.prompt = prompt.into();
        self
    }

    /// Whether the text of a window follows that of the windows before it; on, unless this says otherwise.
    /// What was sampled at a temperature above 0.5 is followed by nothing.
    pub fn condition_on_previous_text(mut self, on: bool) -> Self {
        self.decoding.previous = on;
        self
    }

    /// Temperatures that a window is sampled at, one after the other, until its text is within the
    /// thresholds; the last one's counts in any case. 0 takes the likeliest tokens. 0 to 1 in steps of 0.2
    /// where nothing is said.
    pub fn temperatures(mut self, temperatures: impl IntoIterator<Item = f32>) -> Self {
        self.decoding.temperatures = temperatures.into_iter().collect();
        self
    }

    /// Above how many bytes of text for a byte of it compressed by zlib a window repeats itself; 2.4 where
    /// nothing is said.
    pub fn compression_ratio_threshold(mut self, most: impl Into<Option<f64>>) -> Self {
        self.decoding.compression_ratio = most.into();
        self
    }

    /// Below which mean log-probability of its tokens a window's text is not believed; -1 where nothing is
    /// said.
    pub fn logprob_threshold(mut self, least: impl Into<Option<f64>>) -> Self {
        self.decoding.logprob = least.into();
        self
    }

    /// Above which probability of no speech a window is passed over, unless its text is believed; 0.6 where
    /// nothing is said.
    pub fn no_speech_threshold(mut self, most: impl Into<Option<f64>>) -> Self {
        self.decoding.no_speech = most.into();
        self
    }

    /// Of the random numbers that temperatures above 0 need; 0 where nothing is said, so that a sound has one
    /// text.
    pub fn seed(mut self, seed: u64) -> Self {
        self.decoding.seed = seed;
        self
    }

    /// Whether segments have the scores of their windows ([`SegmentDetails`](crate::SegmentDetails)). For the
    /// probability of no speech Whisper's decoder is asked once more for each window.
    pub fn scores(mut self, on: bool) -> Self {
        self.scores = on;
        self
    }

    /// Who it is for: windows share the engine as the requests of the same tenant and priority do.
    pub fn on_behalf_of(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }
}
