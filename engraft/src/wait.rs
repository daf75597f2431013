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

/// Wakes the calling thread.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Unpark(thread::current())))
}

/// Polls until there is a value; this thread sleeps meanwhile. Works inside of any runtime, which it blocks.
pub(crate) fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = waker();
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
