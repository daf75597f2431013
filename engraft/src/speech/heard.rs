//! What one window of a sound gives, how the model is asked for it, and what is wrong with a sound.

use crate::wait::waker;
use crate::{Caller, CancelToken, EngineHandle, Event, Finish, Request, SamplingParams, TextGenerator, Want};
use engraft_core::sample::Rules;
use engraft_core::{Error, Result};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Loudness below which a window is silent.
const SILENCE: f32 = 1e-4;

/// Text, and when it was said in seconds of the window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    pub times: [f64; 2],
    pub text: String,
    /// The text's tokens, with the timestamps around it.
    pub tokens: Vec<u32>,
}

/// A window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heard {
    /// Samples up to where the next window begins.
    pub samples: usize,
    pub segments: Vec<Timed>,
    /// Whether all that the model would have written is there.
    pub complete: bool,
    /// Whether the model has read it.
    pub read: bool,
    /// What is known of its text; the temperature alone unless more was asked for.
    pub scores: Scores,
}

/// What is known of the text of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Scores {
    pub temperature: f32,
    pub avg_logprob: Option<f64>,
    pub no_speech_prob: Option<f64>,
    pub compression_ratio: Option<f64>,
}

impl Heard {
    /// A window without speech.
    pub fn nothing(samples: usize) -> Self {
        Self { samples, segments: Vec::new(), complete: true, read: false, scores: Scores::default() }
    }
}

/// How often a wait looks whether it is to go on.
const LOOK: Duration = Duration::from_millis(20);

/// As [`wait`](crate::wait::wait), at the longest until `ended`.
fn wait_unless<T>(ended: impl Fn() -> bool, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(value) => return Some(value),
            Poll::Pending if ended() => return None,
            Poll::Pending => std::thread::park_timeout(LOOK),
        }
    }
}

/// How the model is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls<'s> {
    pub model: &'s TextGenerator,
    pub caller: &'s Caller,
    pub cancel: &'s CancelToken,
}

/// What a decoder is asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub features: Arc<[f32]>,
    pub decoder_prompt: Vec<u32>,
    /// Tokens at most.
    pub max_new_tokens: usize,
    pub rules: Option<Arc<Rules>>,
    /// Whether the log-probabilities of the tokens are asked for.
    pub logprobs: bool,
    pub sampling: SamplingParams,
    pub subsequence: u32,
}

/// What a decoder wrote of a window.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub tokens: Vec<u32>,
    /// Whether it came to its end; else it would have gone on.
    pub complete: bool,
    /// The sum of the log-probabilities of all tokens, where it was asked for.
    pub logprob: f64,
}

impl Written {
    /// The mean log-probability as OpenAI's Whisper has it: over the tokens and the one that ends them,
    /// whether it came or not.
    pub fn avg_logprob(&self) -> f64 {
        self.logprob / (self.tokens.len() + 1) as f64
    }
}

impl Calls<'_> {
    /// A handle for calls that wait for their results.
    pub fn handle(&self) -> EngineHandle {
        self.model.handle().cancelled_by(self.cancel).on_behalf_of(self.caller.clone())
    }

    /// Refuses to go on for a caller that is gone.
    ///
    /// # Errors
    /// `Request`.
    pub fn check(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }

    /// The tokens of a sound, those that end it left out.
    ///
    /// # Errors
    /// `Request` where it was cancelled, and those of the engine.
    pub fn tokens(&self, asked: Asked) -> Result<Written> {
        let want = Want { logprobs: asked.logprobs, ..Want::default() };
        let Asked { features, decoder_prompt, max_new_tokens, rules, sampling, subsequence, .. } = asked;
        let Caller { tenant, priority } = self.caller.clone();
        let stop_ids = self.model.stop_ids().to_vec();
        let ends = stop_ids.clone();
        let request = Request {
            features,
            decoder_prompt,
            max_new_tokens,
            rules,
            sampling,
            subsequence,
            want,
            stop_ids,
            tenant,
            priority,
            ..Request::default()
        };
        let mut written = Written::default();
        let mut events = self.model.handle().submit(request)?;
        loop {
            // A request that waits behind others says nothing.
            let next = wait_unless(|| self.cancel.is_cancelled(), |context| events.poll(context));
            let Some(event) = next.ok_or_else(cancelled)?.transpose()? else { break };
            match event {
                Event::Token(id) => written.tokens.push(id),
                Event::Finished(finish) => written.complete = finish == Finish::Stop,
                Event::Kept(kept) => written.logprob = kept.logprobs.iter().map(|p| f64::from(*p)).sum(),
            }
            self.check()?;
        }
        written.tokens.retain(|id| !ends.contains(id));
        Ok(written)
    }
}

/// Bytes of a text for each that zlib (RFC 1950) needs for it: a text that repeats itself has many.
pub(super) fn compression_ratio(text: &str) -> f64 {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let packed = packed.write_all(text.as_bytes()).and_then(|()| packed.finish()).unwrap_or_default();
    text.len() as f64 / packed.len().max(1) as f64
}

/// Of a caller that is gone.
fn cancelled() -> Error {
    Error::Request { id: 0, what: "the transcription was cancelled".into() }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Python's `len(text) / len(zlib.compress(text))`. Another implementation may need a few bytes more or
    /// fewer, which count in short texts.
    #[test]
    fn what_repeats_itself_compresses_well() {
        assert_eq!(compression_ratio(""), 0.0);
        let plain = "the ferry leaves at eight, and nothing else goes today from the old harbour";
        for (text, bytes, [least, most]) in [
            ("ab", 10.0, [0.6, 1.1]),
            (plain, 71.0, [0.6, 1.1]),
            (&"and so on, ".repeat(40), 24.0, [0.6, 1.1]),
            (&"thank you. ".repeat(30), 24.0, [0.6, 1.1]),
            ("The quick brown fox jumps over the lazy dog", 50.0, [0.6, 1.1]),
        ] {
            let (got, want) = (compression_ratio(text), text.len() as f64 / bytes);
            assert!(got > least * want && got < most * want, "{got} of {text:?}, {want} by zlib");
        }
    }

    #[test]
    fn the_end_of_a_text_counts_among_its_tokens() {
        let written = Written { tokens: vec![5, 6, 7], complete: true, logprob: -6.0 };
        assert_eq!(written.avg_logprob(), -1.5);
        assert_eq!(Written::default().avg_logprob(), 0.0);
    }
}
