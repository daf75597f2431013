//! Waiting on a thread for what an async task would be woken for.

use crate::sync::thread;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// How often a wait looks whether it is to go on.
#[cfg(feature = "speech")]
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

/// As [`wait`], at the longest until `ended`.
#[cfg(feature = "speech")]
pub(crate) fn wait_unless<T>(
    ended: impl Fn() -> bool,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(value) => return Some(value),
            Poll::Pending if ended() => return None,
            Poll::Pending => std::thread::park_timeout(LOOK),
        }
    }
}

/// Polls until there is a value; this thread sleeps meanwhile. Works inside of any runtime, which it blocks.
pub(crate) fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(value) => return value,
            // A wake-up between the poll and this makes it return at once; one without a reason polls once
            // more.
            Poll::Pending => thread::park(),
        }
    }
}
