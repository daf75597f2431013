//! Whether a group still runs: the first failure of any of its ranks, which all that wait are woken by.

use engraft_core::Error;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank sleeps at most before it looks again.
const NAP: Duration = Duration::from_millis(50);

/// What has become of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs.
    Running,
    /// This rank is missing, and why: no exchange is possible any more.
    Failed(usize, String),
    /// Its engine is gone in good order: who leaves now has not failed.
    Ended,
}

/// The state of a group as one process sees it.
#[derive(Debug)]
pub(crate) struct Fate {
    world: usize,
    state: Mutex<State>,
    news: Condvar,
}

impl Fate {
    /// A group of so many ranks that runs.
    pub fn new(world: usize) -> Self {
        Self { world, state: Mutex::new(State::Running), news: Condvar::new() }
    }

    /// Ends the group because `rank` is missing; the first reason is kept, and none counts after the end.
    pub fn fail(&self, rank: usize, what: &str) {
        let mut state = self.lock();
        if *state == State::Running {
            *state = State::Failed(rank, what.to_string());
        }
        self.news.notify_all();
    }

    /// Ends the group in good order.
    pub fn end(&self) {
        let mut state = self.lock();
        if *state == State::Running {
            *state = State::Ended;
        }
        self.news.notify_all();
    }

    /// Wakes who waits: something has come.
    pub fn wake(&self) {
        // Held, so that no waiter falls asleep between its look and this signal.
        let _state = self.lock();
        self.news.notify_all();
    }

    /// What has become of the group.
    pub fn state(&self) -> State {
        self.lock().clone()
    }

    /// The failure as an error.
    pub fn error(&self) -> Option<Error> {
        error_of(&self.lock(), self.world)
    }

    /// An error that names a rank of this group.
    pub fn comm(&self, rank: usize, what: impl Into<String>) -> Error {
        Error::Comm { rank, world: self.world, what: what.into() }
    }

    /// Waits until `missing` names no rank any more; what it names is looked at again whenever the group is
    /// woken, and every `nap`. `gone` says whether nothing that a rank has sent can still arrive: a group may
    /// have ended in good order while a part is on its way. Time in which the process was stopped does not
    /// count as waiting.
    ///
    /// # Errors
    /// `Comm` with the failure of the group; that the missing rank has left a group that has ended; after
    /// `patience` that of the rank that is missing, which did not reach `what`.
    pub fn wait(
        &self,
        patience: Duration,
        nap: Duration,
        what: impl Fn() -> String,
        mut missing: impl FnMut() -> Option<usize>,
        gone: impl Fn(usize) -> bool,
    ) -> engraft_core::Result<()> {
        let (mut state, mut slept, mut last) = (self.lock(), Duration::ZERO, Instant::now());
        loop {
            // What all have sent is there, whoever has left since.
            let Some(rank) = missing() else { return Ok(()) };
            if let Some(error) = error_of(&state, self.world) {
                return Err(error);
            }
            if *state == State::Ended && gone(rank) {
                return Err(self.comm(rank, "it has left the group"));
            }
            if slept > patience {
                let what = format!("it did not reach {} within {patience:?}", what());
                *state = State::Failed(rank, what.clone());
                self.news.notify_all();
                return Err(self.comm(rank, what));
            }
            let nap = nap.min(NAP).min(patience);
            state = self.news.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
            // A stopped process sleeps long, and so do the others; a busy machine has it wait for its turn,
            // which counts.
            slept += last.elapsed().min(2 * NAP);
            last = Instant::now();
        }
    }

    /// Ends the group because `rank` is missing, unless another reason comes within `grace`: a rank that has
    /// heard of one leaves, and its link may end before the word of the reason has come by another.
    pub fn suspect(&self, rank: usize, what: &str, grace: Duration) {
        let (mut state, mut slept) = (self.lock(), Duration::ZERO);
        while *state == State::Running {
            let left = grace.saturating_sub(slept);
            if left.is_zero() {
                *state = State::Failed(rank, what.to_string());
                self.news.notify_all();
                return;
            }
            // Parts that come wake it, too; a process that was stopped has not waited.
            let (nap, began) = (left.min(NAP), Instant::now());
            state = self.news.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
            slept += began.elapsed().min(2 * nap);
        }
    }

    /// Waits for something else than a running group, at most so long.
    pub fn watch(&self, nap: Duration) -> State {
        let state = self.lock();
        if *state != State::Running {
            return state.clone();
        }
        self.news.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn error_of(state: &State, world: usize) -> Option<Error> {
    match state {
        State::Failed(rank, what) => Some(Error::Comm { rank: *rank, world, what: what.clone() }),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// On a busy machine every look takes longer than the nap before it.
    #[test]
    fn a_wait_does_not_outlast_its_patience() {
        let (fate, began) = (Fate::new(2), Instant::now());
        let missing = || {
            std::thread::sleep(Duration::from_millis(3));
            Some(1)
        };
        let (patience, nap) = (Duration::from_millis(300), Duration::from_micros(200));
        let error = fate.wait(patience, nap, || "exchange 1".into(), missing, |_| true).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 of 2: it did not reach exchange 1 within 300ms");
        let took = began.elapsed();
        assert!(took >= patience && took < 5 * patience, "{took:?}");
    }
}
