//! Speech to text by models like Whisper: windows of a sound, segments with their times.
//!
//! A window is as long as the model hears at once. What it says of one ends in timestamps, and the next
//! begins where the last whole segment ended; without timestamps windows stand side by side. Windows in which
//! nothing is louder than 1e-4 are passed over. Tokens are the likeliest ones: no rule keeps a model from
//! timestamps that make no sense, which end their window.

use crate::{EncoderInput, Event, ForwardWant, Pick, Request, SamplingParams, TextGenerator};
use engraft_audio::{Extractor, LogMel, Segment, Sound, TimedTokens, Timestamps, segments};
use engraft_core::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Loudness below which a window is silent.
const SILENCE: f32 = 1e-4;

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
    language: Option<String>,
    task: Task,
    timestamps: bool,
}

impl Default for SpeechOptions {
    fn default() -> Self {
        Self { language: None, task: Task::Transcribe, timestamps: true }
    }
}

impl SpeechOptions {
    /// The language is heard in the first window, segments have their times.
    pub fn new() -> Self {
        Self::default()
    }

    /// The language that is spoken, as the model's tokens spell it: `en`, `de`, ...
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.language = Some(language.into());
        self
    }

    /// What the model makes of the speech.
    pub fn task(mut self, task: Task) -> Self {
        self.task = task;
        self
    }

    /// Whether segments are found by the model's timestamps; else each window is one.
    pub fn timestamps(mut self, on: bool) -> Self {
        self.timestamps = on;
        self
    }
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
    model: TextGenerator,
    mel: LogMel,
    words: Words,
}

impl Transcriber {
    /// Takes a model whose folder has Whisper's `preprocessor_config.json` and vocabulary.
    ///
    /// # Errors
    /// `Architecture` for a model that reads no sound; `Config` for another feature extractor; `Text` for a
    /// vocabulary without the words that say what is to be done.
    pub fn new(model: TextGenerator) -> Result<Self> {
        let no = |reason: &str| Error::Architecture {
            op: "transcribe".into(),
            arch: model.info().arch.clone(),
            reason: reason.into(),
        };
        let Some(positions) = model.speech.positions.filter(|_| model.info().encoder_layers > 0) else {
            return Err(no("the model reads no sound; Whisper does"));
        };
        let Some(extractor) = &model.speech.extractor else {
            return Err(no(
                "no preprocessor_config.json lies next to the model, which says how sound is read",
            ));
        };
        let mel = match Extractor::from_json(&extractor.to_string()).map_err(of_audio)? {
            Extractor::LogMel(mel) => mel,
            _ => return Err(no("its preprocessor_config.json is not Whisper's")),
        };
        let window = mel.config().chunk_length as f64;
        let words = Words::of(&model, window, positions as f64)?;
        Ok(Self { model, mel, words })
    }

    /// The model.
    pub fn model(&self) -> &TextGenerator {
        &self.model
    }

    /// The segments of a sound, one after the other; each window is heard when its first segment is asked
    /// for.
    ///
    /// # Errors
    /// `Text` for a language that the vocabulary does not have, and for a language or a translation of a
    /// model that knows English alone; `Config` for a sample rate that cannot be brought to the model's.
    pub fn transcribe(&self, sound: Sound, options: &SpeechOptions) -> Result<Segments<'_>> {
        let language = options.language.as_deref().map(|name| self.language(name)).transpose()?;
        if !self.words.multilingual && options.task == Task::Translate {
            return Err(Error::text("the model knows English alone: it translates nothing"));
        }
        let rate = self.mel.config().sampling_rate as u32;
        let Sound { samples, .. } = sound.at(rate).map_err(of_audio)?;
        let (ready, options) = (VecDeque::new(), options.clone());
        Ok(Segments { of: self, samples, at: 0, ready, language, options })
    }

    /// The token of a language.
    fn language(&self, name: &str) -> Result<u32> {
        let known = self.model.tokenizer().token_id(&format!("<|{name}|>"));
        match known.filter(|id| self.words.languages().contains(id)) {
            Some(id) if self.words.multilingual || name == "en" => Ok(id),
            Some(_) => Err(Error::text(format!("the language is \"{name}\"; the model knows English alone"))),
            None => Err(Error::text(format!("the language \"{name}\" is not in the model's vocabulary"))),
        }
    }

    /// The language that is likeliest at the beginning of a window.
    fn heard(&self, features: &Arc<[f32]>) -> Result<u32> {
        let input = EncoderInput { features: features.clone(), ..EncoderInput::default() };
        let want = ForwardWant { logits: Pick::Last, ..ForwardWant::default() };
        let all = self.model.handle().forward([input], want)?;
        let logits = all.first().map(|one| one.logits.as_slice()).unwrap_or_default();
        let likeliest = self.words.languages().max_by(|a, b| {
            let of = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            of(a).total_cmp(&of(b))
        });
        likeliest.ok_or_else(|| Error::text("the model's vocabulary has no languages"))
    }

    /// The tokens of a window, those that end it left out.
    fn tokens(&self, features: Arc<[f32]>, decoder_prompt: Vec<u32>) -> Result<Vec<u32>> {
        let stop_ids = self.model.stop_ids().to_vec();
        let sampling = SamplingParams::default();
        let (max_new_tokens, ends) = (usize::MAX, stop_ids.clone());
        let request =
            Request { features, decoder_prompt, max_new_tokens, sampling, stop_ids, ..Request::default() };
        let mut tokens = Vec::new();
        for event in self.model.handle().submit(request)? {
            if let Event::Token(id) = event? {
                tokens.push(id);
            }
        }
        tokens.retain(|id| !ends.contains(id));
        Ok(tokens)
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

/// The segments of a sound as they are heard.
///
/// [`Transcriber::transcribe`] gives it.
#[derive(Debug)]
pub struct Segments<'m> {
    of: &'m Transcriber,
    samples: Vec<f32>,
    /// First sample that was not heard.
    at: usize,
    ready: VecDeque<Segment>,
    language: Option<u32>,
    options: SpeechOptions,
}

impl Segments<'_> {
    /// The language that was asked for or heard, as the model's tokens spell it; none before the first window
    /// was heard, and of models that know one alone.
    pub fn language(&self) -> Option<String> {
        let name = self.of.model.tokenizer().decode(&[self.language?], false).ok()?;
        Some(name.trim_start_matches("<|").trim_end_matches("|>").to_string())
    }

    /// Seconds of the sound, and how many of them have been heard.
    pub fn progress(&self) -> [f64; 2] {
        let rate = self.of.mel.config().sampling_rate as f64;
        [self.samples.len() as f64 / rate, self.at.min(self.samples.len()) as f64 / rate]
    }

    /// Hears the next window.
    fn window(&mut self) -> Result<()> {
        let (config, words) = (self.of.mel.config(), &self.of.words);
        let (rate, length) = (config.sampling_rate as f64, config.samples());
        let start = self.at;
        let end = (start + length).min(self.samples.len());
        let here = &self.samples[start..end];
        self.at = start + length;
        if here.iter().all(|x| x.abs() <= SILENCE) {
            return Ok(());
        }
        let features: Arc<[f32]> = self.of.mel.features(here, length).into();
        let mut prompt = Vec::new();
        if words.multilingual {
            let language = match self.language {
                Some(language) => language,
                None => *self.language.insert(self.of.heard(&features)?),
            };
            let task = if self.options.task == Task::Translate { words.translate } else { words.transcribe };
            prompt.extend([language, task]);
        }
        if !self.options.timestamps {
            prompt.push(words.no_timestamps);
        }
        let tokens = self.of.tokens(features, prompt)?;
        let found = match self.options.timestamps {
            true => {
                let (found, heard) = segments(&tokens, &words.times);
                self.at = start + (heard * rate).round() as usize;
                found
            }
            // Those that came all the same are no text.
            false => {
                let text = tokens.into_iter().filter(|id| words.times.seconds(*id).is_none());
                vec![TimedTokens { times: [0.0, words.times.window], tokens: text.collect() }]
            }
        };
        let (offset, last) = (start as f64 / rate, (end - start) as f64 / rate);
        for TimedTokens { times: [from, to], tokens } in found {
            let text = self.of.model.tokenizer().decode(&tokens, true)?;
            if !text.trim().is_empty() {
                self.ready.push_back(Segment {
                    start: offset + from.min(last),
                    end: offset + to.min(last),
                    text,
                });
            }
        }
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
        self.ready.pop_front().map(Ok)
    }
}

/// What is wrong with a sound or a feature extractor, in the words of this crate.
fn of_audio(error: engraft_audio::Error) -> Error {
    match error {
        engraft_audio::Error::Config { field, got, allowed } => Error::config(field, got, allowed),
        engraft_audio::Error::Limit { what, got, allowed } => Error::config(what, got, allowed),
        other => Error::text(other.to_string()),
    }
}
