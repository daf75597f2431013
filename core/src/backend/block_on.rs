//! Waiting for a read without an executor.

use crate::{Error, Result};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future of this crate to its end on this thread, for backends whose waits block inside the poll.
///
/// # Errors
/// `Internal` when the future is still pending: then it needs an executor (the browser's).
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => Err(Error::internal("a read was awaited without an executor")),
    }
}
