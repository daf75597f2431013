//! Whisper: windows of log-mel energies, and a vocabulary with words for languages, tasks and times.
//!
//! What a window is asked, and what is taken of it, is as in the reference (`openai-whisper`, `transcribe.py`
//! and `decoding.py`): the text before as a prompt, a text sampled anew at a higher temperature where it
//! repeats itself or is not believed, and windows passed over that are likely without speech. At every
//! temperature one text is sampled; there is no search by beams.

use super::heard::{Asked, Calls, Heard, Scores, Timed, Written, compression_ratio, is_silent};
use super::languages::{Defaults, code, language};
use super::options::{Decoding, SpeechOptions, Task};
use super::words::Words;
use crate::{EncoderInput, ForwardWant, Pick, SamplingParams, TextGenerator};
use engraft_audio::{LogMel, TimedTokens, segments};
use engraft_core::config::EngineConfig;
use engraft_core::{Error, Result};
use serde_json::Value;
use std::sync::Arc;

/// Above this temperature a text is no beginning of the next one.
const WARM: f32 = 0.5;

/// How such a model hears.
#[derive(Debug)]
pub(super) struct Whisper {
    mel: LogMel,
    words: Words,
    /// Positions of the decoder.
    positions: usize,
    /// What the model's files say of language and task.
    defaults: Defaults,
}

/// What a window knows of those before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Before {
    /// The token of the language that was asked for or heard.
    pub language: Option<u32>,
    /// Text, with its timestamps.
    pub tokens: Vec<u32>,
    /// Windows that were read.
    pub windows: usize,
    /// The loudest energy of the whole sound, once a window has asked for it.
    pub peak: Option<f64>,
}

/// A text of a window.
struct Sampled {
    written: Written,
    temperature: f32,
    /// Mean log-probability of its tokens.
    logprob: f64,
    /// Where a threshold or the scores need it.
    compression: Option<f64>,
}

/// A window that is asked for.
struct Window<'a> {
    calls: Calls<'a>,
    options: &'a SpeechOptions,
    features: Arc<[f32]>,
    /// What stands in front of the first word.
    prompt: Vec<u32>,
    /// The first word and what is behind it.
    begins: Vec<u32>,
    windows: usize,
}

impl Whisper {
    /// For a model whose encoder makes so many rows of a window.
    pub fn new(model: &TextGenerator, mel: LogMel, rows: usize) -> Result<Self> {
        let window = mel.config().chunk_length as f64;
        let page = EngineConfig::default().page_size;
        let context = model.info().max_context.saturating_sub(rows.next_multiple_of(page));
        let said = model.speech.positions.as_ref().and_then(Value::as_u64).unwrap_or(u64::MAX);
        let positions = usize::try_from(said).unwrap_or(usize::MAX).min(context);
        let words = Words::of(model, window, rows as f64)?;
        let (defaults, unknown) = Defaults::of(model, &words);
        for what in unknown {
            tracing::warn!("generation_config.json, not honoured: {what}");
        }
        Ok(Self { words, mel, positions, defaults })
    }

    /// Samples of a second.
    pub fn rate(&self) -> u32 {
        self.mel.config().sampling_rate as u32
    }

    /// Refuses what the model does not know; what the first window knows.
    pub fn check(&self, model: &TextGenerator, options: &SpeechOptions) -> Result<Before> {
        options.decoding.check()?;
        let named = options.language.as_deref().map(|name| self.language(model, name)).transpose()?;
        let language = named.flatten().or(self.defaults.language);
        if !self.words.multilingual && self.task(options) == Task::Translate {
            return Err(Error::text("the model knows English alone: it translates nothing"));
        }
        let tokens = self.prompt(model, &options.decoding.prompt)?;
        Ok(Before { language, tokens, windows: 0, peak: None })
    }

    /// The tokens of a prompt.
    fn prompt(&self, model: &TextGenerator, prompt: &str) -> Result<Vec<u32>> {
        if prompt.trim().is_empty() {
            return Ok(Vec::new());
        }
        if self.words.previous.is_none() {
            return Err(Error::text("the model's vocabulary has no <|startofprev|>: it takes no prompt"));
        }
        let tokens = model.tokenizer().encode(&format!(" {}", prompt.trim()), false)?;
        match tokens.iter().find(|id| **id >= self.words.end) {
            None => Ok(tokens),
            Some(id) => {
                let name = model.tokenizer().decode(&[*id], false)?;
                Err(Error::text(format!("the prompt has {name}, which is no text")))
            }
        }
    }

    /// The token of a language; a model of English alone may have none.
    fn language(&self, model: &TextGenerator, name: &str) -> Result<Option<u32>> {
        match (language(model, &self.words, name), self.words.multilingual) {
            (Some(id), true) => Ok(Some(id)),
            (id, false) if code(name) == "en" => Ok(id),
            (id, false) if id.is_some() || self.words.languages().is_empty() => {
                Err(Error::text(format!("the language is \"{name}\"; the model knows English alone")))
            }
            (None, _) | (Some(_), false) => {
                Err(Error::text(format!("the language \"{name}\" is not in the model's vocabulary")))
            }
        }
    }

    /// What the model makes of the speech.
    fn task(&self, options: &SpeechOptions) -> Task {
        options.task.unwrap_or(self.defaults.task)
    }

    /// The loudest energy of a sound: all of its windows have one floor, as in the reference, which fills a
    /// sound of more than a window up with one of silence.
    fn peak(&self, calls: Calls<'_>, sound: &[f32]) -> Result<f64> {
        let length = self.mel.config().samples();
        let samples = if sound.len() <= length { length } else { sound.len() + length };
        let (all, step) = (samples / self.mel.config().hop_length, self.mel.config().frames().max(1));
        let mut peak = f64::NEG_INFINITY;
        for frame in (0..all).step_by(step) {
            calls.check()?;
            peak = peak.max(self.mel.peak(sound, samples, frame..frame + step));
        }
        Ok(peak)
    }

    /// Hears the window that begins at a sample of a sound; a language is heard where there is none.
    pub fn hear(
        &self,
        calls: Calls<'_>,
        sound: &[f32],
        at: usize,
        options: &SpeechOptions,
        before: &mut Before,
    ) -> Result<Heard> {
        let length = self.mel.config().samples();
        let here = &sound[at..sound.len().min(at + length)];
        if is_silent(here) {
            return Ok(Heard::nothing(length));
        }
        let peak = match before.peak {
            Some(peak) => peak,
            None => *before.peak.insert(self.peak(calls, sound)?),
        };
        let features: Arc<[f32]> = self.mel.features_below(here, length, peak).into();
        let window = self.window(calls, features, options, before)?;
        before.windows += 1;
        let Some((written, scores)) = self.text(&window)? else {
            return Ok(Heard { read: true, ..Heard::nothing(length) });
        };
        let Written { tokens, complete, .. } = written;
        let (found, heard) = self.segments(tokens, options.timestamps, length);
        let mut timed = Vec::with_capacity(found.len());
        for TimedTokens { times, tokens, with_times } in found {
            let text = calls.model.tokenizer().decode(&tokens, true)?;
            if !text.trim().is_empty() && times[0] != times[1] {
                before.tokens.extend(&with_times);
            }
            timed.push(Timed { times, text, tokens: with_times });
        }
        if !options.decoding.previous || scores.temperature > WARM {
            before.tokens.clear();
        }
        // By timestamps, the next window begins where the last whole segment ended.
        let complete = complete || options.timestamps && heard < here.len();
        Ok(Heard { samples: heard, segments: timed, complete, read: true, scores })
    }

    /// What a window is asked.
    fn window<'a>(
        &self,
        calls: Calls<'a>,
        features: Arc<[f32]>,
        options: &'a SpeechOptions,
        before: &mut Before,
    ) -> Result<Window<'a>> {
        let words = &self.words;
        let mut begins = vec![words.start];
        if words.multilingual {
            let language = match before.language {
                Some(language) => language,
                None => *before.language.insert(self.likeliest_language(calls, &features)?),
            };
            let task = match self.task(options) {
                Task::Translate => words.translate,
                Task::Transcribe => words.transcribe,
            };
            begins.extend([language, task]);
        }
        if !options.timestamps {
            begins.push(words.no_timestamps);
        }
        let mut prompt = Vec::new();
        if let Some(previous) = words.previous.filter(|_| !before.tokens.is_empty()) {
            let most = (self.positions / 2).saturating_sub(1);
            prompt.push(previous);
            prompt.extend(&before.tokens[before.tokens.len().saturating_sub(most)..]);
        }
        Ok(Window { calls, options, features, prompt, begins, windows: before.windows })
    }

    /// The first text that is within the thresholds, or the last one; none where there is likely no speech.
    fn text(&self, window: &Window<'_>) -> Result<Option<(Written, Scores)>> {
        let Decoding { temperatures, compression_ratio, logprob, no_speech, .. } = &window.options.decoding;
        let scores = window.options.scores;
        let mut silence = if scores { Some(self.no_speech(window)?) } else { None };
        // Else asked for where it counts alone: of texts that are not believed.
        let mut is_silence = |sampled: &Sampled| -> Result<bool> {
            let Some(most) = no_speech else { return Ok(false) };
            if logprob.is_some_and(|least| sampled.logprob > least) {
                return Ok(false);
            }
            let probability = match silence {
                Some(known) => known,
                None => *silence.insert(self.no_speech(window)?),
            };
            Ok(probability > *most)
        };
        let mut last = None;
        for (attempt, temperature) in temperatures.iter().copied().enumerate() {
            let sampled = self.sample(window, attempt, temperature)?;
            let unlikely = logprob.is_some_and(|least| sampled.logprob < least);
            let repeats = compression_ratio.zip(sampled.compression).is_some_and(|(most, got)| got > most);
            // What is likely no speech needs no other text.
            let again = (unlikely || repeats) && !(unlikely && is_silence(&sampled)?);
            last = Some(sampled);
            if !again {
                break;
            }
        }
        let Some(sampled) = last else { return Ok(None) };
        if is_silence(&sampled)? {
            return Ok(None);
        }
        let Sampled { written, temperature, logprob, compression } = sampled;
        let known = Scores {
            temperature,
            avg_logprob: scores.then_some(logprob),
            no_speech_prob: silence.filter(|_| scores),
            compression_ratio: compression.filter(|_| scores),
        };
        Ok(Some((written, known)))
    }

    fn sample(&self, window: &Window<'_>, attempt: usize, temperature: f32) -> Result<Sampled> {
        let Window { options, features, prompt, begins, windows, .. } = window;
        let attempts = options.decoding.temperatures.len();
        let seed = Some(options.decoding.seed);
        let asked = Asked {
            features: features.clone(),
            decoder_prompt: prompt.iter().chain(begins).copied().collect(),
            // As the reference has it, whatever the prompt leaves.
            max_new_tokens: (self.positions / 2).max(1),
            rules: Some(self.words.rules[usize::from(!options.timestamps)].clone()),
            logprobs: true,
            sampling: SamplingParams { temperature, seed, ..SamplingParams::default() },
            // A window's random numbers are its own, and so are those of a temperature.
            subsequence: (windows * attempts + attempt) as u32,
        };
        let written = window.calls.tokens(asked)?;
        let logprob = written.avg_logprob();
        let measured = options.scores || options.decoding.compression_ratio.is_some();
        let compression = match measured {
            true => Some(self.compression(window.calls.model, &written.tokens)?),
            false => None,
        };
        Ok(Sampled { written, temperature, logprob, compression })
    }

    /// How many bytes of text a byte of it compressed stands for.
    fn compression(&self, model: &TextGenerator, tokens: &[u32]) -> Result<f64> {
        let text: Vec<u32> =
            tokens.iter().copied().filter(|id| self.words.times.seconds(*id).is_none()).collect();
        Ok(compression_ratio(model.tokenizer().decode(&text, true)?.trim()))
    }

    /// The segments of a text, and up to which sample it was heard.
    fn segments(&self, tokens: Vec<u32>, timestamps: bool, length: usize) -> (Vec<TimedTokens>, usize) {
        let times = &self.words.times;
        if timestamps {
            let (found, heard) = segments(&tokens, times);
            return (found, (heard * f64::from(self.rate())).round() as usize);
        }
        // Those that came all the same are no text.
        let text: Vec<u32> = tokens.into_iter().filter(|id| times.seconds(*id).is_none()).collect();
        let with_times = text.clone();
        (vec![TimedTokens { times: [0.0, times.window], tokens: text, with_times }], length)
    }

    /// The probability that there is no speech in a window.
    fn no_speech(&self, window: &Window<'_>) -> Result<f64> {
        let Window { calls, features, prompt, .. } = window;
        let own = if prompt.is_empty() { None } else { Some(&self.words.start) };
        let logits = first_logits(*calls, features, prompt.iter().chain(own).copied().collect())?;
        Ok(probability(&logits, self.words.no_speech))
    }

    /// The language that is likeliest at the beginning of a window.
    fn likeliest_language(&self, calls: Calls<'_>, features: &Arc<[f32]>) -> Result<u32> {
        let logits = first_logits(calls, features, Vec::new())?;
        let likeliest = self.words.languages().max_by(|a, b| {
            let of = |id: &u32| logits.get(*id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            of(a).total_cmp(&of(b))
        });
        likeliest.ok_or_else(|| Error::text("the model's vocabulary has no languages"))
    }
}

/// The logits behind a decoder's first word, and behind this in its place.
fn first_logits(calls: Calls<'_>, features: &Arc<[f32]>, decoder: Vec<u32>) -> Result<Vec<f32>> {
    let input = EncoderInput { features: features.clone(), decoder, ..EncoderInput::default() };
    let want = ForwardWant { logits: Pick::Last, ..ForwardWant::default() };
    Ok(calls.handle().forward([input], want)?.pop().map(|one| one.logits).unwrap_or_default())
}

/// The probability of a token by its row of logits.
fn probability(logits: &[f32], token: u32) -> f64 {
    f64::from(engraft_core::sample::log_probability(logits, token)).exp()
}
