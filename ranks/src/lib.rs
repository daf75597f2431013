//! Ranks that share a model: their rendezvous, and the threads or processes that run them.
//!
//! [`ThreadBoard`] is a rendezvous of threads in host memory. [`spawn`] gives a model to several threads,
//! one rank each, of which the calling one has the engine; the others follow its orders. [`lead`] and
//! [`follow`] do so with a process for each rank, on one machine or several. No backend is named here: what a
//! rank runs on is the caller's business.

#![cfg_attr(not(unix), allow(dead_code, reason = "threads need less than processes"))]

mod board;
mod exchange;
mod fate;
#[cfg(unix)]
mod link;
#[cfg(unix)]
mod linked;
#[cfg(unix)]
mod mapped;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
mod rendezvous;
#[cfg(all(test, unix))]
mod rendezvous_tests;
mod threads;
#[cfg(unix)]
mod watch;
#[cfg(unix)]
mod wire;

pub use board::ThreadBoard;
#[cfg(unix)]
pub use link::Meeting;
#[cfg(unix)]
pub use place::Place;
#[cfg(unix)]
pub use processes::{follow, lead};
pub use threads::{Load, spawn};
