//! What every rank of a group on devices has besides its exchanges: the group's board, and who is missing.
//!
//! Exchanges on a device wait for ever for a rank that is gone, and do not say which. The board of the group
//! knows of ranks that have failed; a wait that lasts longer than ranks are waited for calls the roll on it,
//! which names who does not answer.

use crate::mem::lock;
use engraft_core::backend::Board;
use engraft_core::{Error, Result};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Exchanges are counted up to here on the board, whose values are f32.
const MOST_COUNTED: u64 = 1 << 20;

/// A rank's place on the board of its group.
pub(crate) struct Roll {
    board: Mutex<Box<dyn Board>>,
    pub rank: usize,
    pub world: usize,
    pub patience: Duration,
    /// Exchanges so far.
    started: AtomicU64,
    /// The rank that is missing, and why.
    failed: Mutex<Option<(usize, String)>>,
}

impl Roll {
    /// A place on `board`; no wait of the device may last longer than `wait_limit`.
    pub fn new(board: Box<dyn Board>, wait_limit: Duration) -> Self {
        Self {
            rank: board.rank(),
            world: board.world(),
            // Before a wait that lasts too long counts as a device that hangs.
            patience: board.patience().min(wait_limit / 2),
            board: Mutex::new(board),
            started: AtomicU64::new(0),
            failed: Mutex::default(),
        }
    }

    /// Notes that an exchange begins.
    pub fn begin(&self) {
        self.started.fetch_add(1, Relaxed);
    }

    /// An error of the group.
    pub fn error(&self, rank: usize, what: impl Into<String>) -> Error {
        Error::Comm { rank, world: self.world, what: what.into() }
    }

    /// Whether no rank is known to have failed, without a wait.
    pub fn check(&self) -> Result<()> {
        lock(&self.board).check()
    }

    /// The error of the group, once there is one.
    pub fn failed(&self) -> Option<Error> {
        let failed = lock(&self.failed);
        failed.as_ref().map(|(rank, what)| self.error(*rank, what.as_str()))
    }

    /// Keeps the first reason.
    pub fn fail(&self, error: Error) {
        let (rank, what) = match error {
            Error::Comm { rank, what, .. } => (rank, what),
            other => (self.rank, other.to_string()),
        };
        lock(&self.failed).get_or_insert((rank, what));
    }

    /// Asks who is still there, as an exchange has not ended for as long as ranks are waited for: who is
    /// missing, or behind.
    pub fn call(&self, what: &str) -> Error {
        let board = lock(&self.board);
        let reached = self.started.load(Relaxed);
        let counts = match roll(board.as_ref(), reached % MOST_COUNTED) {
            Err(error) => return error,
            Ok(counts) => counts,
        };
        let last = counts.iter().enumerate().min_by_key(|(_, count)| **count).map_or(0, |(rank, _)| rank);
        let what = match counts.iter().all(|count| *count == counts[0]) {
            true => format!(
                "{what}: no end of exchange {reached} within {:?}, which all ranks have begun",
                self.patience
            ),
            false => {
                format!("it is at exchange {}, rank {} at {}", counts[last], self.rank, counts[self.rank])
            }
        };
        self.error(last, what)
    }
}

/// A number below 2^24 of each rank, on the board.
pub(crate) fn roll(board: &dyn Board, own: u64) -> Result<Vec<u64>> {
    let (rank, world) = (board.rank(), board.world());
    let mut numbers = vec![0.0; world];
    numbers[rank] = own as f32;
    let columns: Vec<Range<usize>> = (0..world).map(|rank| rank..rank + 1).collect();
    board.all_gather(&mut numbers, world, &columns)?;
    Ok(numbers.iter().map(|number| *number as u64).collect())
}
