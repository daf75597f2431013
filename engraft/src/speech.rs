//! Speech to text: windows of a sound, segments with their times.
//!
//! Whisper hears windows of a fixed length. What it says of one ends in timestamps, and the next begins
//! where the last whole segment ended; without timestamps windows stand side by side. Models that read
//! samples hear up to half a minute at once, and a window is a segment. Windows in which nothing is louder
//! than 1e-4 are passed over.

mod heard;
mod languages;
mod options;
mod samples;
mod whisper;
mod words;

pub use options::{SpeechOptions, Task};

use crate::{CancelToken, TextGenerator};
use engraft_audio::{Extractor, Segment, Sound};
use engraft_core::{Error, Result};
use heard::{Calls, Heard, Scores, Timed, of_audio};
use samples::Samples;
use std::collections::VecDeque;
use std::sync::Arc;
use whisper::{Before, Whisper};

/// A model that transcribes speech.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use engraft::engraft_audio::{Limits, decode};
/// use engraft::{SpeechOptions, Transcriber};
///
/// let model = Transcriber::new(engraft::open("whisper-tiny")?)?;
/// let sound = decode(std::fs::read("talk.flac")?, Limits::default())?;
/// for segment in model.transcribe(sound, &SpeechOptions::new())? {
///     let segment = segment?;
///     println!("{:.2} {}", segment.start, segment.text);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transcriber {
    model: Arc<TextGenerator>,
    hearing: Hearing,
}

/// What is known of a segment besides its text and its times, in the words of OpenAI's API.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SegmentDetails {
    /// Where its window begins, in hundredths of a second.
    pub seek: u64,
    /// Its tokens, with the timestamps around it where it was found by them; of an encoder alone its labels.
    pub tokens: Vec<u32>,
    /// What its window's text was sampled at; 0 for the likeliest tokens.
    pub temperature: f32,
    /// Mean of the natural logarithms of the probabilities of its window's tokens and of the one that ended
    /// them, by the logits that its rules left; none of an encoder alone, and unless
    /// [`SpeechOptions::scores`] asks for it.
    pub avg_logprob: Option<f64>,
    /// Bytes of its window's text for each that zlib needs for it; none unless it is asked for.
    pub compression_ratio: Option<f64>,
    /// How probable it is that nothing is said in its window, by models that have a token for it; none unless
    /// it is asked for.
    pub no_speech_prob: Option<f64>,
}

/// How a model hears.
#[derive(Debug)]
enum Hearing {
    Whisper(Whisper),
    Samples(Samples),
}

impl Transcriber {
    /// Takes a model that reads sound, of a folder that says how: Whisper, Moonshine, or
    /// wav2vec 2.0 with labels of characters. A model that is shared (`Arc`) goes on with what else it does.
    ///
    /// # Errors
    /// `Architecture` for a model that reads no sound, or gives no text; `Config` for another feature
    /// extractor; `Text` for a vocabulary of Whisper's without the words that say what is to be done.
    pub fn new(model: impl Into<Arc<TextGenerator>>) -> Result<Self> {
        let model = model.into();
        let no = |reason: &str| Error::Architecture {
            op: "transcribe".into(),
            arch: model.info().arch.clone(),
            reason: reason.into(),
        };
        let Some(stem) = model.info().sound.clone() else {
            return Err(no("the model reads no sound; Whisper, Moonshine and wav2vec 2.0 do"));
        };
        let Some(extractor) = &model.speech.extractor else {
            return Err(no(
                "neither preprocessor_config.json nor processor_config.json next to the model says how sound is read",
            ));
        };
        let hearing = match Extractor::from_json(&extractor.to_string()).map_err(of_audio)? {
            Extractor::LogMel(mel) if stem.exact => {
                let (bands, frames) = (mel.config().feature_size, mel.config().frames());
                if (bands, frames) != (stem.columns, stem.frames) {
                    let allowed = format!("what the model hears: {} frames of {}", stem.frames, stem.columns);
                    return Err(Error::config(
                        "feature extractor",
                        format!("{frames} frames of {bands}"),
                        allowed,
                    ));
                }
                Hearing::Whisper(Whisper::new(&model, mel, stem.tokens())?)
            }
            Extractor::Waveform(waveform) if stem.columns == 1 => {
                Hearing::Samples(Samples::new(&model, waveform, stem, model.speech.pad)?)
            }
            _ => return Err(no("its feature extractor is another model's")),
        };
        Ok(Self { model, hearing })
    }

    /// The model.
    pub fn model(&self) -> &TextGenerator {
        &self.model
    }

    /// The segments of a sound, one after the other; each window is heard when its first segment is asked
    /// for.
    ///
    /// # Errors
    /// `Text` for a language that the model does not know, for a translation by one that does not translate,
    /// and for a prompt that is no text; `Config` for temperatures and thresholds that are no such numbers,
    /// and for a sample rate that cannot be brought to the model's.
    pub fn transcribe(&self, sound: Sound, options: &SpeechOptions) -> Result<Segments<'_>> {
        let before = self.before(options)?;
        let Sound { samples, .. } = sound.at(self.rate()).map_err(of_audio)?;
        let (options, cancel) = (options.clone(), CancelToken::default());
        let (ready, details) = (VecDeque::new(), None);
        let (windows, incomplete) = (0, 0);
        Ok(Segments {
            of: self,
            samples,
            at: 0,
            ready,
            details,
            before,
            options,
            cancel,
            windows,
            incomplete,
        })
    }

    /// Whether the model can do what is asked, before there is a sound.
    ///
    /// # Errors
    /// `Text`, as of [`transcribe`](Self::transcribe).
    pub fn check(&self, options: &SpeechOptions) -> Result<()> {
        self.before(options).map(drop)
    }

    /// What the first window knows.
    fn before(&self, options: &SpeechOptions) -> Result<Before> {
        match &self.hearing {
            Hearing::Whisper(whisper) => whisper.check(&self.model, options),
            Hearing::Samples(samples) => samples.check(options).map(|()| Before::default()),
        }
    }

    /// Samples of a second, as the model reads them; sounds of other rates are brought to it.
    pub fn rate(&self) -> u32 {
        match &self.hearing {
            Hearing::Whisper(whisper) => whisper.rate(),
            Hearing::Samples(samples) => samples.rate(),
        }
    }
}

/// The segments of a sound as they are heard.
///
/// [`Transcriber::transcribe`] gives it.
#[derive(Debug)]
pub struct Segments<'m> {
    of: &'m Transcriber,
    samples: Vec<f32>,
    /// First sample that was not heard.
    at: usize,
    ready: VecDeque<(Segment, SegmentDetails)>,
    /// Of the segment that was given last.
    details: Option<SegmentDetails>,
    before: Before,
    options: SpeechOptions,
    cancel: CancelToken,
    windows: usize,
    incomplete: usize,
}

impl Segments<'_> {
    /// The same segments, which end with a `Request` error within a step once `cancel` says so.
    pub fn cancelled_by(mut self, cancel: &CancelToken) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// The language that was asked for or heard, as the model's tokens spell it; none before the first window
    /// was heard, and of models that know one alone.
    pub fn language(&self) -> Option<String> {
        let name = self.of.model.tokenizer().decode(&[self.before.language?], false).ok()?;
        Some(name.trim_start_matches("<|").trim_end_matches("|>").to_string())
    }

    /// What else is known of the segment that came last; none before the first.
    pub fn details(&self) -> Option<&SegmentDetails> {
        self.details.as_ref()
    }

    /// Windows that the model has read so far; silence is passed over.
    pub fn windows(&self) -> usize {
        self.windows
    }

    /// Windows so far of which something is missing: their texts came to the most tokens that they may have,
    /// and would have gone on. Each is warned of as well.
    pub fn incomplete(&self) -> usize {
        self.incomplete
    }

    /// Seconds of the sound, and how many of them have been heard.
    pub fn progress(&self) -> [f64; 2] {
        let rate = f64::from(self.of.rate());
        [self.samples.len() as f64 / rate, self.at.min(self.samples.len()) as f64 / rate]
    }

    /// Hears the next window.
    fn window(&mut self) -> Result<()> {
        let rate = f64::from(self.of.rate());
        let (offset, end) = (self.at as f64 / rate, self.samples.len() as f64 / rate);
        let calls = Calls { model: &self.of.model, caller: &self.options.caller, cancel: &self.cancel };
        let Heard { samples: heard, segments, complete, read, scores } = match &self.of.hearing {
            Hearing::Whisper(whisper) => {
                whisper.hear(calls, &self.samples, self.at, &self.options, &mut self.before)?
            }
            Hearing::Samples(own) => own.hear(calls, &self.samples[self.at..], &self.options)?,
        };
        self.windows += usize::from(read);
        if !complete {
            self.incomplete += 1;
            tracing::warn!(
                "the text of the window at {offset:.2} s has the most tokens that it may have, and would have gone on: \
                 what was said behind it is missing"
            );
        }
        let Scores { temperature, avg_logprob, no_speech_prob, compression_ratio } = scores;
        for Timed { times: [from, to], text, tokens } in segments {
            if text.trim().is_empty() {
                continue;
            }
            let segment = Segment { start: (offset + from).min(end), end: (offset + to).min(end), text };
            let seek = (offset * 100.0).round() as u64;
            let details =
                SegmentDetails { seek, tokens, temperature, avg_logprob, compression_ratio, no_speech_prob };
            self.ready.push_back((segment, details));
        }
        self.at += heard;
        Ok(())
    }
}

impl Iterator for Segments<'_> {
    type Item = Result<Segment>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && self.at < self.samples.len() {
            if let Err(error) = self.window() {
                self.at = self.samples.len();
                return Some(Err(error));
            }
        }
        let (segment, details) = self.ready.pop_front()?;
        self.details = Some(details);
        Some(Ok(segment))
    }
}
