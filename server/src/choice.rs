//! One continuation: tokens of the engine to pieces of text, through stop ids, detokenizer and stop strings.

use crate::metrics::Timing;
use engraft::engraft_core::text::{Detokenizer, StopMatcher};
use engraft::{AsyncTokens, Error, Event, Finish, Result};
use futures_core::Stream;
use serde_json::{Value, json};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Why a continuation ended, in OpenAI's words and in vLLM's.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// `stop` or `length`.
    pub reason: &'static str,
    /// The stop string or the token of the request that ended it; null for the model's own.
    pub stop_reason: Value,
}

/// What came at once.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    /// Whole characters, possibly none.
    pub text: String,
    /// The tokens that it was made of, as far as they are done with.
    pub tokens: Vec<u32>,
    /// Set with the last piece.
    pub end: Option<End>,
}

/// What ends a continuation.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    /// Strings.
    pub strings: Vec<String>,
    /// Whether the string that came stays in the text.
    pub keep: bool,
    /// Tokens of the request.
    pub ids: Vec<u32>,
    /// Tokens of the model.
    pub own_ids: Vec<u32>,
}

/// A continuation that runs; dropping it cancels it.
#[derive(Debug)]
pub struct Choice {
    tokens: Option<AsyncTokens>,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    stops: Stops,
    timing: Timing,
    pending: Vec<u32>,
    count: usize,
    cached: Option<usize>,
}

impl Choice {
    /// A continuation by `tokens`, whose text `detokenizer` makes.
    ///
    /// # Errors
    /// `Config` for an empty stop string.
    pub fn new(tokens: AsyncTokens, detokenizer: Detokenizer, stops: Stops, timing: Timing) -> Result<Self> {
        let matcher = StopMatcher::new(&stops.strings)?;
        let (tokens, pending) = (Some(tokens), Vec::new());
        Ok(Self { tokens, detokenizer, matcher, stops, timing, pending, count: 0, cached: None })
    }

    /// Tokens so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of its prompt that came from the prefix cache; 0 until that is known.
    pub fn cached(&self) -> usize {
        self.cached.unwrap_or_default()
    }

    /// Whether its last piece was taken.
    pub fn has_ended(&self) -> bool {
        self.tokens.is_none()
    }

    /// The next piece with a text or an end, or the promise to wake the task; none after the last one.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        loop {
            let Some(tokens) = &mut self.tokens else { return Poll::Ready(None) };
            let Poll::Ready(event) = Pin::new(&mut *tokens).poll_next(context) else { return Poll::Pending };
            if self.cached.is_none()
                && let (Some(cached), Some(queued)) = (tokens.cached_tokens(), tokens.queued())
            {
                self.cached = Some(cached);
                self.timing.queued(queued);
            }
            let piece = event.unwrap_or_else(|| Err(lost("a request ended without a last event")));
            match piece.and_then(|event| self.take(event)) {
                Ok(piece) if piece.text.is_empty() && piece.end.is_none() => {
                    self.pending.extend(piece.tokens);
                }
                Ok(mut piece) => {
                    if !self.pending.is_empty() {
                        let mut tokens = std::mem::take(&mut self.pending);
                        tokens.append(&mut piece.tokens);
                        piece.tokens = tokens;
                    }
                    return Poll::Ready(Some(Ok(piece)));
                }
                Err(error) => {
                    self.tokens = None;
                    self.timing.end("error");
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<Piece> {
        match event {
            Event::Token(token) => {
                self.timing.token();
                self.count += 1;
                let tokens = vec![token];
                if self.stops.ids.contains(&token) {
                    return Ok(Piece { tokens, ..self.rest("stop", json!(token)) });
                }
                if self.stops.own_ids.contains(&token) {
                    return Ok(Piece { tokens, ..self.rest("stop", Value::Null) });
                }
                let text = self.detokenizer.push(token)?;
                Ok(Piece { tokens, ..self.matched(&text) })
            }
            Event::Finished(Finish::Length) => Ok(self.rest("length", Value::Null)),
            Event::Finished(Finish::Stop) => Ok(self.rest("stop", Value::Null)),
            Event::Finished(other) => Err(lost(format!("an end without a name: {other:?}"))),
            _ => Ok(Piece::default()),
        }
    }

    /// What of a text is no part of a stop string.
    fn matched(&mut self, text: &str) -> Piece {
        let found = self.matcher.push(text);
        let Some(index) = found.stopped else { return Piece { text: found.emit, ..Piece::default() } };
        let stop = self.stops.strings.get(index).cloned().unwrap_or_default();
        let kept = if self.stops.keep { stop.as_str() } else { "" };
        let text = found.emit + kept;
        let end = self.end("stop", json!(stop));
        Piece { text, end, ..Piece::default() }
    }

    /// What was held back, when nothing more comes.
    fn rest(&mut self, reason: &'static str, stop_reason: Value) -> Piece {
        let held = self.detokenizer.finish();
        let mut piece = self.matched(&held);
        if piece.end.is_none() {
            piece.text.push_str(&self.matcher.finish());
            piece.end = self.end(reason, stop_reason);
        }
        piece
    }

    fn end(&mut self, reason: &'static str, stop_reason: Value) -> Option<End> {
        self.tokens = None;
        self.timing.end(reason);
        Some(End { reason, stop_reason })
    }
}

fn lost(what: impl Into<String>) -> Error {
    Error::Internal { what: what.into() }
}
