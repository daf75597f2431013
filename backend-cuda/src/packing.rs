//! Time that a device's weights took to be packed after they were loaded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sum of times.
#[derive(Debug, Default)]
pub(crate) struct Packing(AtomicU64);

impl Packing {
    /// Adds one weight's.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn so_far(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
