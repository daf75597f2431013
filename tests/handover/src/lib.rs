//! The protocol between callers and an engine's thread, scheduled by shuttle.
//!
//! [`protocol`] and `wait` are the library's own sources, compiled over [`sync`], whose channels and
//! threads shuttle schedules: between any two operations any thread may go on. The engine is a toy here: a
//! request is a number of tokens, a step brings one to every request. Tests run callers that read, leave or
//! come late against a thread that works, ends or fails, in thousands of schedules: random ones, and ones
//! with few switches at chosen points, which finds what needs a certain order of few events.

#[path = "../../../engraft/src/handle/protocol.rs"]
pub mod protocol;
pub mod sync;
#[path = "../../../engraft/src/wait.rs"]
#[allow(dead_code, missing_docs)]
mod wait;

use protocol::{Clients, Line, Message, Said, Submitter, Work};
use std::collections::BTreeMap;
use sync::Receiver;

/// What is said of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A token, by its place.
    Token(u32),
    /// All of them were said.
    Finished,
    /// The engine failed.
    Failed,
    /// The thread has ended.
    Gone,
}

impl Said for Event {
    fn is_last(&self) -> bool {
        !matches!(self, Event::Token(_))
    }

    fn gone() -> Self {
        Event::Gone
    }
}

/// A caller's end: a request is its number of tokens; a call says how many messages were taken before it.
pub type Near = Submitter<u32, Event, sync::Sender<usize>>;
/// A caller's end of a request.
pub type Events = Line<u32, Event, sync::Sender<usize>>;
type Post = Message<u32, Event, sync::Sender<usize>>;

/// What the thread does at its end, whatever else it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It works until nobody is left.
    Works,
    /// The step of this number fails: all requests end, as all that come later.
    Fails(usize),
    /// It ends without a word before the step of this number.
    Ends(usize),
}

/// The thread's side: an engine whose step brings a token to every request.
#[derive(Debug)]
pub struct Toy {
    clients: Clients<Event, u32>,
    /// Tokens said so far, by number.
    said: BTreeMap<u64, u32>,
    taken: usize,
    steps: usize,
    broken: bool,
    fate: Fate,
}

impl Toy {
    /// An engine with this end.
    pub fn new(fate: Fate) -> Self {
        Self { clients: Clients::default(), said: BTreeMap::new(), taken: 0, steps: 0, broken: false, fate }
    }

    /// Requests that it still runs.
    pub fn running(&self) -> usize {
        self.said.len().max(self.clients.numbers().count())
    }

    fn deliver(&mut self, id: u64) {
        let Some(client) = self.clients.get(id) else { return };
        let (said, wanted) = (self.said.get(&id).copied().unwrap_or(0), client.data);
        let listening = said >= wanted || client.say(Event::Token(said));
        self.said.insert(id, said + 1);
        if said + 1 < wanted && listening {
            return;
        }
        self.said.remove(&id);
        if let Some(client) = self.clients.take(id).filter(|_| listening) {
            client.end(Event::Finished);
        }
    }
}

impl Work for Toy {
    type Message = Post;

    fn is_idle(&self) -> bool {
        self.broken || self.said.is_empty()
    }

    fn take(&mut self, message: Post) {
        self.taken += 1;
        match message {
            Message::Submit { lines, .. } if self.broken => {
                for (_, events) in lines {
                    let _ = events.unbounded_send(Event::Failed);
                }
            }
            Message::Submit { request, lines } => {
                for (key, events) in lines {
                    // Its own numbers, as an engine has.
                    let id = 1000 + key;
                    self.clients.open(id, key, events, request);
                    self.said.insert(id, 0);
                }
            }
            Message::Cancel { key } => {
                if let Some(id) = self.clients.cancel(key) {
                    self.said.remove(&id);
                }
            }
            Message::Call(reply) => {
                let _ = reply.send(self.taken);
            }
        }
    }

    fn step(&mut self) {
        let numbers: Vec<u64> = self.said.keys().copied().collect();
        if self.broken || numbers.is_empty() {
            return;
        }
        self.steps += 1;
        if self.fate == Fate::Fails(self.steps) {
            self.broken = true;
            self.said.clear();
            for id in numbers {
                self.clients.take(id).into_iter().for_each(|client| client.end(Event::Failed));
            }
            return;
        }
        numbers.into_iter().for_each(|id| self.deliver(id));
    }
}

/// The thread: serves until its end; requests that it was still running then.
pub fn work(fate: Fate, inbox: &Receiver<Post>) -> usize {
    let mut toy = Toy::new(fate);
    if let Fate::Ends(step) = fate {
        // As a thread that unwinds: what it has is dropped in the middle of its work.
        while toy.steps < step {
            match inbox.recv() {
                Ok(message) => toy.take(message),
                Err(_) => return toy.running(),
            }
            toy.step();
        }
        return 0;
    }
    protocol::serve(&mut toy, inbox);
    toy.running()
}

/// All events of a request, waiting for each as the library's iterators do.
pub fn all(events: &mut Events) -> Vec<Event> {
    let mut seen = Vec::new();
    while let Some(event) = wait::wait(|context| events.poll(context)) {
        seen.push(event);
    }
    seen
}

/// The next event.
pub fn next(events: &mut Events) -> Option<Event> {
    wait::wait(|context| events.poll(context))
}
