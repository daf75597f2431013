//! What ends work that takes long: its time, and the end of the server. A client that goes away ends it by
//! [`Waits`](crate::state::Waits).

use crate::drain::Phase;
use crate::error::ApiError;
use crate::state::State;
use engraft::CancelToken;
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

/// Cancels work whose time is over, and that of a server which ends.
#[derive(Debug)]
pub struct Watch {
    /// Why it was cancelled, if not by its client.
    pub why: Arc<OnceLock<ApiError>>,
    ended: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Cancels by `cancel`.
    pub fn new(state: &State, cancel: CancelToken) -> Self {
        let (why, (end, ended)) = (Arc::new(OnceLock::new()), watch::channel(false));
        let (over, limit) = (state.life.reached(Phase::Ended), state.config.request_timeout);
        let reason = why.clone();
        let task = tokio::spawn(async move {
            let late = async {
                match limit {
                    Some(limit) => {
                        tokio::time::sleep(limit).await;
                        ApiError::timed_out("ran", limit)
                    }
                    None => std::future::pending().await,
                }
            };
            let why = tokio::select! {
                () = over => ApiError::unavailable("the server ends", 1),
                error = late => error,
            };
            // Set here alone.
            let _ = reason.set(why);
            cancel.cancel();
            end.send_replace(true);
            // The sender lives as long as this watch, so that nothing else ends those that wait.
            std::future::pending::<()>().await;
        });
        Self { why, ended, task }
    }

    /// What comes of `work`, unless the time is over before.
    ///
    /// # Errors
    /// Those of the work; 408 and 503.
    pub async fn unless<T>(&self, work: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        let mut ended = self.ended.clone();
        tokio::select! {
            // What was cancelled on the way says so, and not why.
            done = work => match (done, self.why.get()) {
                (Err(_), Some(why)) => Err(why.clone()),
                (done, _) => done,
            },
            _ = ended.wait_for(|ended| *ended) => {
                Err(self.why.get().cloned().unwrap_or_else(|| ApiError::internal("the request was ended")))
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for so much of something that there is a bounded amount of; whoever comes first has it first.
///
/// # Errors
/// 500 where there is none any more.
pub async fn acquire(of: &Arc<Semaphore>, count: u32) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = of.clone().acquire_many_owned(count).await;
    permit.map_err(|_| ApiError::internal("nothing is left to wait for"))
}
