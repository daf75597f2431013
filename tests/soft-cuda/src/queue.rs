//! What has been submitted and not been done, as a graph of operations; and the loop that does it.
//!
//! An operation runs when all it depends on has run, and not before the [`Order`] in force lets it.
//! Dependencies are edges between tickets: the stream's previous operation, an event's record, the legacy
//! stream's rules ([`crate::stream`]), edges of a graph. So "what may run now" is exactly what a real device
//! may run now, and every rule picks among that.
//!
//! Nothing runs by itself. Work is done by the thread that waits for it (or submits it, under `Eager` and
//! `Seeded`), which is one of the behaviours that a real device may show. Only functions of the program get a
//! thread of their own. One that does not return soon may wait for what other streams do, as a collective
//! does: a device would do it meanwhile, so whoever waits runs that, too.
//!
//! A kernel that waits for another one is set aside ([`Aside`]) and goes on when others have run. Where none
//! can go on and no thread of the program has come with more work, that is a deadlock, and said to be one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use ptx_vm::{Aside, Company, Step};

use crate::called::as_host_function;
use crate::code::{Code, Result};
use crate::fault;
use crate::hazard::{self, Hazards};
use crate::order::{Coins, Order};
use crate::print;
use crate::state::{self, Driver, Held, Id};
use crate::work::{self, HostCall, KernelWork, Work};

/// An operation's number; later ones are larger.
pub type Ticket = u64;

/// Operations that may wait before the submitter has to help, as a full hardware queue makes it.
const DEPTH: usize = 4096;

/// How long a thread sleeps at most before it looks whether others have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long a function of the program runs before it may wait for what other streams do.
const SOON: Duration = Duration::from_millis(2);

/// How long nothing stirs before kernels that wait look again for the first time.
const LOOK_SOON: Duration = Duration::from_millis(5);

/// Warp instructions for which a kernel that looks again goes on although it finds nothing new.
const INSIST: u64 = 100_000;

/// How long nothing stirs before it counts that all threads sleep: another one may be about to make its first
/// call.
const SLEEP_COUNTS: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Pending {
    work: Work,
    context: Id,
    missing: usize,
    dependents: Vec<Ticket>,
}

/// A kernel that waits for another one.
#[derive(Debug)]
struct Waiting {
    kernel: Box<KernelWork>,
    aside: Box<Aside>,
    /// [`Queue::stirs`] when it was last looked at.
    seen: u64,
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
    /// Kernels that wait for others.
    aside: BTreeMap<Ticket, Waiting>,
    /// What kernels share that are under way at once.
    pub company: Company,
    /// Grows with everything that such a kernel may have waited for.
    stirs: u64,
    /// When something last came or moved.
    stirred: Instant,
    /// When all kernels that wait have looked again since.
    looked: Option<Instant>,
    /// What a kernel ran into while others waited, perhaps for it.
    failed: Option<String>,
    /// Functions of the program that run, and since when.
    calls: BTreeMap<Ticket, Instant>,
    /// What the threads wait for that can do nothing themselves.
    sleepers: BTreeMap<u64, Vec<Ticket>>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            pending: BTreeMap::new(),
            ready: BTreeSet::new(),
            next: 1,
            coins: Coins::new(0),
            hazards: Hazards::default(),
            aside: BTreeMap::new(),
            company: Company::default(),
            stirs: 0,
            stirred: Instant::now(),
            looked: None,
            failed: None,
            calls: BTreeMap::new(),
            sleepers: BTreeMap::new(),
        }
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

    /// A kernel that waits to run in a context uses its heap.
    pub fn uses_heap(&self, context: Id) -> bool {
        let heap = |work: &Work| matches!(work, Work::Kernel(kernel) if kernel.heap);
        self.pending.values().any(|p| p.context == context && heap(&p.work))
    }

    /// Puts an operation of a stream in, behind those it depends on.
    pub fn insert(&mut self, context: Id, stream: Id, work: Work, after: &[Ticket]) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        (self.stirred, self.looked) = (Instant::now(), None);
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
        self.hazards.pass_on(ticket, &gone.dependents);
        for dependent in gone.dependents {
            if let Some(p) = self.pending.get_mut(&dependent) {
                p.missing -= 1;
                if p.missing == 0 {
                    self.ready.insert(dependent);
                }
            }
        }
    }

    /// Something has moved, by which kernels that wait may go on.
    fn stir(&mut self) {
        self.stirs += 1;
        (self.stirred, self.looked) = (Instant::now(), None);
    }

    /// Whether it is time that kernels that wait look again although nothing has stirred.
    fn due(&self) -> bool {
        match self.looked {
            Some(last) => last.elapsed() >= LOOK_AGAIN,
            None => self.stirred.elapsed() >= LOOK_SOON,
        }
    }

    /// Whether a function of the program runs that may wait for what other streams do.
    fn call_lasts(&self) -> bool {
        self.calls.values().any(|since| since.elapsed() >= SOON)
    }

    /// Whether every thread of the program that is known here waits for what does not come, the caller among
    /// them, and has for a while.
    fn all_asleep(&self) -> bool {
        let stuck = |targets: &&Vec<Ticket>| targets.iter().any(|&t| !self.done(t));
        self.stirred.elapsed() >= SLEEP_COUNTS
            && self.sleepers.values().filter(stuck).count() >= state::threads()
    }
}

/// Forgets a context's operations; what depends on them may go on.
pub fn drop_context(d: &mut Driver, context: Id) {
    for ticket in d.queue.of_context(context) {
        give_up(d, ticket);
    }
}

/// Ends an operation that will not run, or not run on.
fn give_up(d: &mut Driver, ticket: Ticket) {
    let Driver { queue, memory, .. } = d;
    if let Some(waiting) = queue.aside.remove(&ticket) {
        queue.company.abandon(waiting.aside, memory);
    }
    queue.finish(ticket);
}

/// Runs what the order in force does not leave for later; whoever has submitted something calls this when its
/// bookkeeping is consistent, since running may open the lock.
pub fn pump(d: &mut Held) {
    let order = d.settings.order;
    match order {
        Order::Eager => loop {
            while d.queue.ready.first().copied().is_some_and(|t| run(d, t)) {}
            if !resume(d) {
                break;
            }
        },
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
    wake(d);
}

/// Threads that could do nothing may find something now.
fn wake(d: &Held) {
    if !d.queue.sleepers.is_empty() {
        d.returned.notify_all();
    }
}

/// Runs what the order in force picks until the targets are done.
pub fn wait(d: &mut Held, targets: &[Ticket]) {
    state::enter();
    let needed = d.queue.needed(targets);
    while targets.iter().any(|&t| !d.queue.done(t)) {
        let order = d.settings.order;
        match d.queue.pick(order, &needed) {
            Some(ticket) => {
                run(d, ticket);
            }
            None if order != Order::Never && others(d) => {}
            None => pause(d, targets),
        }
    }
    d.queue.hazards.learn(targets);
    wake(d);
}

/// Runs what kernels or functions of the program may wait for, if some wait; false where nothing could move.
fn others(d: &mut Held) -> bool {
    if d.queue.aside.is_empty() && !d.queue.call_lasts() {
        return false;
    }
    // What waits polls for nothing until others have run.
    d.queue.ready.last().copied().is_some_and(|ticket| run(d, ticket)) || resume(d)
}

/// Lets kernels go on that wait, as far as anything has moved since; whether one of them did.
fn resume(d: &mut Held) -> bool {
    let stirs = d.queue.stirs;
    let again = d.queue.aside.iter().filter(|(_, w)| w.seen != stirs).map(|(&t, _)| t).collect();
    go_on(d, again, 0)
}

/// Lets all kernels that wait look again although nothing has stirred, for so many instructions in vain: the
/// host may have written what they read, and what looks like a poll may end by itself. Whether one of them
/// moved.
fn look_again(d: &mut Held, instructions: u64) -> bool {
    let all = d.queue.aside.keys().copied().collect();
    let moved = go_on(d, all, instructions);
    if moved {
        wake(d);
    } else {
        d.queue.looked = Some(Instant::now());
    }
    moved
}

/// Goes on with kernels that wait; whether one of them moved. Behind the first one that moves because it
/// insists the others look again anyway.
fn go_on(d: &mut Held, tickets: Vec<Ticket>, insists: u64) -> bool {
    let mut moved = false;
    for ticket in tickets {
        if moved && insists > 0 {
            break;
        }
        let context = d.queue.pending.get(&ticket).map(|p| p.context);
        if context.is_none_or(|context| d.healthy(context).is_err()) {
            give_up(d, ticket);
            moved = true;
            continue;
        }
        let Some(Waiting { kernel, aside, .. }) = d.queue.aside.remove(&ticket) else { continue };
        let Driver { queue, memory, .. } = &mut **d;
        let step = queue.company.insist(aside, memory, insists);
        moved |= went(d, ticket, kernel, step);
    }
    moved
}

/// Nothing is left for this thread to do: host functions may return, or other threads come with more.
fn pause(d: &mut Held, targets: &[Ticket]) {
    let (me, returned, patience) = (d.thread(), d.returned, d.settings.patience);
    if d.queue.aside.is_empty() || d.settings.order == Order::Never {
        match d.queue.calls.is_empty() {
            true => returned.wait(d),
            false => _ = returned.wait_for(d, SOON),
        }
        return;
    }
    if d.queue.due() && look_again(d, INSIST) {
        return;
    }
    let longest = if d.queue.looked.is_some() { LOOK_AGAIN } else { LOOK_SOON };
    d.queue.sleepers.insert(me, targets.to_vec());
    let over = d.queue.calls.is_empty() && d.queue.all_asleep() || {
        let left = patience.saturating_sub(d.queue.stirred.elapsed());
        // A thread that ends says nothing: then all others may be asleep.
        returned.wait_for(d, left.clamp(Duration::from_millis(1), longest));
        d.queue.calls.is_empty() && d.queue.stirred.elapsed() >= patience
    };
    d.queue.sleepers.remove(&me);
    if over && !d.queue.aside.is_empty() {
        deadlock(d);
    }
}

/// Gives up all kernels that wait, each with the words for all of them; unless one of them moves when it
/// insists as long as a kernel may that is alone.
fn deadlock(d: &mut Held) {
    let (returned, stirred) = (d.returned, d.queue.stirred);
    if look_again(d, ptx_vm::QUIET) {
        return;
    }
    // That took a while, in which a thread may have come with more work and found the driver locked.
    returned.wait_for(d, LOOK_AGAIN);
    if d.queue.stirred != stirred {
        return;
    }
    let words = |w: &Waiting| w.aside.why().map(ToString::to_string).unwrap_or_default();
    let all: Vec<(Ticket, String)> = d.queue.aside.iter().map(|(&t, w)| (t, words(w))).collect();
    for (ticket, own) in &all {
        let rest: Vec<&str> = all.iter().filter(|(t, _)| t != ticket).map(|(_, w)| w.as_str()).collect();
        let mut text = match rest.is_empty() {
            true => format!("{own}, and no other one is left"),
            false => format!("{own}; so does what it waits for: {}", rest.join("; ")),
        };
        if let Some(failed) = &d.queue.failed {
            text = format!("{text}; another kernel has failed meanwhile: {failed}");
        }
        let context = d.queue.pending.get(ticket).map(|p| p.context);
        give_up(d, *ticket);
        if let Some(context) = context {
            fault::poison(d, context, Code::LAUNCH_TIMEOUT, text);
        }
    }
    d.queue.failed = None;
    d.queue.stir();
    wake(d);
}

/// Runs one step towards the targets: what a question about them gives them time for.
pub fn advance(d: &mut Held, targets: &[Ticket]) {
    let needed = d.queue.needed(targets);
    let order = d.settings.order;
    if needed.is_empty() || order == Order::Never {
        return;
    }
    if let Some(ticket) = d.queue.pick(order, &needed) {
        run(d, ticket);
        wake(d);
        return;
    }
    let moves = others(d) || d.queue.aside.is_empty() || (d.queue.due() && look_again(d, INSIST));
    if !moves && d.queue.calls.is_empty() && d.queue.stirred.elapsed() >= d.settings.patience {
        deadlock(d);
    }
    wake(d);
}

/// Waits for everything there is.
pub fn wait_all(d: &mut Held) {
    let all: Vec<Ticket> = d.queue.pending.keys().copied().collect();
    wait(d, &all);
    d.queue.hazards.learn_all();
}

/// Runs what may run, although no thread waits for it; how many operations are left.
pub fn run_out(d: &mut Held, may: impl Fn(&Work) -> bool) -> usize {
    loop {
        let allowed = |t: &&Ticket| d.queue.pending.get(t).is_some_and(|p| may(&p.work));
        let next = d.queue.ready.iter().find(allowed).copied();
        let moved = match next {
            Some(ticket) => run(d, ticket),
            None => resume(d) || look_again(d, ptx_vm::QUIET),
        };
        if !moved {
            return d.queue.len();
        }
    }
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
        // It is not done, and may still be what the context failed for: the other party of a race.
        (work, Some(_)) => {
            let touched = work::touches(d, &work);
            let races = d.queue.hazards.touched(ticket, work.name(), touched, None);
            wrong(d, context, None, races);
        }
        (Work::Kernel(kernel), None) => {
            let standing = d.queue.hazards.standing(ticket);
            match work::begin(d, &kernel, standing) {
                Ok(step) => {
                    went(d, ticket, kernel, step);
                    return true;
                }
                Err((code, text)) => fault::poison(d, context, code, text),
            }
        }
        (work, None) => {
            // A release knows its block only before it is done.
            let touched = work::touches(d, &work);
            let failure = work::perform(d, &work).err();
            let races = d.queue.hazards.touched(ticket, work.name(), touched, None);
            wrong(d, context, failure, races);
        }
    }
    d.queue.stir();
    d.queue.finish(ticket);
    true
}

/// A kernel has ended, or waits for another one; whether anything has moved.
fn went(d: &mut Held, ticket: Ticket, kernel: Box<KernelWork>, step: Step) -> bool {
    print::write(&d.memory.take_printed());
    let (outcome, touched, learned, company) = match step {
        Step::Aside(aside) => {
            let moved = aside.moved();
            if moved {
                d.queue.stir();
            }
            let seen = d.queue.stirs;
            d.queue.aside.insert(ticket, Waiting { kernel, aside, seen });
            return moved;
        }
        Step::Ended { outcome, touched, learned, company } => (outcome, touched, learned, company),
    };
    let context = d.queue.pending.get(&ticket).map(|p| p.context);
    d.queue.hazards.learned(ticket, &learned);
    let (touched, failure) = work::end(d, &kernel, outcome, touched);
    let name = if touched.is_empty() { String::new() } else { hazard::kernel(&kernel.name) };
    let races = d.queue.hazards.touched(ticket, name, touched, company);
    if let Some(context) = context {
        if let Some(text) = failure.as_ref().map(|(_, text)| text).or(races.first()) {
            d.queue.failed.get_or_insert_with(|| text.clone());
        }
        wrong(d, context, failure, races);
    }
    if d.queue.aside.is_empty() {
        d.queue.failed = None;
    }
    d.queue.stir();
    d.queue.finish(ticket);
    true
}

/// Says what was wrong with an operation. Its own failure gives the code; races come last, since they may be
/// why it failed.
fn wrong(d: &mut Held, context: Id, failure: Option<work::Failure>, races: Vec<String>) {
    let races = races.into_iter().map(|text| (Code::LAUNCH_FAILED, text));
    for (code, text) in failure.into_iter().chain(races) {
        fault::poison(d, context, code, text);
    }
}

/// Calls a function of the program on a thread of the driver's, as real drivers do: it may wait for whoever
/// is waiting here.
fn call_host(d: &mut Held, ticket: Ticket, call: HostCall, poisoned: Option<Code>) {
    let (driver, returned) = (MutexGuard::mutex(d), d.returned);
    d.queue.calls.insert(ticket, Instant::now());
    // The function may signal the program, which goes on behind what came before it.
    d.queue.hazards.learn_before(ticket);
    let body = move || {
        as_host_function(|| call.call(poisoned));
        let mut d = driver.lock();
        d.queue.calls.remove(&ticket);
        d.queue.stir();
        d.queue.finish(ticket);
        d.queue.hazards.learn(&[ticket]);
        drop(d);
        returned.notify_all();
    };
    if std::thread::Builder::new().name("host function".into()).spawn(body).is_err() {
        // No thread to be had: the caller's own has to do.
        MutexGuard::unlocked(d, body);
    }
}

impl Driver {
    /// The calling thread's context is healthy after a wait.
    pub fn settled(&self, context: Id) -> Result {
        self.healthy(context).map(|_| ())
    }
}
