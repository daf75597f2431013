//! One state: the scheduler and its pages, and what a device holds.

use crate::Sizes;
use engraft_core::Result;
use engraft_core::kv::{CachedPrefix, KvManager, PrefixKey};
use engraft_core::schedule::{Budget, Phase, Scheduler, Sequence, Slice, Standing, StepBatch};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Positions of a page.
pub(crate) const PAGE: usize = 2;
/// Token rows of a step.
const BUDGET: usize = 4;
const PROMPT: usize = 3;
/// The second continuation of the first request's prompt.
const SIBLING: u64 = 30;
/// Priorities of the requests, in turn.
const PRIORITIES: [i32; 3] = [0, -1, 1];
/// Tokens that every request may have at most, in turn.
const NEW: [usize; 3] = [5, 1, 3];
/// Pages of the longest text.
const STRIDE: usize = (PROMPT + 5).div_ceil(PAGE);
/// What a slot holds whose content is not known.
const GARBAGE: u64 = u64::MAX;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The next request is queued.
    Arrive,
    /// A step is planned and launched.
    Launch,
    /// The oldest step is collected; bit n: the token of its n-th slice ends the text.
    Collect(u32),
    /// The oldest step fails: what it was to write is not known.
    Fail,
    /// A request is cancelled.
    Cancel(u64),
    /// A running request gives its pages up.
    Preempt(u64),
    /// A running request goes on a second time.
    Fork(u64),
    /// A leaf of the prefix tree is evicted.
    Evict(u32),
    /// So many steps without a preemption have passed that admission sets less aside.
    Quiet,
}

/// A launched step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flight {
    pub(crate) number: u64,
    pub(crate) slices: Vec<(u64, Slice)>,
    /// Pages that it copies others to.
    pub(crate) copied: Vec<u32>,
    /// Pages that it reads or writes.
    pub(crate) pages: Vec<u32>,
    /// Slots that it writes.
    pub(crate) writes: Vec<usize>,
}

/// The scheduler with its pages, and the device.
#[derive(Debug, Clone)]
pub struct World {
    pub(crate) sizes: Sizes,
    pub(crate) scheduler: Scheduler,
    pub(crate) kv: KvManager,
    pub(crate) in_flight: VecDeque<Flight>,
    /// What every slot holds: the text that leads to it, as a hash.
    pub(crate) slots: Vec<u64>,
    /// The device's page table.
    pub(crate) table: Vec<Option<u32>>,
    /// Pages `(from, to)` that the next step copies.
    pub(crate) copies: Vec<(u32, u32)>,
    /// A continuation that waits for its leader's first token.
    pub(crate) sibling: Option<Sequence>,
    /// Whether one has joined a step.
    pub(crate) joined: bool,
    pub(crate) launched: u64,
    pub(crate) collected: u64,
    pub(crate) arrived: usize,
    /// Forks, cancels and preemptions by number so far, and times that the share fell.
    pub(crate) done: [usize; 4],
    /// Preemptions because of a step that failed.
    preempted: u64,
    fault: Option<String>,
}

/// The token behind `position` tokens of a request. Requests 0 and 1 have the same prompt, 2 has another one;
/// what follows differs.
fn token(id: u64, position: usize) -> u32 {
    let text = if position >= PROMPT { id } else { id % 3 / 2 };
    text as u32 * 16 + position as u32
}

fn hashed(text: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl World {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let rows = sizes.requests + usize::from(sizes.together);
        Self {
            sizes,
            scheduler: Scheduler::new(Budget::new(rows, BUDGET)),
            kv: KvManager::new(rows, STRIDE, PAGE, sizes.pages, None),
            in_flight: VecDeque::new(),
            slots: vec![GARBAGE; sizes.pages * PAGE],
            table: vec![None; rows * STRIDE],
            copies: Vec::new(),
            sibling: None,
            joined: false,
            launched: 0,
            collected: 0,
            arrived: 0,
            done: [0; 4],
            preempted: 0,
            fault: None,
        }
    }

    /// What went wrong.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The pages.
    pub fn kv(&self) -> &KvManager {
        &self.kv
    }

    /// Whether a continuation has joined the step of its leader.
    pub fn has_joined(&self) -> bool {
        self.joined
    }

    /// Whether a sequence gave its pages up for an older one.
    pub fn preempted_by_a_step(&self) -> bool {
        self.scheduler.preemptions() > self.done[2] as u64 + self.preempted
    }

    /// What may happen.
    pub(crate) fn actions(&self, actions: &mut Vec<Action>) {
        if self.arrived < self.sizes.requests {
            actions.push(Action::Arrive);
        }
        if self.in_flight.len() <= self.sizes.ahead {
            actions.push(Action::Launch);
        }
        if let Some(flight) = self.in_flight.front() {
            let sampled = flight.slices.iter().filter(|(_, slice)| slice.samples).count();
            actions.extend((0..1 << sampled).map(Action::Collect));
            actions.push(Action::Fail);
        }
        let left = |kind: usize| self.done[kind] < self.sizes.each;
        let running = || self.scheduler.running();
        if left(0) && self.in_flight.is_empty() {
            let decoding = running().filter(|seq| seq.phase() == Phase::Decode && seq.in_flight == 0);
            actions.extend(decoding.map(|seq| Action::Fork(seq.id)));
        }
        if left(1) {
            let others = self.scheduler.leaving().chain(self.scheduler.waiting()).chain(&self.sibling);
            actions.extend(running().chain(others).map(|seq| Action::Cancel(seq.id)));
        }
        if left(2) {
            actions.extend(running().map(|seq| Action::Preempt(seq.id)));
        }
        if self.done[3] < self.sizes.quiet && self.scheduler.share_level() > 0 {
            actions.push(Action::Quiet);
        }
        actions.extend(self.kv.prefixes.evictable(&self.kv.pool).map(Action::Evict));
    }

    pub(crate) fn act(&mut self, action: Action) {
        let done = match action {
            Action::Arrive => self.arrive(),
            Action::Launch => self.launch().map(|_| ()),
            Action::Collect(ended) => self.collect(ended),
            Action::Fail => self.fail(),
            Action::Cancel(id) => self.cancel(id),
            Action::Preempt(id) => self.preempt(id),
            Action::Fork(id) => self.fork(id),
            Action::Evict(leaf) => self.kv.evict(leaf),
            Action::Quiet => self.quiet(),
        };
        if let Err(error) = done {
            self.fault.get_or_insert(format!("{action:?}: {error}"));
        }
    }

    fn quiet(&mut self) -> Result<()> {
        self.done[3] += 1;
        self.scheduler.fall_share();
        Ok(())
    }

    fn expect(&mut self, holds: bool, what: impl Fn() -> String) {
        if !holds {
            self.fault.get_or_insert_with(what);
        }
    }

    fn arrive(&mut self) -> Result<()> {
        let id = self.arrived as u64;
        self.arrived += 1;
        let prompt = (0..PROMPT).map(|position| token(id, position)).collect();
        let prefix = Some(CachedPrefix::new(PrefixKey::default(), PROMPT - 1));
        let priority = if self.sizes.priorities { PRIORITIES[id as usize % 3] } else { 0 };
        let standing = Standing { priority, ..Standing::of(0) };
        let new = NEW[id as usize % 3];
        let sequence = Sequence { prefix, standing, ..Sequence::new(id, prompt, new, ()) };
        if self.sizes.together && id == 0 {
            self.sibling = Some(Sequence { id: SIBLING, ..sequence.clone() });
        }
        self.scheduler.submit(sequence, &self.kv)
    }

    /// Lets the continuation that waits join the slice that samples its leader's first token, or wait on its
    /// own.
    fn join(&mut self, batch: &mut StepBatch) -> Result<()> {
        let samples = |slice: &Slice| {
            slice.samples && self.scheduler.sequence(slice.row).is_some_and(|seq| seq.id == 0)
        };
        let Some(at) = batch.slices.iter().position(samples) else { return Ok(()) };
        let (Some(sibling), slice) = (self.sibling.take(), batch.slices[at]) else { return Ok(()) };
        match self.scheduler.join(slice.row, slice.end(), sibling, &mut self.kv)? {
            Ok((row, copy)) => {
                self.copies.extend(copy);
                self.joined = true;
                batch.slices.insert(at + 1, Slice { row, start: slice.end(), len: 0, samples: true });
                Ok(())
            }
            Err(sibling) => self.scheduler.submit(sibling, &self.kv),
        }
    }

    /// A request is gone: who waits for it waits on its own.
    fn release(&mut self, id: u64) -> Result<()> {
        match self.sibling.take_if(|_| id == 0) {
            Some(sibling) => self.scheduler.submit(sibling, &self.kv),
            None => Ok(()),
        }
    }

    /// Ends a running request.
    fn end(&mut self, id: u64, row: u32) -> Result<()> {
        self.forget_copies(id);
        self.scheduler.finish(row, self.collected, &mut self.kv)?;
        self.release(id)
    }

    /// The text of a sequence up to a position, with what is in flight.
    fn text(&self, seq: &Sequence, end: usize) -> Vec<u32> {
        let known = seq.tokens.iter().copied();
        let rest = (seq.tokens.len()..end).map(|position| token(seq.id, position));
        known.chain(rest).take(end).collect()
    }

    /// Plans and launches a step; whether there was one.
    fn launch(&mut self) -> Result<bool> {
        let mut batch = StepBatch::default();
        self.scheduler.next(&mut self.kv, &mut batch)?;
        if batch.tokens == 0 {
            return Ok(false);
        }
        self.launched += 1;
        let mut flight = Flight { number: self.launched, ..Flight::default() };
        // What joins is copied by the step behind.
        let copies = std::mem::take(&mut self.copies);
        self.join(&mut batch)?;
        for (index, page) in self.kv.tables.changes() {
            self.table[*index as usize] = Some(*page);
        }
        self.kv.tables.settle();
        for (from, to) in copies {
            if !self.scheduler.copies_to(to, self.launched, &self.kv) {
                continue;
            }
            flight.copied.push(to);
            // Its source may be another's already: what that one writes comes after the copy on the device.
            flight.pages.push(to);
            flight.writes.extend((0..PAGE).map(|offset| to as usize * PAGE + offset));
            (0..PAGE)
                .for_each(|at| self.slots[to as usize * PAGE + at] = self.slots[from as usize * PAGE + at]);
        }
        let joined: Vec<u32> =
            batch.slices.iter().filter(|slice| slice.len == 0).map(|slice| slice.row).collect();
        for slice in &batch.slices {
            self.run(slice, &joined, &mut flight);
        }
        for (row, slice) in batch.slices.iter().enumerate() {
            self.scheduler.launched(slice, self.launched, slice.samples.then_some(row as u32));
        }
        self.in_flight.push_back(flight);
        Ok(true)
    }

    /// What the device does of a slice. Who joined the step shares what is written there, and reads it later.
    fn run(&mut self, slice: &Slice, joined: &[u32], flight: &mut Flight) {
        let Some(seq) = self.scheduler.sequence(slice.row).cloned() else {
            return self.expect(false, || format!("{slice:?}: no sequence"));
        };
        let pages = self.kv.tables.pages(slice.row).to_vec();
        let row = slice.row as usize * STRIDE;
        for (entry, page) in pages.iter().enumerate() {
            let sent = self.table[row + entry];
            self.expect(sent == Some(*page), || {
                format!("entry {entry} of {slice:?} is {sent:?}, not {page}")
            });
        }
        for position in slice.start..slice.end() {
            let Some(page) = pages.get(position / PAGE).copied() else {
                return self.expect(false, || format!("position {position} of {slice:?} has no page"));
            };
            let shares = |row: &&u32| self.kv.tables.pages(**row).contains(&page);
            let owners = self.kv.pool.owners(page) as usize - joined.iter().filter(shares).count();
            self.expect(owners == 1, || format!("page {page} is written with {owners} owners"));
            let used = self.in_flight.iter().any(|other| {
                let own = other.slices.iter().any(|(id, _)| *id == seq.id);
                other.pages.contains(&page) && !own
            });
            self.expect(!used, || format!("page {page} is written, which a step in flight uses"));
            let slot = page as usize * PAGE + position % PAGE;
            self.slots[slot] = hashed(&self.text(&seq, position + 1));
            flight.writes.push(slot);
        }
        flight.pages.extend(&pages);
        flight.slices.push((seq.id, *slice));
        self.reads_its_own(&seq, slice, &pages);
    }

    /// Whether every position up to the slice's end holds the sequence's text. A continuation that joins
    /// reads nothing: it samples what its leader does.
    fn reads_its_own(&mut self, seq: &Sequence, slice: &Slice, pages: &[u32]) {
        if slice.len == 0 {
            return;
        }
        for position in 0..slice.end() {
            let page = pages.get(position / PAGE).copied().unwrap_or(0);
            let holds = self.slots[page as usize * PAGE + position % PAGE];
            let same = holds == hashed(&self.text(seq, position + 1));
            self.expect(same, || {
                format!("position {position} of {slice:?} reads another text in page {page}")
            });
        }
    }

    /// As the engine's coordinator does.
    fn collect(&mut self, ended: u32) -> Result<()> {
        let Some(flight) = self.in_flight.pop_front() else { return Ok(()) };
        self.collected = flight.number;
        let mut sampled = 0;
        for (id, slice) in &flight.slices {
            let end = slice.samples && ended >> sampled & 1 == 1;
            sampled += u32::from(slice.samples);
            let Some(seq) = self.scheduler.sequence(slice.row).filter(|seq| seq.id == *id).cloned() else {
                continue;
            };
            let pages = self.kv.tables.pages(slice.row).to_vec();
            self.reads_its_own(&seq, slice, &pages);
            let mut ends = end;
            if let Some(seq) = self.scheduler.sequence_mut(slice.row) {
                if slice.samples {
                    seq.in_flight -= 1;
                    seq.tokens.push(token(seq.id, seq.tokens.len()));
                }
                ends |= seq.tokens.len() >= seq.limit && slice.end() >= seq.prompt;
            }
            self.scheduler.commit(slice.row, slice.end(), &mut self.kv)?;
            if ends {
                self.end(*id, slice.row)?;
            }
        }
        self.settle()
    }

    fn settle(&mut self) -> Result<()> {
        if self.in_flight.is_empty() {
            self.collected = self.launched;
        }
        self.scheduler.settle(self.collected, &mut self.kv)?;
        let free = |page: &u32| self.kv.pool.owners(*page) == 0;
        let early = self.in_flight.iter().flat_map(|flight| &flight.pages).copied().find(free);
        self.expect(early.is_none(), || format!("page {early:?} is free, which a step in flight uses"));
        Ok(())
    }

    fn fail(&mut self) -> Result<()> {
        let Some(flight) = self.in_flight.pop_front() else { return Ok(()) };
        let slices = flight.slices.iter().map(|(_, slice)| *slice);
        let readers = self.scheduler.readers(slices, &self.kv);
        let own = flight.slices.iter().map(|(id, slice)| (slice.row, Some(*id)));
        for (row, id) in own.chain(readers.into_iter().map(|row| (row, None))) {
            let there = self.scheduler.sequence(row).map(|seq| seq.id);
            if let Some(there) = there.filter(|there| id.is_none_or(|id| id == *there)) {
                self.end(there, row)?;
            }
        }
        self.kv.tables.resend();
        // Whether pages were copied is not known: who waits for its first slice computes them anew.
        for to in &flight.copied {
            let waits = self.scheduler.running().filter(|seq| seq.step <= flight.number);
            let row = waits.map(|seq| seq.row).find(|row| self.kv.tables.pages(*row).contains(to));
            if let Some(row) = row {
                self.preempted += 1;
                self.scheduler.preempt(row, &mut self.kv)?;
            }
        }
        // What the step behind has written since is its own.
        let later = |slot: &usize| self.in_flight.iter().any(|other| other.writes.contains(slot));
        let lost: Vec<usize> = flight.writes.iter().copied().filter(|slot| !later(slot)).collect();
        lost.into_iter().for_each(|slot| self.slots[slot] = GARBAGE);
        if self.in_flight.is_empty() {
            self.table.fill(None);
        }
        self.settle()
    }

    fn running_row(&self, id: u64) -> Option<u32> {
        self.scheduler.running().find(|seq| seq.id == id).map(|seq| seq.row)
    }

    /// A copy that the next step would make for it is not made.
    fn forget_copies(&mut self, id: u64) {
        if let Some(row) = self.running_row(id) {
            let Self { copies, kv, .. } = self;
            copies.retain(|(_, to)| !kv.tables.pages(row).contains(to));
        }
    }

    fn cancel(&mut self, id: u64) -> Result<()> {
        self.done[1] += 1;
        self.forget_copies(id);
        let waited = self.sibling.take_if(|sibling| sibling.id == id).is_some();
        let found = self.scheduler.cancel(id, self.collected, &mut self.kv)?.is_some();
        self.expect(found || waited, || format!("request {id} is nowhere"));
        self.release(id)
    }

    fn preempt(&mut self, id: u64) -> Result<()> {
        self.done[2] += 1;
        self.forget_copies(id);
        self.running_row(id).map_or(Ok(()), |row| self.scheduler.preempt(row, &mut self.kv))
    }

    fn fork(&mut self, id: u64) -> Result<()> {
        let fork = (self.sizes.requests + self.done[0]) as u64;
        self.done[0] += 1;
        let Some(row) = self.running_row(id) else { return Ok(()) };
        // Without a page or a row for it nothing has changed.
        if let Ok((_, Some((from, to)))) = self.scheduler.fork(row, fork, (), &mut self.kv) {
            // Of a page that is a copy to be made: from its source, right behind it.
            let copy = self.copies.iter().position(|(_, page)| *page == from);
            match copy.map(|at| (at + 1, self.copies[at].0)) {
                Some((behind, source)) => self.copies.insert(behind, (source, to)),
                None => self.copies.push((from, to)),
            }
        }
        Ok(())
    }

    /// Whether every page has the owners that the pool counts, and every row one sequence or none.
    pub fn is_accounted_for(&self) -> bool {
        self.scheduler.audit(&self.kv).is_ok()
    }

    /// Runs until nothing is left; whether that ends, without a fault, and with all pages given back.
    pub fn drains(mut self) -> bool {
        for _ in 0..50 * (self.sizes.requests + 1) {
            if self.scheduler.is_idle() && self.in_flight.is_empty() {
                return self.fault.is_none()
                    && self.sibling.is_none()
                    && self.kv.pool.available() == self.kv.pool.total();
            }
            let launched = self.launch();
            let collected = match launched {
                Ok(true) if self.in_flight.len() <= self.sizes.ahead => Ok(()),
                Ok(_) => self.collect(0),
                Err(error) => Err(error),
            };
            if collected.is_err() || self.fault.is_some() {
                return false;
            }
        }
        false
    }
}
