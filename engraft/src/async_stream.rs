//! The same streams for async code: [`futures_core::Stream`]s without a runtime of their own.
//!
//! A type of its own each, since `next`, `map` and other adapters would be ambiguous on one that iterates and
//! streams.

use crate::handle::{Event, Tokens};
use crate::text_stream::{Stats, TextStream};
use engraft_core::Result;
use engraft_core::sample::SamplingParams;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Pieces of text as a [`Stream`]; dropping it cancels the request.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::GenerateOptions;
/// use futures::StreamExt;
///
/// let model = engraft::demo()?;
/// let options = GenerateOptions::new().max_new_tokens(8).greedy();
/// let mut pieces = model.generate("This package provides", &options)?.into_stream();
/// // Any runtime will do; this one is the smallest.
/// futures::executor::block_on(async {
///     while let Some(piece) = pieces.next().await {
///         print!("{}", piece?);
///     }
///     assert_eq!(pieces.stats().tokens.len(), 8);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncTextStream(TextStream);

impl AsyncTextStream {
    /// Counts and times so far.
    pub fn stats(&self) -> &Stats {
        self.0.stats()
    }

    /// How tokens are sampled, with the seed that was taken.
    pub fn sampling(&self) -> SamplingParams {
        self.0.sampling()
    }
}

impl Stream for AsyncTextStream {
    type Item = Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<String>>> {
        self.0.poll(context)
    }
}

impl TextStream {
    /// The same text for async code.
    pub fn into_stream(self) -> AsyncTextStream {
        AsyncTextStream(self)
    }
}

/// The events of a request as a [`Stream`]; dropping it cancels the request.
///
/// ```
/// # fn main() -> engraft::Result<()> {
/// use engraft::{Event, Finish, ModelSource, Options, Request};
/// use futures::StreamExt;
///
/// let handle = Options::new().start(ModelSource::Demo)?;
/// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 2, ..Request::default() };
/// let events = handle.submit(request)?.into_stream();
/// let events: Vec<engraft::Result<Event>> = futures::executor::block_on(events.collect());
/// assert_eq!(events.len(), 3);
/// assert!(matches!(events[2], Ok(Event::Finished(Finish::Length))));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncTokens(Tokens);

impl AsyncTokens {
    /// As [`Tokens::cached_tokens`].
    pub fn cached_tokens(&self) -> Option<usize> {
        self.0.cached_tokens()
    }

    /// As [`Tokens::queued`].
    pub fn queued(&self) -> Option<Duration> {
        self.0.queued()
    }
}

impl Stream for AsyncTokens {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        self.0.poll(context)
    }
}

impl Tokens {
    /// The same events for async code.
    pub fn into_stream(self) -> AsyncTokens {
        AsyncTokens(self)
    }
}
