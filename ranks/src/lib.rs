//! Ranks that share a model: their rendezvous, and the threads that run them.
//!
//! [`ThreadBoard`] is a rendezvous of threads in host memory. [`spawn`] gives a model to several threads,
//! one rank each, of which the calling one has the engine; the others follow its orders. No backend is named
//! here: what a rank runs on is the caller's business.

mod board;
mod threads;

pub use board::ThreadBoard;
pub use threads::{Load, spawn};
