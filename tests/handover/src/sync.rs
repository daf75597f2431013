//! What `engraft/src/sync.rs` names, over shuttle's locks and threads: every operation is a point where
//! another thread may go on.
//!
//! Two channels are modelled by what their documentation promises, and by one thing that the library's thread
//! relies on without such a promise: a receiver of the standard library that goes drops what is left in the
//! channel, though senders are still there. Shuttle's own channel keeps it, and a caller whose request lies
//! in it would wait for ever. A test beside the original holds the standard library to it.

use futures_core::Stream;
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub use shuttle::sync::atomic::{AtomicU64, Ordering};
pub use shuttle::thread;
pub use std::sync::mpsc::{RecvError, SendError, TryRecvError};

/// What both ends of a channel share.
#[derive(Debug)]
struct Queue<T> {
    messages: VecDeque<T>,
    senders: usize,
    heard: bool,
}

/// As the standard library's.
#[derive(Debug)]
pub struct Sender<T>(Arc<(Mutex<Queue<T>>, Condvar)>);

/// As the standard library's.
#[derive(Debug)]
pub struct Receiver<T>(Arc<(Mutex<Queue<T>>, Condvar)>);

/// As the standard library's.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let queue = Queue { messages: VecDeque::new(), senders: 1, heard: true };
    let shared = Arc::new((Mutex::new(queue), Condvar::new()));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// As the standard library's.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut queue = lock(&self.0.0);
        if !queue.heard {
            return Err(SendError(message));
        }
        queue.messages.push_back(message);
        self.0.1.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0.0).senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        lock(&self.0.0).senders -= 1;
        self.0.1.notify_one();
    }
}

impl<T> Receiver<T> {
    /// As the standard library's.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut queue = lock(&self.0.0);
        loop {
            match queue.messages.pop_front() {
                Some(message) => return Ok(message),
                None if queue.senders == 0 => return Err(RecvError),
                None => queue = self.0.1.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        }
    }

    /// As the standard library's.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut queue = lock(&self.0.0);
        match queue.messages.pop_front() {
            Some(message) => Ok(message),
            None if queue.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.0);
        queue.heard = false;
        let left = std::mem::take(&mut queue.messages);
        drop(queue);
        // Messages may have ends of this very channel in them.
        drop(left);
    }
}

/// What both ends of a channel share that a task waits on: order, an end once all senders are gone and all is
/// read, a wake-up for either, and a sender that learns of a receiver that is gone.
#[derive(Debug)]
struct Shared<T> {
    queue: VecDeque<T>,
    waker: Option<Waker>,
    senders: usize,
    heard: bool,
}

/// As that of `futures_channel`.
#[derive(Debug)]
pub struct UnboundedSender<T>(Arc<Mutex<Shared<T>>>);

/// As that of `futures_channel`.
#[derive(Debug)]
pub struct UnboundedReceiver<T>(Arc<Mutex<Shared<T>>>);

/// A channel without a bound.
pub fn unbounded<T>() -> (UnboundedSender<T>, UnboundedReceiver<T>) {
    let shared = Shared { queue: VecDeque::new(), waker: None, senders: 1, heard: true };
    let shared = Arc::new(Mutex::new(shared));
    (UnboundedSender(shared.clone()), UnboundedReceiver(shared))
}

impl<T> UnboundedSender<T> {
    /// Sends, unless nobody can receive it any more.
    pub fn unbounded_send(&self, value: T) -> Result<(), T> {
        let mut shared = lock(&self.0);
        if !shared.heard {
            return Err(value);
        }
        shared.queue.push_back(value);
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

impl<T> Drop for UnboundedSender<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.0);
        shared.senders -= 1;
        let waker = shared.waker.take();
        drop(shared);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Stream for UnboundedReceiver<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = lock(&self.0);
        match shared.queue.pop_front() {
            Some(value) => Poll::Ready(Some(value)),
            None if shared.senders == 0 => Poll::Ready(None),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for UnboundedReceiver<T> {
    fn drop(&mut self) {
        lock(&self.0).heard = false;
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
