//! Whisper: windows of log-mel energies, and a vocabulary with words for languages, tasks and times.

use super::heard::{Calls, Heard, Timed, Written, is_silent};
use super::options::{SpeechOptions, Task};
use crate::{EncoderInput, ForwardWant, Pick, TextGenerator};
use engraft_audio::{LogMel, TimedTokens, Timestamps, segments};
use engraft_core::{Error, Result};
use std::sync::Arc;

/// How such a model hears.
#[derive(Debug)]
pub(super) struct Whisper {
    mel: LogMel,
    words: Words,
}

/// Tokens of a vocabulary that say what is to be done.
#[derive(Debug)]
struct Words {
    first_language: u32,
    transcribe: u32,
    translate: u32,
    no_timestamps: u32,
    times: Timestamps,
    multilingual: bool,
}

impl Whisper {
    /// For a model whose encoder makes so many rows of a window.
    pub fn new(model: &TextGenerator, mel: LogMel, rows: usize) -> Result<Self> {
        let window = mel.config().chunk_length as f64;
        Ok(Self { words: Words::of(model, window, rows as f64)?, mel })
    }

    /// Samples of a second.
    pub fn rate(&self) -> u32 {
        self.mel.config().sampling_rate as u32
    }

    /// Refuses what the model does not know; the token of the language that is asked for.
    pub fn check(&self, model: &TextGenerator, options: &SpeechOptions) -> Result<Option<u32>> {
        let language = options.language.as_deref().map(|name| self.language(model, name)).transpose()?;
        match !self.words.multilingual && options.task == Task::Translate {
            true => Err(Error::text("the model knows English alone: it translates nothing")),
            false => Ok(language),
        }
    }

    /// The token of a language.
    fn language(&self, model: &TextGenerator, name: &str) -> Result<u32> {
        let known = model.tokenizer().token_id(&format!("<|{name}|>"));
        match known.filter(|id| self.words.languages().contains(id)) {
            Some(id) if self.words.multilingual || name == "en" => Ok(id),
            Some(_) => Err(Error::text(format!("the language is \"{name}\"; the model knows English alone"))),
            None => Err(Error::text(format!("the language \"{name}\" is not in the model's vocabulary"))),
        }
    }

    /// Hears the window that begins with these samples; `language` is heard where it is none.
    pub fn hear(
        &self,
        calls: Calls<'_>,
        samples: &[f32],
        options: &SpeechOptions,
        language: &mut Option<u32>,
    ) -> Result<Heard> {
        let (config, words, length) = (self.mel.config(), &self.words, self.mel.config().samples());
        let here = &samples[..length.min(samples.len())];
        if is_silent(here) {
            return Ok(Heard::nothing(length));
        }
        let features: Arc<[f32]> = self.mel.features(here, length).into();
        let mut prompt = Vec::new();
        if words.multilingual {
            let language = match *language {
                Some(language) => language,
                None => *language.insert(self.likeliest_language(calls, &features)?),
            };
            let task = if options.task == Task::Translate { words.translate } else { words.transcribe };
            prompt.extend([language, task]);
        }
        if !options.timestamps {
            prompt.push(words.no_timestamps);
        }
        let Written { tokens, complete } = calls.tokens(features, prompt, usize::MAX)?;
        let (found, heard) = match options.timestamps {
            true => {
                let (found, heard) = segments(&tokens, &words.times);
                (found, (heard * config.sampling_rate as f64).round() as usize)
            }
            // Those that came all the same are no text.
            false => {
                let text = tokens.into_iter().filter(|id| words.times.seconds(*id).is_none());
                (vec![TimedTokens { times: [0.0, words.times.window], tokens: text.collect() }], length)
            }
        };
        let decoded = found.into_iter().map(|TimedTokens { times, tokens }| {
            Ok(Timed { times, text: calls.model.tokenizer().decode(&tokens, true)? })
        });
        // By timestamps, the next window begins where the last whole segment ended.
        let complete = complete || options.timestamps && heard < here.len();
        Ok(Heard { samples: heard, segments: decoded.collect::<Result<_>>()?, complete, read: true })
    }

    /// The language that is likeliest at the beginning of a window.
    fn likeliest_language(&self, calls: Calls<'_>, features: &Arc<[f32]>) -> Result<u32> {
        let input = EncoderInput { features: features.clone(), ..EncoderInput::default() };
        let want = ForwardWant { logits: Pick::Last, ..ForwardWant::default() };
        let all = calls.handle().forward([input], want)?;
        let logits = all.first().map(|one| one.logits.as_slice()).unwrap_or_default();
        let likeliest = self.words.languages().max_by(|a, b| {
            let of = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            of(a).total_cmp(&of(b))
        });
        likeliest.ok_or_else(|| Error::text("the model's vocabulary has no languages"))
    }
}

impl Words {
    fn of(model: &TextGenerator, window: f64, positions: f64) -> Result<Self> {
        let tokenizer = model.tokenizer();
        let id = |name: &str| {
            let missing =
                || Error::text(format!("the model's vocabulary has no {name}: it is not Whisper's"));
            tokenizer.token_id(name).ok_or_else(missing)
        };
        let no_timestamps = id("<|notimestamps|>")?;
        let first = tokenizer.token_id("<|0.00|>").unwrap_or(no_timestamps + 1);
        Ok(Self {
            first_language: id("<|startoftranscript|>")? + 1,
            transcribe: id("<|transcribe|>")?,
            translate: id("<|translate|>")?,
            no_timestamps,
            times: Timestamps { first, step: window / positions, window },
            multilingual: model.speech.multilingual.unwrap_or(true),
        })
    }

    /// They stand between the first word and those of the tasks.
    fn languages(&self) -> std::ops::Range<u32> {
        self.first_language..self.transcribe.min(self.translate)
    }
}
