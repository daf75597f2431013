//! What the thread does to requests besides running steps: begins, saves, forks and preempts them.
//!
//! Saving and forking look at a request as it stands, so they collect what is in flight first. What a step
//! that fails then does to others is theirs, as it is where the thread collects it.

use super::message::{Begin, Opened, Saved};
use super::reason::{Reason, numbered};
use super::worker::Worker;
use engraft_core::backend::Backend;
use engraft_core::engine::Engine;
use engraft_core::{Error, Result};

impl<B: Backend> Worker<B> {
    /// Begins `count` requests.
    pub(super) fn begin(&mut self, begin: Begin, count: usize) -> Result<Opened> {
        let id = match begin {
            Begin::Put(request) => {
                let want = request.want;
                return Ok(Opened { ids: self.serving()?.put_several(request, count)?, want, before: 0 });
            }
            Begin::Restore(bytes) => self.as_it_stands(None, |engine| engine.restore(&bytes))?,
            Begin::Fork { of, sampling, subsequence } => {
                let id = self.number(of)?;
                // A fork runs at once: those that wait would wait for whoever goes on forking.
                if self.engine.counts().1 > 0 {
                    let what = "requests wait for their turn, and a fork would go before them".into();
                    return Err(Error::Request { id: of, what });
                }
                self.as_it_stands(Some(id), |engine| engine.fork(id, sampling, subsequence))?
            }
        };
        let before = self.engine.sampled(id).map_or(0, <[u32]>::len);
        Ok(Opened { ids: vec![id], want: self.engine.want(id), before })
    }

    pub(super) fn save(&mut self, key: u64) -> Result<Saved> {
        let id = self.number(key)?;
        let bytes = self.as_it_stands(Some(id), |engine| engine.save(id));
        let bytes = bytes.map_err(|error| numbered(key, error))?;
        let before = self.clients.get(id).map_or(0, |client| client.data.before);
        let sampled = self.engine.sampled(id).map_or(0, <[u32]>::len);
        Ok(Saved { bytes, sampled: sampled.saturating_sub(before) })
    }

    pub(super) fn preempt(&mut self, key: u64) -> Result<bool> {
        let id = self.number(key)?;
        self.as_it_stands(Some(id), |engine| engine.preempt(id))
    }

    /// The engine's number of a request.
    fn number(&self, key: u64) -> Result<u64> {
        let ended = || Error::Request { id: key, what: "it has ended".into() };
        self.clients.number(key).ok_or_else(ended)
    }

    /// Does something to request `of` that may collect steps in flight. Where one fails, its requests
    /// are told; unless `of` is among them it is done all the same.
    fn as_it_stands<T>(&mut self, of: Option<u64>, work: impl Fn(&mut Engine<B>) -> Result<T>) -> Result<T> {
        loop {
            let error = match self.serving().and_then(&work) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let (failed, reason) = (self.engine.take_failed(), Reason::of(&error));
            let own = of.is_some_and(|id| failed.contains(&id));
            if failed.is_empty() || own || reason.broken {
                if !failed.is_empty() || reason.broken {
                    self.end_failed(failed, reason, None);
                }
                return Err(error);
            }
            self.end_failed(failed, reason, Some(error));
        }
    }
}
