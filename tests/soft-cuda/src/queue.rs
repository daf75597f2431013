//! What has been submitted and not been done, as a graph of operations; and the loop that does it.
//!
//! An operation runs when all it depends on has run, and not before the [`Order`] in force lets it.
//! Dependencies are edges between tickets: the stream's previous operation, an event's record, the legacy
//! stream's rules ([`crate::stream`]), edges of a graph. So "what may run now" is exactly what a real device
//! may run now, and every rule picks among that.
//!
//! Nothing runs by itself. Work is done by the thread that waits for it (or submits it, under `Eager` and
//! `Seeded`), which is one of the behaviours that a real device may show. Only functions of the program get a
//! thread of their own.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use parking_lot::MutexGuard;

use crate::code::{Code, Result};
use crate::fault;
use crate::hazard::{Access, Hazards};
use crate::order::{Coins, Order};
use crate::state::{Driver, Held, Id};
use crate::work::{self, HostCall, Work};

/// An operation's number; later ones are larger.
pub type Ticket = u64;

/// Operations that may wait before the submitter has to help, as a full hardware queue makes it.
const DEPTH: usize = 4096;

thread_local! {
    /// This thread is inside a host function that the driver called.
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct Pending {
    work: Work,
    context: Id,
    missing: usize,
    dependents: Vec<Ticket>,
}

/// The operations to be done.
#[derive(Debug)]
pub struct Queue {
    pending: BTreeMap<Ticket, Pending>,
    ready: BTreeSet<Ticket>,
    next: Ticket,
    coins: Coins,
    /// What operations touch without order.
    pub hazards: Hazards,
}

impl Default for Queue {
    fn default() -> Self {
        let (pending, ready, hazards) = (BTreeMap::new(), BTreeSet::new(), Hazards::default());
        Queue { pending, ready, next: 1, coins: Coins::new(0), hazards }
    }
}

impl Queue {
    /// Starts the coins of a seeded order anew.
    pub fn seed(&mut self, seed: u64) {
        self.coins = Coins::new(seed);
    }

    /// The operation has run (or was dropped).
    pub fn done(&self, ticket: Ticket) -> bool {
        !self.pending.contains_key(&ticket)
    }

    /// Operations that wait.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Tickets of a context's operations.
    pub fn of_context(&self, context: Id) -> Vec<Ticket> {
        self.pending.iter().filter(|(_, p)| p.context == context).map(|(&t, _)| t).collect()
    }

    /// Puts an operation of a stream in, behind those it depends on.
    pub fn insert(&mut self, context: Id, stream: Id, work: Work, after: &[Ticket]) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.hazards.submitted(ticket, stream, after);
        let after: BTreeSet<Ticket> = after.iter().copied().filter(|&t| !self.done(t)).collect();
        for dependency in &after {
            if let Some(p) = self.pending.get_mut(dependency) {
                p.dependents.push(ticket);
            }
        }
        if after.is_empty() {
            self.ready.insert(ticket);
        }
        let missing = after.len();
        self.pending.insert(ticket, Pending { work, context, missing, dependents: Vec::new() });
        ticket
    }

    /// The targets and all that they depend on, as far as it has not run.
    fn needed(&self, targets: &[Ticket]) -> BTreeSet<Ticket> {
        // Dependencies are older than what depends on them: one pass over descending tickets marks them all.
        let mut needed: BTreeSet<Ticket> = targets.iter().copied().filter(|&t| !self.done(t)).collect();
        let Some(&latest) = needed.last() else { return needed };
        for (&ticket, p) in self.pending.range(..latest).rev() {
            if p.dependents.iter().any(|t| needed.contains(t)) {
                needed.insert(ticket);
            }
        }
        needed
    }

    fn pick(&mut self, order: Order, needed: &BTreeSet<Ticket>) -> Option<Ticket> {
        let wanted = |q: &Queue| q.ready.iter().rev().find(|t| needed.contains(t)).copied();
        match order {
            Order::Eager | Order::Latest => wanted(self),
            Order::OthersFirst => {
                self.ready.iter().rev().find(|t| !needed.contains(t)).copied().or_else(|| wanted(self))
            }
            Order::Seeded(_) => self.any(),
            Order::Never => None,
        }
    }

    fn any(&mut self) -> Option<Ticket> {
        let at = self.coins.below(self.ready.len());
        self.ready.iter().nth(at).copied()
    }

    fn finish(&mut self, ticket: Ticket) {
        self.ready.remove(&ticket);
        self.hazards.finished(ticket);
        let Some(gone) = self.pending.remove(&ticket) else { return };
        for dependent in gone.dependents {
            if let Some(p) = self.pending.get_mut(&dependent) {
                p.missing -= 1;
                if p.missing == 0 {
                    self.ready.insert(dependent);
                }
            }
        }
    }

    /// Forgets a context's operations; what depends on them may go on.
    pub fn drop_context(&mut self, context: Id) {
        for ticket in self.of_context(context) {
            self.finish(ticket);
        }
    }
}

/// Runs what the order in force does not leave for later; whoever has submitted something calls this when its
/// bookkeeping is consistent, since running may open the lock.
pub fn pump(d: &mut Held) {
    let order = d.settings.order;
    match order {
        Order::Eager => while d.queue.ready.first().copied().is_some_and(|t| run(d, t)) {},
        Order::Seeded(_) if d.queue.coins.below(3) == 0 => {
            for _ in 0..=d.queue.coins.below(3) {
                if let Some(t) = d.queue.any() {
                    run(d, t);
                }
            }
        }
        _ => {}
    }
    while d.queue.len() > DEPTH && order != Order::Never {
        let Some(&oldest) = d.queue.ready.first() else { break };
        run(d, oldest);
    }
}

/// Runs what the order in force picks until the targets are done.
pub fn wait(d: &mut Held, targets: &[Ticket]) {
    let needed = d.queue.needed(targets);
    while targets.iter().any(|&t| !d.queue.done(t)) {
        let order = d.settings.order;
        match d.queue.pick(order, &needed) {
            Some(ticket) => {
                run(d, ticket);
            }
            // All that is left runs on other threads (host functions): wait for one to return.
            None => d.returned.wait(d),
        }
    }
    d.queue.hazards.learn(targets);
}

/// Runs one step towards the targets: what a question about them gives them time for.
pub fn advance(d: &mut Held, targets: &[Ticket]) {
    let needed = d.queue.needed(targets);
    let order = d.settings.order;
    if !needed.is_empty()
        && let Some(ticket) = d.queue.pick(order, &needed)
    {
        run(d, ticket);
    }
}

/// Waits for everything there is.
pub fn wait_all(d: &mut Held) {
    let all: Vec<Ticket> = d.queue.pending.keys().copied().collect();
    wait(d, &all);
    d.queue.hazards.learn_all();
}

/// Waits for everything of a context, then answers with its health.
pub fn finish_context(d: &mut Held, context: Id) -> Result {
    let all = d.queue.of_context(context);
    wait(d, &all);
    d.queue.hazards.learn_all();
    d.healthy(context).map(|_| ())
}

/// Runs one ready operation (starts it, if it is a host function); true when it was there to run.
fn run(d: &mut Held, ticket: Ticket) -> bool {
    if !d.queue.ready.remove(&ticket) {
        return false;
    }
    let Some(p) = d.queue.pending.get_mut(&ticket) else { return false };
    let (context, work) = (p.context, std::mem::replace(&mut p.work, Work::Nothing));
    let poisoned = d.healthy(context).err();
    match (work, poisoned) {
        (Work::Call(call), poisoned) => {
            call_host(d, ticket, call, poisoned);
            return true;
        }
        // Records complete whatever happened before them: waiting for them must end.
        (Work::Record(event), _) => crate::event::complete(d, event, ticket),
        (_, Some(_)) => {}
        (work, None) => {
            let done = work::perform(d, &work).and_then(|touched| race(d, ticket, &work, touched));
            if let Err((code, text)) = done {
                fault::poison(d, context, code, text);
            }
        }
    }
    d.queue.finish(ticket);
    true
}

/// Refuses what an operation has touched without order.
fn race(
    d: &mut Held,
    ticket: Ticket,
    work: &Work,
    touched: Vec<Access>,
) -> std::result::Result<(), work::Failure> {
    match d.queue.hazards.touched(ticket, work.name(), touched) {
        Some(text) => Err((Code::LAUNCH_FAILED, text)),
        None => Ok(()),
    }
}

/// Calls a function of the program on a thread of the driver's, as real drivers do: it may wait for whoever
/// is waiting here.
fn call_host(d: &mut Held, ticket: Ticket, call: HostCall, poisoned: Option<Code>) {
    let (driver, returned) = (MutexGuard::mutex(d), d.returned);
    let body = move || {
        as_host_function(|| call.call(poisoned));
        let mut d = driver.lock();
        d.queue.finish(ticket);
        // The function may tell the program, which goes on behind what came before it.
        d.queue.hazards.learn(&[ticket]);
        drop(d);
        returned.notify_all();
    };
    if std::thread::Builder::new().name("host function".into()).spawn(body).is_err() {
        // No thread to be had: the caller's own has to do.
        MutexGuard::unlocked(d, body);
    }
}

/// Calls a function of the program, which may not call the driver.
pub fn as_host_function<T>(function: impl FnOnce() -> T) -> T {
    let outer = CALLED.replace(true);
    let result = function();
    CALLED.set(outer);
    result
}

/// The calling thread is inside a host function: it may not call the driver.
pub fn inside_host_function() -> bool {
    CALLED.get()
}

impl Driver {
    /// The calling thread's context is healthy after a wait.
    pub fn settled(&self, context: Id) -> Result {
        self.healthy(context).map(|_| ())
    }
}
