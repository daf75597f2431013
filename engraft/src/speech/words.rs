//! Tokens of Whisper's vocabulary that say what is to be done.

use crate::TextGenerator;
use engraft_audio::Timestamps;
use engraft_core::sample::{Rules, TimeRules};
use engraft_core::{Error, Result};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// Seconds behind a window's beginning that its first timestamp may say, where a model's files say nothing.
const MAX_INITIAL: f64 = 1.0;
/// Names of the token whose probability behind the first word is that of no speech, old and new.
const NO_SPEECH: [&str; 2] = ["<|nospeech|>", "<|nocaptions|>"];

/// Tokens of a vocabulary that say what is to be done.
#[derive(Debug)]
pub(super) struct Words {
    /// The first word of a text.
    pub start: u32,
    /// What a prompt begins with; unknown to old vocabularies.
    pub previous: Option<u32>,
    pub transcribe: u32,
    pub translate: u32,
    pub no_timestamps: u32,
    pub no_speech: u32,
    /// Ends a text; everything below it is text.
    pub end: u32,
    pub times: Timestamps,
    /// Whether a text says its language and task. What a model's files do not say, its vocabulary does.
    pub multilingual: bool,
    /// Rules of texts with timestamps, and of those without.
    pub rules: [Arc<Rules>; 2],
}

impl Words {
    /// Of a model whose window of so many seconds has so many positions.
    ///
    /// # Errors
    /// `Text` for a vocabulary that lacks them; `Config` for lists of suppressed tokens that are none.
    pub fn of(model: &TextGenerator, window: f64, positions: f64) -> Result<Self> {
        let tokenizer = model.tokenizer();
        let id = |name: &str| {
            let missing =
                || Error::text(format!("the model's vocabulary has no {name}: it is not Whisper's"));
            tokenizer.token_id(name).ok_or_else(missing)
        };
        let no_timestamps = id("<|notimestamps|>")?;
        let first = tokenizer.token_id("<|0.00|>").unwrap_or(no_timestamps + 1);
        let no_speech = NO_SPEECH.iter().find_map(|name| tokenizer.token_id(name));
        let mut words = Self {
            start: id("<|startoftranscript|>")?,
            previous: tokenizer.token_id("<|startofprev|>"),
            transcribe: id("<|transcribe|>")?,
            translate: id("<|translate|>")?,
            no_timestamps,
            no_speech: no_speech.unwrap_or(no_timestamps.saturating_sub(1)),
            end: id("<|endoftext|>")?,
            times: Timestamps { first, step: window / positions, window },
            multilingual: true,
            rules: Default::default(),
        };
        words.multilingual = model.speech.multilingual.unwrap_or(!words.languages().is_empty());
        words.rules = words.rules(model)?.map(Arc::new);
        Ok(words)
    }

    fn rules(&self, model: &TextGenerator) -> Result<[Rules; 2]> {
        let [suppress, begin_suppress] = &model.speech.suppress;
        let vocab = model.info().vocab;
        // Where the files have no list: the words that say what is to be done, as the reference has it.
        let own = || {
            let more = self.previous.into_iter().chain(model.tokenizer().token_id("<|startoflm|>"));
            let all = [self.start, self.transcribe, self.translate, self.no_speech].into_iter().chain(more);
            all.collect()
        };
        let suppress = list("suppress_tokens", suppress.as_ref(), vocab)?.unwrap_or_else(own);
        let begin = list("begin_suppress_tokens", begin_suppress.as_ref(), vocab)?.unwrap_or_default();
        let plain = Rules { suppress, begin_suppress: begin, ..Rules::default() };
        let max_initial = match &model.speech.max_initial {
            None => Some((MAX_INITIAL / self.times.step).round() as u32),
            Some(Value::Null) => None,
            Some(said) => Some(number(said).ok_or_else(|| {
                Error::config("max_initial_timestamp_index", said, "a whole number, or null")
            })?),
        };
        let (first, none, end) = (self.times.first, self.no_timestamps, self.end);
        let times = TimeRules { first, none, end, max_initial };
        // Whoever knows no timestamps writes none.
        let times = ((first as usize) < vocab).then_some(times);
        Ok([Rules { times, ..plain.clone() }, plain])
    }

    /// They stand between the first word and those of the tasks.
    pub fn languages(&self) -> Range<u32> {
        self.start + 1..self.transcribe.min(self.translate)
    }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A list of tokens; none where the file has none.
fn list(field: &str, value: Option<&Value>, vocab: usize) -> Result<Option<Vec<u32>>> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let no = |got: &Value| Error::config(field, got, format!("a list of tokens below {vocab}"));
    let token = |got: &Value| number(got).filter(|id| (*id as usize) < vocab).ok_or_else(|| no(got));
    value.as_array().ok_or_else(|| no(value))?.iter().map(token).collect::<Result<_>>().map(Some)
}
