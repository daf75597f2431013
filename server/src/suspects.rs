//! Requests that were running when an engine was lost: one that may have been the reason is not run again for
//! a while.

use crate::error::ApiError;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Losses of the engine after which a request that was running each time is refused.
const MOST_LOSSES: u32 = 2;
/// How long that is remembered. All that ran is suspected, and one of them at most is the reason: a request
/// that others repeat day and night is there at many losses.
const MEMORY: Duration = Duration::from_secs(600);
/// Requests of which it is remembered.
const SUSPECTS: usize = 1024;

/// Requests by what they are, with the losses that they were there at.
#[derive(Debug, Default)]
pub struct Suspects(Mutex<BTreeMap<u64, Suspect>>);

#[derive(Debug)]
struct Suspect {
    losses: u32,
    /// The engine that was lost last.
    generation: u64,
    last: Instant,
}

impl Suspects {
    /// The engine of this generation was lost while the request ran; several of its kind count once.
    pub fn lost(&self, fingerprint: u64, generation: u64) {
        let mut all = self.all();
        all.retain(|_, suspect| suspect.last.elapsed() < MEMORY);
        if all.len() >= SUSPECTS && !all.contains_key(&fingerprint) {
            let oldest = all.iter().min_by_key(|(_, suspect)| suspect.last).map(|(key, _)| *key);
            oldest.map(|key| all.remove(&key));
        }
        let last = Instant::now();
        let suspect = all.entry(fingerprint).or_insert(Suspect { losses: 0, generation, last });
        suspect.losses += u32::from(suspect.losses == 0 || suspect.generation != generation);
        (suspect.generation, suspect.last) = (generation, last);
    }

    /// The request ended well: it is not the reason.
    pub fn ended_well(&self, fingerprint: u64) {
        self.all().remove(&fingerprint);
    }

    /// Refuses a request that was running at two losses of the engine lately.
    ///
    /// # Errors
    /// 500.
    pub fn admit(&self, fingerprint: u64) -> Result<(), ApiError> {
        let all = self.all();
        let suspect = all.get(&fingerprint).filter(|suspect| suspect.losses >= MOST_LOSSES);
        let left = suspect.map(|suspect| MEMORY.saturating_sub(suspect.last.elapsed()));
        let Some(left) = left.filter(|left| !left.is_zero()) else { return Ok(()) };
        let minutes = left.as_secs().div_ceil(60);
        Err(ApiError::internal(format!(
            "the engine was lost {MOST_LOSSES} times while this request ran; it is not run again for {minutes} min"
        )))
    }

    /// Whether none is suspected.
    #[cfg(all(test, feature = "images"))]
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Suspect>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(work)
    }

    #[test]
    fn who_was_there_twice_is_refused_for_a_while() {
        run(async {
            let all = Suspects::default();
            all.lost(7, 0);
            // Another one of its kind, at the same loss.
            all.lost(7, 0);
            assert_eq!(all.admit(7), Ok(()));
            all.lost(7, 1);
            let error = all.admit(7).unwrap_err();
            assert_eq!(error.status, 500);
            assert!(error.message.contains("for 10 min"), "{}", error.message);
            advance(MEMORY).await;
            assert_eq!(all.admit(7), Ok(()));
            // Losses that lie far apart are of other reasons.
            all.lost(7, 2);
            assert_eq!(all.admit(7), Ok(()));
        });
    }

    #[test]
    fn who_ends_well_is_suspected_no_more() {
        run(async {
            let all = Suspects::default();
            all.lost(7, 0);
            all.ended_well(7);
            all.lost(7, 1);
            assert_eq!(all.admit(7), Ok(()));
        });
    }

    #[test]
    fn the_oldest_makes_room() {
        run(async {
            let all = Suspects::default();
            for generation in [0, 1] {
                all.lost(u64::MAX, generation);
            }
            advance(Duration::from_secs(1)).await;
            for generation in [0, 1] {
                all.lost(0, generation);
            }
            (1..SUSPECTS as u64).for_each(|other| all.lost(other, 2));
            assert_eq!(all.admit(u64::MAX), Ok(()), "it came first");
            assert!(all.admit(0).is_err(), "it came later");
        });
    }
}
