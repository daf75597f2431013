//! Models that read samples: Moonshine, whose decoder writes text, and encoders that label every row with a
//! character (CTC: Graves and others, ICML 2006).
//!
//! They know no windows of their own and no times. A long sound is split where it is quietest, and a window
//! is a segment.

use super::heard::{Asked, Calls, Heard, Scores, Timed, compression_ratio, is_silent, of_audio};
use super::options::{Decoding, SpeechOptions, Task};
use crate::{EncoderInput, Layers, TextGenerator};
use engraft_audio::Waveform;
use engraft_core::config::EngineConfig;
use engraft_core::policy::StemSpec;
use engraft_core::{Error, Result};
use std::sync::Arc;

/// Tokens that a second of speech has at most: a decoder that repeats itself ends there.
const TOKENS_PER_SECOND: f64 = 6.5;
/// Rows of an encoder in a hundred positions of the context: those of a second are 42, and tokens 6.5.
const ROWS_OF_HUNDRED: usize = 85;
/// A window ends in the last part of the longest, where this many seconds are quietest.
const QUIET_SECONDS: f64 = 0.1;
const LAST_PART: f64 = 0.2;

/// How such a model hears.
#[derive(Debug)]
pub(super) struct Samples {
    waveform: Waveform,
    /// Fewest samples that are heard, and most.
    samples: [usize; 2],
    /// Of an encoder alone: the label that stands for no character.
    blank: Option<u32>,
}

impl Samples {
    /// For a model whose encoder begins with `stem`; `blank` is its padding token.
    ///
    /// # Errors
    /// `Architecture` for an encoder without labels; `Config` for a feature extractor without a rate, and for
    /// no padding token among the labels where they need one.
    pub fn new(
        model: &TextGenerator,
        waveform: Waveform,
        stem: StemSpec,
        blank: Option<u32>,
    ) -> Result<Self> {
        if waveform.sampling_rate == 0 {
            return Err(Error::config("sampling_rate", 0, "at least 1"));
        }
        let labels = model.info().encoder_layers == 0;
        if labels && !model.handle().head().is_per_token() {
            return Err(Error::Architecture {
                op: "transcribe".into(),
                arch: model.info().arch.clone(),
                reason: "the model has no labels of characters (expected ...ForCTC)".into(),
            });
        }
        let blank = match (labels, blank) {
            (true, None) => {
                return Err(Error::config(
                    "pad_token_id",
                    "missing",
                    "the label that stands for no character",
                ));
            }
            (true, Some(blank)) if blank as usize >= model.info().vocab => {
                let allowed = format!("a label below {}", model.info().vocab);
                return Err(Error::config("pad_token_id", blank, allowed));
            }
            (true, blank) => blank,
            (false, _) => None,
        };
        // What a decoder writes stands in the same context, behind whole pages.
        let context = model.info().max_context;
        let page = EngineConfig::default().page_size;
        let rows = context * ROWS_OF_HUNDRED / 100 / page * page;
        let most = if labels { stem.frames } else { stem.frames_for(rows.max(1)).min(stem.frames) };
        Ok(Self { waveform, samples: [stem.least(), most], blank })
    }

    /// Samples of a second.
    pub fn rate(&self) -> u32 {
        self.waveform.sampling_rate
    }

    /// Refuses what the model does not know.
    ///
    /// # Errors
    /// `Text`.
    pub fn check(&self, options: &SpeechOptions) -> Result<()> {
        if options.decoding != Decoding::default() {
            let what =
                "a prompt, temperatures and thresholds are Whisper's; the model takes the likeliest tokens";
            return Err(Error::text(what));
        }
        match (&options.language, options.task) {
            (Some(name), _) => {
                Err(Error::text(format!("the language is \"{name}\"; the model has no choice of languages")))
            }
            (None, Some(Task::Translate)) => Err(Error::text("the model translates nothing")),
            (None, Some(Task::Transcribe) | None) => Ok(()),
        }
    }

    /// Hears the window that begins with these samples.
    pub fn hear(&self, calls: Calls<'_>, samples: &[f32], options: &SpeechOptions) -> Result<Heard> {
        let (model, length) = (calls.model, self.window(samples));
        let (here, rate) = (&samples[..length], f64::from(self.rate()));
        // What is too short for a row of the encoder is no speech either.
        if length < self.samples[0] || is_silent(here) {
            return Ok(Heard::nothing(length));
        }
        let seconds = length as f64 / rate;
        let features: Arc<[f32]> = self.waveform.features(here, length).map_err(of_audio)?.into();
        let (tokens, complete, mut scores) = match self.blank {
            None => {
                let most = (TOKENS_PER_SECOND * seconds).ceil() as usize + 1;
                let logprobs = options.scores;
                let asked = Asked { features, max_new_tokens: most, logprobs, ..Asked::default() };
                let written = calls.tokens(asked)?;
                let avg_logprob = logprobs.then(|| written.avg_logprob());
                (written.tokens, written.complete, Scores { avg_logprob, ..Scores::default() })
            }
            Some(blank) => {
                let sound = EncoderInput { features, ..EncoderInput::default() };
                let all = calls.handle().encode([sound], Layers::None)?;
                let logits = all.first().map(|one| one.logits.as_slice()).unwrap_or_default();
                let labels = model.info().vocab.max(1);
                (characters(logits.chunks(labels), blank), true, Scores::default())
            }
        };
        let mut text = model.tokenizer().decode(&tokens, true)?;
        if self.blank.is_some() {
            text = text.trim().to_string();
        }
        scores.compression_ratio = options.scores.then(|| compression_ratio(text.trim()));
        let segments = vec![Timed { times: [0.0, seconds], text, tokens }];
        Ok(Heard { samples: length, segments, read: true, complete, scores })
    }

    /// Samples of the window: all, or up to where it is quietest in the last part of the longest.
    fn window(&self, samples: &[f32]) -> usize {
        let longest = self.samples[1];
        if samples.len() <= longest {
            return samples.len();
        }
        let quiet = ((QUIET_SECONDS * f64::from(self.rate())) as usize).clamp(1, longest);
        let first = longest - ((LAST_PART * longest as f64) as usize).max(quiet).min(longest);
        let energy = |at: usize| samples[at..at + quiet].iter().map(|x| f64::from(x * x)).sum::<f64>();
        let places = (first..=longest - quiet).step_by((quiet / 4).max(1));
        let quietest = places.min_by(|a, b| energy(*a).total_cmp(&energy(*b)));
        quietest.map_or(longest, |at| at + quiet / 2).max(1)
    }
}

/// The likeliest label of every row, those that repeat the one before left out, and the blank.
fn characters<'l>(rows: impl Iterator<Item = &'l [f32]>, blank: u32) -> Vec<u32> {
    let (mut all, mut before) = (Vec::new(), None);
    for row in rows {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)));
        let best = best.map(|label| label as u32);
        if best != before {
            all.extend(best.filter(|label| *label != blank));
        }
        before = best;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_repeat_are_one_character_unless_a_blank_stands_between() {
        let row = |label: usize| (0..4).map(|i| f32::from(u8::from(i == label))).collect::<Vec<f32>>();
        let rows: Vec<Vec<f32>> = [0, 1, 1, 0, 1, 2, 2, 3, 0, 0, 3].map(row).into();
        assert_eq!(characters(rows.iter().map(Vec::as_slice), 0), [1, 1, 2, 3, 3]);
        assert_eq!(characters([[0.5f32, 0.5].as_slice()].into_iter(), 1), [0], "of equals the first");
    }
}
