//! Time that a thread has spent on a core: what a figure "per core" is made of on a machine with neighbours.

use std::time::Instant;

/// A stopwatch.
pub struct Clock {
    wall: Instant,
    core: Option<u64>,
}

/// Nanoseconds this thread has run, as Linux counts them.
fn core() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

impl Clock {
    /// Starts it.
    pub fn start() -> Self {
        Clock { wall: Instant::now(), core: core() }
    }

    /// Seconds on the core since then; by the wall clock where the system does not tell.
    pub fn seconds(&self) -> f64 {
        match (self.core, core()) {
            (Some(start), Some(now)) => (now - start) as f64 / 1e9,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}
