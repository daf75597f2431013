//! The protocol between callers and the thread that owns an engine: who says what, and when a request has
//! ended.
//!
//! [`Submitter`] is the callers' end, [`Line`] their end of one request, [`Clients`] the thread's end of all
//! requests, [`serve`] the thread's loop. There is no engine here, nor anything that is said of a request but
//! whether it is the last.
//!
//! The invariant: whoever holds a line sees the last event exactly once, whatever the thread does, unless it
//! drops the line before; the thread learns of that, and ends once every submitter and every line is gone.
//!
//! That has to hold in every order in which threads may run. Channels are therefore taken from `crate::sync`,
//! and this file names nothing else of the library: `tests/handover` compiles the very same text over
//! channels and threads that `shuttle` schedules. Channels as type parameters would show in every type here
//! and up to the handle's; a second implementation behind a feature would be another text.

use crate::sync::{
    AtomicU64, Ordering, Receiver, Sender, TryRecvError, UnboundedReceiver, UnboundedSender, channel,
    unbounded,
};
use futures_core::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// What callers say to the thread: requests `R`, of which events `E` are heard, and calls `C` of other kinds.
#[derive(Debug)]
pub enum Message<R, E, C> {
    /// A request, of which there may be several continuations.
    Submit {
        /// What is asked.
        request: R,
        /// Of every continuation a key that no other one has, and where its events go.
        lines: Vec<(u64, UnboundedSender<E>)>,
    },
    /// Nobody listens to a continuation any more.
    Cancel {
        /// Its key.
        key: u64,
    },
    /// Anything else.
    Call(C),
}

/// What is said of a request.
pub trait Said {
    /// Whether nothing follows.
    fn is_last(&self) -> bool;
    /// The last event of a request whose thread has ended without one.
    fn gone() -> Self;
}

/// The thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// The callers' end; clones share it.
#[derive(Debug)]
pub struct Submitter<R, E, C> {
    messages: Sender<Message<R, E, C>>,
    keys: Arc<AtomicU64>,
}

impl<R, E, C> Clone for Submitter<R, E, C> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), keys: self.keys.clone() }
    }
}

impl<R, E: Said, C> Submitter<R, E, C> {
    /// A submitter, and what the thread reads.
    pub fn new() -> (Self, Receiver<Message<R, E, C>>) {
        let (messages, inbox) = channel();
        (Self { messages, keys: Arc::new(AtomicU64::new(0)) }, inbox)
    }

    /// Keys for so many continuations: the first, which the others follow.
    pub fn keys(&self, count: usize) -> u64 {
        self.keys.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// Hands in `count` continuations of a request, under keys of their own from `first` on.
    pub fn submit(&self, first: u64, count: usize, request: R) -> Result<Vec<Line<R, E, C>>, Gone> {
        let keys = first..first + count as u64;
        let (mut lines, mut ends) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for key in keys {
            let (events, received) = unbounded();
            lines.push((key, events));
            ends.push((key, received));
        }
        self.messages.send(Message::Submit { request, lines }).map_err(|_| Gone)?;
        let line = |(key, events)| Line { key, events, submitter: self.clone(), open: true };
        Ok(ends.into_iter().map(line).collect())
    }

    /// Hands something else in.
    pub fn call(&self, call: C) -> Result<(), Gone> {
        self.messages.send(Message::Call(call)).map_err(|_| Gone)
    }
}

/// The events of one request; dropping it before the last one cancels the request.
#[derive(Debug)]
pub struct Line<R, E, C> {
    key: u64,
    events: UnboundedReceiver<E>,
    submitter: Submitter<R, E, C>,
    open: bool,
}

impl<R, E: Said, C> Line<R, E, C> {
    /// The request's key.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// What it was handed in by: its key means nothing to any other one.
    pub fn submitter(&self) -> &Submitter<R, E, C> {
        &self.submitter
    }

    /// The next event, or the promise to wake `context`'s task when there is one; none behind the last.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<E>> {
        if !self.open {
            return Poll::Ready(None);
        }
        let event = ready!(Pin::new(&mut self.events).poll_next(context)).unwrap_or_else(E::gone);
        self.open = !event.is_last();
        Poll::Ready(Some(event))
    }
}

impl<R, E, C> Drop for Line<R, E, C> {
    fn drop(&mut self) {
        if self.open {
            // A thread that is gone has nothing to cancel.
            let _ = self.submitter.messages.send(Message::Cancel { key: self.key });
        }
    }
}

/// A request that somebody may listen to; `T` is what the thread keeps of it.
#[derive(Debug)]
pub struct Client<E, T> {
    key: u64,
    events: UnboundedSender<E>,
    /// The thread's.
    pub data: T,
}

impl<E, T> Client<E, T> {
    /// Its key.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Says something that is not the last event; whether anybody listens.
    pub fn say(&self, event: E) -> bool {
        self.events.unbounded_send(event).is_ok()
    }

    /// Says the last event.
    pub fn end(self, event: E) {
        let _ = self.events.unbounded_send(event);
    }
}

/// The thread's end of all requests, by the thread's own numbers.
#[derive(Debug)]
pub struct Clients<E, T> {
    clients: BTreeMap<u64, Client<E, T>>,
    numbers: BTreeMap<u64, u64>,
}

impl<E, T> Default for Clients<E, T> {
    fn default() -> Self {
        Self { clients: BTreeMap::new(), numbers: BTreeMap::new() }
    }
}

impl<E, T> Clients<E, T> {
    /// Remembers a request as number `id`.
    pub fn open(&mut self, id: u64, key: u64, events: UnboundedSender<E>, data: T) {
        self.numbers.insert(key, id);
        self.clients.insert(id, Client { key, events, data });
    }

    /// The number of a request by its key, unless it has ended.
    pub fn number(&self, key: u64) -> Option<u64> {
        self.numbers.get(&key).copied()
    }

    /// A request that has not ended.
    pub fn get(&self, id: u64) -> Option<&Client<E, T>> {
        self.clients.get(&id)
    }

    /// Takes a request out, to say its last event.
    pub fn take(&mut self, id: u64) -> Option<Client<E, T>> {
        let client = self.clients.remove(&id)?;
        self.numbers.remove(&client.key);
        Some(client)
    }

    /// Forgets a request to which nobody listens any more; its number, unless it has ended.
    pub fn cancel(&mut self, key: u64) -> Option<u64> {
        let id = self.numbers.remove(&key)?;
        self.clients.remove(&id).map(|_| id)
    }

    /// Numbers of the requests that have not ended.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.clients.keys().copied()
    }
}

/// What the thread does.
pub trait Work {
    /// What it is told.
    type Message;
    /// Whether there is nothing to do until it is told something.
    fn is_idle(&self) -> bool;
    /// Is told something.
    fn take(&mut self, message: Self::Message);
    /// Does a part of what there is to do.
    fn step(&mut self);
}

/// Messages that are taken before the next step at most: whoever goes on asking does not keep others waiting.
const TAKEN: usize = 64;

/// Works until every submitter and every line is gone; sleeps while there is nothing to do.
pub fn serve<W: Work>(work: &mut W, inbox: &Receiver<W::Message>) {
    loop {
        if work.is_idle() {
            match inbox.recv() {
                Ok(message) => work.take(message),
                Err(_) => return,
            }
        }
        for _ in 0..TAKEN {
            match inbox.try_recv() {
                Ok(message) => work.take(message),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        work.step();
    }
}
