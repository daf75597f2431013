//! Text as it arrives: tokens through stop ids, the detokenizer and the stop strings.

use crate::handle::{Event, Tokens};
use crate::wait::wait;
use engraft_core::engine::Finish;
use engraft_core::sample::SamplingParams;
use engraft_core::text::{Detokenizer, StopMatcher};
use engraft_core::{Error, Result};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Why a text ended.
///
/// ```
/// use engraft::TextFinish;
///
/// let ended = TextFinish::StopString("\n".into());
/// assert_eq!((ended.name(), ended.to_string()), ("stop", "stop string \"\\n\"".to_string()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextFinish {
    /// The model ended it.
    EndOfText,
    /// This stop string came; it is not part of the text.
    StopString(String),
    /// As many tokens as asked for, or the context is full.
    Length,
}

impl TextFinish {
    /// `stop` or `length`, the words of the OpenAI API.
    pub fn name(&self) -> &'static str {
        match self {
            TextFinish::EndOfText | TextFinish::StopString(_) => "stop",
            TextFinish::Length => "length",
        }
    }
}

impl std::fmt::Display for TextFinish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TextFinish::EndOfText => f.write_str("end of text"),
            TextFinish::StopString(stop) => write!(f, "stop string {stop:?}"),
            TextFinish::Length => f.write_str("length"),
        }
    }
}

/// Counts and times of a text, final once its stream has ended.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// let model = engraft::demo()?;
/// let options = engraft::GenerateOptions::new().max_new_tokens(5);
/// let mut text = model.generate("This package provides", &options)?;
/// text.text()?;
/// let stats = text.stats();
/// println!("{} tokens at {:.0} per second", stats.tokens.len(), stats.decode_rate());
/// # assert!(stats.prompt_tokens > 0 && stats.prompt_rate() > 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens sampled, the end token among them.
    pub tokens: Vec<u32>,
    /// Seconds from the request to the first token.
    pub prompt_seconds: f64,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
    /// Why it ended; none while it runs, or when it was dropped or failed.
    pub finish: Option<TextFinish>,
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_seconds)
    }

    /// Tokens per second after the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.tokens.len().saturating_sub(1), self.decode_seconds)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Pieces of text, each whole characters; dropping it cancels the request.
///
/// Waits in [`Iterator::next`]; [`TextStream::into_stream`] gives the same pieces to an async runtime.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{GenerateOptions, TextFinish};
///
/// let model = engraft::demo()?;
/// let options = GenerateOptions::new().max_new_tokens(8).greedy();
/// let mut text = model.generate("This package provides", &options)?;
/// let first = text.next().transpose()?;
/// let rest = text.text()?;
/// println!("{}{rest}", first.unwrap_or_default());
/// assert_eq!(text.stats().finish, Some(TextFinish::Length));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TextStream {
    sampling: SamplingParams,
    tokens: Option<Tokens>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    stop_strings: Vec<String>,
    stop_ids: Vec<u32>,
    first: Duration,
    stats: Stats,
}

impl TextStream {
    pub(crate) fn new(
        tokens: Tokens,
        sampling: SamplingParams,
        prompt_tokens: usize,
        detokenizer: Detokenizer,
        stop_strings: Vec<String>,
        stop_ids: Vec<u32>,
    ) -> Result<Self> {
        Ok(Self {
            sampling,
            tokens: Some(tokens),
            detokenizer,
            stops: StopMatcher::new(&stop_strings)?,
            stop_strings,
            stop_ids,
            first: Duration::ZERO,
            stats: Stats { prompt_tokens, ..Stats::default() },
        })
    }

    /// Counts and times so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How tokens are sampled, with the seed that was taken: the same parameters and prompt give the same
    /// text.
    pub fn sampling(&self) -> SamplingParams {
        self.sampling
    }

    /// Reads to the end and returns the whole rest of the text.
    ///
    /// # Errors
    /// The request's.
    pub fn text(&mut self) -> Result<String> {
        self.collect()
    }

    fn count(&mut self, token: u32, at: Duration) {
        if self.stats.tokens.is_empty() {
            self.first = at;
            self.stats.prompt_seconds = at.as_secs_f64();
        }
        self.stats.decode_seconds = (at - self.first).as_secs_f64();
        self.stats.tokens.push(token);
    }

    fn end(&mut self, finish: TextFinish) {
        self.stats.finish = Some(finish);
        self.tokens = None;
    }

    /// The text of one token, through the stop strings.
    fn take(&mut self, text: &str) -> String {
        let event = self.stops.push(text);
        if let Some(index) = event.stopped {
            let stop = self.stop_strings.get(index).cloned().unwrap_or_default();
            self.end(TextFinish::StopString(stop));
        }
        event.emit
    }

    /// What was held back, when nothing more comes.
    fn rest(&mut self, finish: TextFinish) -> String {
        let held = self.detokenizer.finish();
        let mut text = self.take(&held);
        if self.stats.finish.is_none() {
            text.push_str(&self.stops.finish());
            self.end(finish);
        }
        text
    }

    /// The text of an event that came `at` so long after the request.
    fn piece(&mut self, event: Option<Result<Event>>, at: Duration) -> Result<String> {
        match event {
            Some(Ok(Event::Token(token))) => {
                self.count(token, at);
                if self.stop_ids.contains(&token) {
                    return Ok(self.rest(TextFinish::EndOfText));
                }
                let text = self.detokenizer.push(token)?;
                Ok(self.take(&text))
            }
            Some(Ok(Event::Finished(Finish::Length))) => Ok(self.rest(TextFinish::Length)),
            Some(Ok(Event::Finished(Finish::Stop))) => Ok(self.rest(TextFinish::EndOfText)),
            Some(Ok(Event::Finished(other))) => {
                Err(Error::internal(format!("a text ended in a way that it has no name for: {other:?}")))
            }
            Some(Ok(Event::Kept(_))) => Ok(String::new()),
            Some(Err(error)) => Err(error),
            None => Err(Error::internal("a stream of tokens ended without saying why")),
        }
    }

    /// The next piece that is not empty, or the promise to wake `context`'s task when there may be one.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        loop {
            let Some(tokens) = &mut self.tokens else { return Poll::Ready(None) };
            let event = ready!(tokens.poll(context));
            let at = tokens.elapsed();
            match self.piece(event, at) {
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => return Poll::Ready(Some(Ok(piece))),
                Err(error) => {
                    self.tokens = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl Iterator for TextStream {
    type Item = Result<String>;

    /// Waits for the next piece that is not empty.
    fn next(&mut self) -> Option<Result<String>> {
        wait(|context| self.poll(context))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use engraft_core::text::Tokenizer;
    use serde_json::{Value, json};

    /// A tokenizer whose token 1 is the first byte of a character: its text is known only at the end.
    fn held_bytes() -> Tokenizer {
        let file = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "ByteFallback"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "<0xE2>": 1}, "unk_token": "a"}});
        Tokenizer::from_json(file.to_string().as_bytes(), &Value::Null).unwrap()
    }

    fn stream(stop: &str) -> TextStream {
        TextStream {
            sampling: SamplingParams::default(),
            tokens: None,
            detokenizer: held_bytes().decode_stream(),
            stops: StopMatcher::new(&[stop]).unwrap(),
            stop_strings: vec![stop.to_string()],
            stop_ids: Vec::new(),
            first: Duration::ZERO,
            stats: Stats::default(),
        }
    }

    #[test]
    fn a_stop_string_in_the_text_that_was_held_to_the_end_ends_it() {
        for (stop, text, finish) in [
            ("\u{FFFD}", "a", TextFinish::StopString("\u{FFFD}".into())),
            ("a\u{FFFD}", "", TextFinish::StopString("a\u{FFFD}".into())),
            ("b", "a\u{FFFD}", TextFinish::Length),
            ("\u{FFFD}b", "a\u{FFFD}", TextFinish::Length),
        ] {
            let mut stream = stream(stop);
            let events = [Event::Token(0), Event::Token(1), Event::Finished(Finish::Length)];
            let pieces = events.map(|event| stream.piece(Some(Ok(event)), Duration::ZERO).unwrap());
            assert_eq!(
                (pieces.concat().as_str(), stream.stats().finish.as_ref()),
                (text, Some(&finish)),
                "{stop:?}"
            );
        }
    }
}
