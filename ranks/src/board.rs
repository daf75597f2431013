//! A rendezvous of threads.
//!
//! Each rank copies what it sends into a slot of its own, says so by a counter, waits until all have, and
//! reads all slots. Two sets of slots alternate, so one wait an exchange is enough: who is at exchange n + 2
//! has passed n + 1, which all others only reach after they have read n.
//!
//! A group that has failed stays failed: nobody enters another exchange. A rank that went on would be taken
//! for one that is where the others still wait. Ranks that end well are not hurt by it: who has left an
//! exchange knows that all have entered it.

use crate::exchange::{Carrier, Kind, MOST_RANKS, Part, all_gather, all_reduce};
use crate::fate::Fate;
use engraft_core::Result;
use engraft_core::backend::Board;
use engraft_core::numerics::check_rank;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a rank waits for the others before it gives up; time in which the process was stopped does not
/// count.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long it looks at their counters before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// A rank's place on a board of threads. Dropping it is leaving: who waits for the rank then gets an error.
pub struct ThreadBoard {
    shared: Arc<Shared>,
    rank: usize,
    /// Exchanges so far.
    done: Cell<u64>,
}

struct Shared {
    /// Exchanges that each rank has sent its part to.
    arrived: Vec<AtomicU64>,
    /// Of even and odd exchanges, what each rank sends.
    slots: [Vec<RwLock<Slot>>; 2],
    fate: Fate,
    patience: Duration,
}

/// What a rank sends.
#[derive(Debug, Default)]
struct Slot {
    kind: Kind,
    values: Vec<f32>,
}

impl ThreadBoard {
    /// A place for each of `world` ranks.
    ///
    /// # Errors
    /// `Config` for a degree that is not 1, 2, 4 or 8.
    pub fn group(world: usize) -> Result<Vec<Self>> {
        Self::group_with_patience(world, PATIENCE)
    }

    /// The same, with ranks that wait so long for each other.
    ///
    /// # Errors
    /// As [`ThreadBoard::group`].
    pub fn group_with_patience(world: usize, patience: Duration) -> Result<Vec<Self>> {
        check_rank(0, world)?;
        let slots = || (0..world).map(|_| RwLock::default()).collect();
        let shared = Arc::new(Shared {
            arrived: (0..world).map(|_| AtomicU64::new(0)).collect(),
            slots: [slots(), slots()],
            fate: Fate::new(world),
            patience,
        });
        Ok((0..world).map(|rank| Self { shared: shared.clone(), rank, done: Cell::new(0) }).collect())
    }

    /// Ends the group because this rank failed; the first reason is kept.
    pub fn fail(&self, what: &str) {
        self.shared.fate.fail(self.rank, what);
    }

    /// A handle by which others can end the group because this rank failed.
    pub fn breaker(&self) -> impl Fn(&str) + Send + use<> {
        let (shared, rank) = (self.shared.clone(), self.rank);
        move |what: &str| shared.fate.fail(rank, what)
    }
}

impl Drop for ThreadBoard {
    fn drop(&mut self) {
        self.fail("it has left the group");
    }
}

impl Shared {
    /// Waits until all ranks have sent their part of exchange `number`.
    fn wait(&self, number: u64) -> Result<()> {
        let missing = || self.arrived.iter().position(|arrived| arrived.load(SeqCst) < number);
        let began = Instant::now();
        while began.elapsed() < SPIN {
            if missing().is_none() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.fate.wait(self.patience, Duration::MAX, || format!("exchange {number}"), missing, |_| true)
    }
}

impl Carrier for ThreadBoard {
    fn fate(&self) -> &Fate {
        &self.shared.fate
    }

    fn most(&self) -> usize {
        usize::MAX
    }

    fn swap(
        &self,
        kind: Kind,
        fill: &mut dyn FnMut(&mut Vec<f32>),
        read: &mut dyn FnMut(&[Part<'_>]) -> Result<()>,
    ) -> Result<()> {
        let (shared, number) = (&self.shared, self.done.get());
        if let Some(error) = shared.fate.error() {
            return Err(error);
        }
        let slots = &shared.slots[(number % 2) as usize];
        {
            let mut slot = slots[self.rank].write().unwrap_or_else(PoisonError::into_inner);
            slot.kind = kind;
            slot.values.clear();
            fill(&mut slot.values);
        }
        self.done.set(number + 1);
        shared.arrived[self.rank].store(number + 1, SeqCst);
        shared.fate.wake();
        shared.wait(number + 1)?;
        let slots: [_; MOST_RANKS] = std::array::from_fn(|rank| {
            slots.get(rank).map(|slot| slot.read().unwrap_or_else(PoisonError::into_inner))
        });
        let parts: [Part<'_>; MOST_RANKS] = std::array::from_fn(|rank| match &slots[rank] {
            Some(slot) => Part { kind: slot.kind, values: &slot.values },
            None => Part::default(),
        });
        read(&parts[..shared.arrived.len()])
    }
}

impl Board for ThreadBoard {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.shared.arrived.len()
    }

    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()> {
        all_reduce(self, x, adds)
    }

    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()> {
        all_gather(self, x, cols, columns)
    }

    fn check(&self) -> Result<()> {
        self.shared.fate.error().map_or(Ok(()), Err)
    }

    fn patience(&self) -> Duration {
        self.shared.patience
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use engraft_core::numerics::tree;
    use proptest::prelude::*;
    use std::thread;

    /// Runs `body` as every rank, on a thread each.
    fn ranks<T: Send>(boards: Vec<ThreadBoard>, body: impl Fn(ThreadBoard) -> T + Sync) -> Vec<T> {
        let body = &body;
        thread::scope(|scope| {
            let all: Vec<_> = boards.into_iter().map(|board| scope.spawn(move || body(board))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn sums_are_the_tree_at_every_degree(leaves in prop::collection::vec(prop::array::uniform8(-1e4f32..1e4), 1..40)) {
            let want: Vec<u32> = leaves.iter().map(|leaf| tree(*leaf).to_bits()).collect();
            for world in [1, 2, 4, 8] {
                let got = ranks(ThreadBoard::group(world).unwrap(), |board| {
                    let per = 8 / board.world();
                    let node = |leaf: &[f32; 8]| {
                        let own = &leaf[board.rank() * per..][..per];
                        match *own {
                            [a] => a,
                            [a, b] => a + b,
                            [a, b, c, d] => (a + b) + (c + d),
                            _ => tree(*leaf),
                        }
                    };
                    let mut bits = Vec::new();
                    // Several exchanges: slots alternate.
                    for _ in 0..5 {
                        let mut x: Vec<f32> = leaves.iter().map(node).collect();
                        board.all_reduce(&mut x, true).unwrap();
                        bits = x.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
                    }
                    bits
                });
                for bits in got {
                    prop_assert_eq!(&bits, &want);
                }
            }
        }
    }

    #[test]
    fn a_rank_that_adds_nothing_counts_as_zeros() {
        let got = ranks(ThreadBoard::group(2).unwrap(), |board| {
            let mut x = [f32::NAN, 1.0];
            if board.rank() == 0 {
                x = [-0.0, 3.0];
            }
            board.all_reduce(&mut x, board.rank() == 0).unwrap();
            x.map(f32::to_bits)
        });
        assert_eq!(got, [[0, 3f32.to_bits()]; 2]);
    }

    #[test]
    fn columns_of_unequal_width_reach_every_rank() {
        let columns = [0..3, 3..3, 3..4, 4..7];
        let got = ranks(ThreadBoard::group(4).unwrap(), |board| {
            let mut x = [-1.0f32; 14];
            for (i, x) in x.iter_mut().enumerate() {
                if columns[board.rank()].contains(&(i % 7)) {
                    *x = i as f32;
                }
            }
            board.all_gather(&mut x, 7, &columns).unwrap();
            x
        });
        let want: [f32; 14] = std::array::from_fn(|i| i as f32);
        assert_eq!(got, [want; 4]);
    }

    #[test]
    fn the_error_of_a_wait_names_the_missing_rank() {
        // One leaves, one fails, one never comes.
        let error = |number: u32, patience| {
            let boards = ThreadBoard::group_with_patience(2, patience).unwrap();
            let errors = ranks(boards, |board| match (board.rank(), number) {
                (0, _) => board.all_reduce(&mut [1.0], true).unwrap_err().to_string(),
                (_, 0) => String::new(),
                (_, 1) => {
                    board.fail("out of memory");
                    String::new()
                }
                _ => {
                    thread::sleep(Duration::from_millis(300));
                    String::new()
                }
            });
            errors[0].clone()
        };
        let long = Duration::from_secs(60);
        assert_eq!(error(0, long), "rank 1 of 2: it has left the group");
        assert_eq!(error(1, long), "rank 1 of 2: out of memory");
        let late = error(2, Duration::from_millis(20));
        assert!(late.starts_with("rank 1 of 2: it did not reach exchange 1 within 20ms"), "{late}");
    }

    /// What a rank does after it has failed must not be taken for what the others wait for.
    #[test]
    fn a_group_that_has_failed_stays_failed() {
        for _ in 0..200 {
            let errors = ranks(ThreadBoard::group(2).unwrap(), |board| {
                let fail = board.breaker();
                if board.rank() == 0 {
                    fail("out of memory");
                }
                board.all_reduce(&mut [1.0], true).map_err(|error| error.to_string())
            });
            assert_eq!(errors[0], Err("rank 0 of 2: out of memory".to_string()));
            assert!(errors[1].is_err(), "rank 1 was given something");
        }
    }

    #[test]
    fn ranks_that_call_different_exchanges_are_named() {
        let errors = ranks(ThreadBoard::group(2).unwrap(), |board| {
            let mut x = [1.0, 2.0];
            let done = match board.rank() {
                0 => board.all_reduce(&mut x, true),
                _ => board.all_gather(&mut x, 2, &[0..0, 0..2]),
            };
            done.map_err(|error| error.to_string())
        });
        assert!(errors.iter().all(Result::is_err), "{errors:?}");
        let said = "calls all_gather, all_reduce expected";
        assert!(errors.iter().flat_map(|e| e.as_ref().err()).any(|e| e.contains(said)), "{errors:?}");
    }

    #[test]
    fn ranks_that_run_different_steps_are_named() {
        let errors = ranks(ThreadBoard::group(2).unwrap(), |board| {
            let mut x = vec![1.0; 3 + board.rank()];
            board.all_reduce(&mut x, true).map_err(|error| error.to_string())
        });
        let want = "rank 1 of 2: sent 4 values, 3 expected";
        assert!(errors.iter().flat_map(|e| e.as_ref().err()).any(|e| e == want), "{errors:?}");
        assert!(errors.iter().all(Result::is_err), "{errors:?}");
    }

    /// Rank 0 has the engine: of two that differ it is the other, on both sides.
    #[test]
    fn who_runs_another_step_names_itself() {
        for round in 0..20 {
            let errors = ranks(ThreadBoard::group(2).unwrap(), |board| {
                let (mut x, columns) = (vec![1.0; 4 + 2 * board.rank()], [0..1, 1..2]);
                let done = match (round % 2, board.rank()) {
                    (0, _) => board.all_reduce(&mut x, true),
                    _ => board.all_gather(&mut x, 2, &columns),
                };
                done.map_err(|error| error.to_string())
            });
            let named = |error: &Result<(), String>| {
                error.as_ref().is_err_and(|error| error.starts_with("rank 1 of 2: "))
            };
            assert!(errors.iter().all(named), "{errors:?}");
        }
    }
}
