//! All continuations of one request, with what bounds them: its place, its deadline, the server's end.

use crate::admission::Permit;
use crate::choice::{Choice, Piece};
use crate::drain::{Life, Phase};
use crate::error::ApiError;
use crate::patience::{Connection, Due};
use crate::supervise::{Models, Served};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// What a request runs in.
pub struct Scope {
    /// The model.
    pub served: Arc<Served>,
    /// Where losses of its engine are reported.
    pub models: Arc<Models>,
    /// The server's phase.
    pub life: Life,
    /// A number that is equal for equal requests.
    pub fingerprint: u64,
    /// Time for all of it.
    pub limit: Option<Duration>,
}

/// The continuations of one request; dropping it cancels them.
pub struct Group {
    choices: Vec<Choice>,
    next: usize,
    begun: bool,
    scope: Scope,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Held until the continuations are gone, and longer by an answer that is sent as a whole.
    place: Permit,
    /// Ends a connection whose reader is slower than the limit.
    due: Option<Due>,
}

/// Time for the error behind the limit to be read.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Group {
    /// The continuations `choices`, which have `place`.
    pub fn new(choices: Vec<Choice>, scope: Scope, place: Permit) -> Self {
        let ended = scope.life.reached(Phase::Ended);
        let deadline = scope.limit.map(|limit| Box::pin(sleep(limit)));
        Self { choices, next: 0, begun: false, scope, ended, deadline, place, due: None }
    }

    /// Ends the connection of a stream once the limit is over: a body is not polled while its reader takes
    /// nothing.
    pub fn due(mut self, connection: &Connection) -> Self {
        self.due = self.scope.limit.map(|limit| connection.due(limit + LAST_WORDS));
        self
    }

    /// Ends all continuations, but not the request.
    pub fn into_place(self) -> Permit {
        self.place
    }

    /// Tokens of all continuations so far.
    pub fn count(&self) -> usize {
        self.choices.iter().map(Choice::count).sum()
    }

    /// Tokens of all prompts that came from the prefix cache, as far as known; `n` continuations have one
    /// prompt.
    pub fn cached(&self, n: usize) -> usize {
        self.choices.iter().step_by(n.max(1)).map(Choice::cached).sum()
    }

    /// The next piece of any continuation, by its place; none after the last one.
    pub async fn next(&mut self) -> Option<Result<(usize, Piece), ApiError>> {
        poll_fn(|context| self.poll(context)).await
    }

    /// As [`next`](Self::next), or the promise to wake the task.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Piece), ApiError>>> {
        if self.choices.iter().all(Choice::has_ended) {
            if !self.choices.is_empty() {
                self.scope.models.suspects.ended_well(self.scope.fingerprint);
            }
            return Poll::Ready(None);
        }
        // Before what there is: a reader that is slow finds something each time.
        if self.deadline.as_mut().is_some_and(|at| at.as_mut().poll(context).is_ready()) {
            let what = if self.begun { "ran" } else { "waited" };
            let limit = self.scope.limit.unwrap_or_default();
            return Poll::Ready(Some(self.or_end(Err(ApiError::timed_out(what, limit)))));
        }
        for turn in 0..self.choices.len() {
            let at = (self.next + turn) % self.choices.len();
            if self.choices[at].has_ended() {
                continue;
            }
            let Poll::Ready(Some(piece)) = self.choices[at].poll(context) else { continue };
            self.next = at + 1;
            self.begun = true;
            let piece = piece.map(|piece| (at, piece)).map_err(|error| {
                self.scope.models.report(&self.scope.served, &error, self.scope.fingerprint);
                ApiError::from(error)
            });
            return Poll::Ready(Some(self.or_end(piece)));
        }
        if self.ended.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(self.or_end(Err(ApiError::unavailable("the server ends", 1)))));
        }
        Poll::Pending
    }

    /// An error ends all continuations.
    fn or_end<T>(&mut self, piece: Result<T, ApiError>) -> Result<T, ApiError> {
        if piece.is_err() {
            self.choices.clear();
        }
        piece
    }
}
