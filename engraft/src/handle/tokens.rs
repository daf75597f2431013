//! The near end of one request: its events, and what may be done to it while it runs.

use super::message::{Begin, Begun, Command, Event, Events, Near, Reply, Saved, TimedEvent, gone};
use crate::wait::wait;
use engraft_core::Result;
use engraft_core::sample::SamplingParams;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

/// The events of one request as they happen; dropping it cancels the request.
///
/// Waits in [`Iterator::next`]; [`Tokens::into_stream`] gives the same events to an async runtime.
///
/// [`EngineHandle::submit`](crate::EngineHandle::submit) has an example.
#[derive(Debug)]
pub struct Tokens {
    events: Events,
    began: Instant,
    last: Instant,
    begun: Option<Begun>,
}

impl Tokens {
    /// Hands in what begins `count` requests, under keys of their own from `first` on.
    pub(super) fn begin(near: &Near, first: u64, count: usize, begin: Begin) -> Result<Vec<Self>> {
        let began = Instant::now();
        let lines = near.submit(first, count, begin).map_err(|_| gone())?;
        Ok(lines.into_iter().map(|events| Self { events, began, last: began, begun: None }).collect())
    }

    /// Prompt tokens that came from the prefix cache; none before the first event, and for continuations that
    /// joined a prompt that had run.
    pub fn cached_tokens(&self) -> Option<usize> {
        self.begun.map(|begun| begun.cached)
    }

    /// Time from the request to its admission; none where [`Tokens::cached_tokens`] is.
    pub fn queued(&self) -> Option<Duration> {
        self.begun.map(|begun| begun.at.saturating_duration_since(self.began))
    }

    /// Time from the request to the event returned last, as the engine sent it.
    pub fn elapsed(&self) -> Duration {
        self.last - self.began
    }

    /// The request as it stands, to be continued by [`EngineHandle::restore`](crate::EngineHandle::restore),
    /// here or elsewhere: its tokens, how it samples, and the keys and values of every position. It goes on
    /// here all the same, until this is dropped. Blocks until the engine has answered.
    ///
    /// # Errors
    /// `Request` for one that has ended, or that keeps logits or hidden states; `Unsupported` where ranks
    /// share the model, and for a model with blocks of its own; `Internal` when the engine's thread has
    /// ended.
    ///
    /// ```no_run
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Event, ModelSource, Options, Request};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 400, ..Request::default() };
    /// let mut tokens = handle.submit(request)?;
    /// tokens.next().transpose()?;
    /// let saved = tokens.save()?;
    /// // Those that are in the bytes already, and those behind them.
    /// let rest: Vec<Event> = tokens.skip(saved.sampled - 1).collect::<Result<_, _>>()?;
    /// // Another engine, or another process.
    /// let other = Options::new().start(ModelSource::Demo)?;
    /// let restored: Vec<Event> = other.restore(saved.bytes)?.collect::<Result<_, _>>()?;
    /// assert_eq!(restored, rest);
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(&self) -> Result<Saved> {
        self.ask(|key, reply| Command::Save { key, reply })
    }

    /// Continues the request a second time from where it stands, by other sampling parameters; what it has
    /// read is not read again. Its first event is a token behind those that the request has sampled. Limits
    /// and stop tokens are the request's.
    ///
    /// What is wrong is the only event: `Request` for a request that has ended, that waits, whose tokens are
    /// still being read, or where others wait or as many run as may; `KvFull` without a page for it.
    ///
    /// # Errors
    /// `Config` for sampling parameters out of range; `Internal` when the engine's thread has ended.
    ///
    /// ```no_run
    /// # fn main() -> engraft::Result<()> {
    /// use engraft::{Event, ModelSource, Options, Request, SamplingParams};
    ///
    /// let handle = Options::new().start(ModelSource::Demo)?;
    /// let request = Request { prompt: vec![1, 2, 3], max_new_tokens: 400, ..Request::default() };
    /// let mut tokens = handle.submit(request)?;
    /// tokens.next().transpose()?;
    /// let warmer = SamplingParams { temperature: 1.2, seed: Some(7), ..SamplingParams::default() };
    /// let another = tokens.fork(warmer, 0)?;
    /// assert!(another.collect::<Result<Vec<Event>, _>>()?.len() < 400);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fork(&self, sampling: SamplingParams, subsequence: u32) -> Result<Tokens> {
        sampling.validate()?;
        let near = self.events.submitter();
        let of = self.events.key();
        let forks = Self::begin(near, near.keys(1), 1, Begin::Fork { of, sampling, subsequence })?;
        forks.into_iter().next().ok_or_else(gone)
    }

    /// Takes the request's pages, so that others may have them; it goes on, with the same tokens, once it can
    /// have pages again. Whether it ran. Blocks until the engine has answered.
    ///
    /// # Errors
    /// `Internal` when the engine's thread has ended, or where its bookkeeping is inconsistent.
    pub fn preempt(&self) -> Result<bool> {
        self.ask(|key, reply| Command::Preempt { key, reply })
    }

    /// Asks the engine something about the request, and waits for the answer.
    fn ask<T>(&self, command: impl FnOnce(u64, Reply<T>) -> Command) -> Result<T> {
        let (reply, received) = Reply::plain();
        // A thread that is gone drops the reply, and `recv` says so.
        let _ = self.events.submitter().call(command(self.events.key(), reply));
        let answers = received.recv().unwrap_or_else(|_| Err(gone()))?;
        answers.into_iter().next().ok_or_else(gone)
    }

    /// The next event, or the promise to wake `context`'s task when there is one.
    pub(crate) fn poll(&mut self, context: &mut task::Context<'_>) -> Poll<Option<Result<Event>>> {
        self.events.poll(context).map(|timed| {
            let TimedEvent { at, begun, event } = timed?;
            self.last = at;
            self.begun = self.begun.or(begun);
            Some(event)
        })
    }
}

impl Iterator for Tokens {
    type Item = Result<Event>;

    /// Waits for the next event; none after `Finished` or an error.
    fn next(&mut self) -> Option<Result<Event>> {
        wait(|context| self.poll(context))
    }
}
