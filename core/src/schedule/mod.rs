//! Who runs next. No backend in sight: sequences, pages and a token budget go in, a [`StepBatch`] comes out.
//!
//! Dynamic SplitFuse: every step has a fixed token budget. Sequences that decode get one token each; what is
//! left of the budget goes to prompts in the order in which they came, long ones in chunks. Three budgets
//! more make chunks shorter: rows of logits, pages, and milliseconds (`pace.rs`). Pages are taken when a step
//! needs them: `admit.rs` has who enters, `preempt.rs` who gives pages up where they do not suffice. Those
//! that wait stand in `queue.rs`, by priority, by what their owners have been served, and by deadline.
//!
//! A running sequence has a *request slot*: its row of the page table and of the sampling table, and its
//! index in the vector of sequences, so that a step finds it without a search. A sequence that ends while a
//! launched step still names it keeps its request slot and its pages until that step is collected: nothing
//! that a step may touch is given to another sequence before. Fields and arguments named `row` are request
//! slots; a *token row* is a row of a step's matrices.

mod admit;
mod audit;
mod batch;
mod coming;
mod lone;
mod pace;
mod preempt;
mod queue;
mod sequence;
mod share;
mod tenants;

pub use batch::{Budget, Slice, StepBatch};
pub use lone::Sampled;
pub use pace::StepCost;
pub use sequence::{Phase, Sequence, Standing, Token};

use crate::kv::KvManager;
use crate::{Error, Result};
use coming::Coming;
use pace::Pace;
use queue::Queue;
use share::GrowthShare;
use std::time::Duration;
use tenants::Tenants;

/// A request slot that launched steps still name.
#[derive(Debug, Clone, Copy)]
struct Retiring {
    row: u32,
    step: u64,
}

/// Waiting and running sequences.
#[derive(Debug, Clone)]
pub struct Scheduler<T = ()> {
    waiting: Queue<T>,
    /// By request slot.
    sequences: Vec<Option<Sequence<T>>>,
    /// Request slots: the sequence that was admitted first of all, then the others by priority, then in the
    /// order of first admission.
    running: Vec<u32>,
    /// Request slots of preempted sequences that steps in flight still name.
    leaving: Vec<u32>,
    retiring: Vec<Retiring>,
    /// Memory for the tokens of the sequence in every request slot, one after the other.
    tokens: Vec<Vec<u32>>,
    tenants: Tenants,
    budget: Budget,
    share: GrowthShare,
    pace: Pace,
    /// Sequences admitted so far.
    arrivals: u64,
    /// The last step that is collected.
    collected: u64,
    preemptions: u64,
    /// The sequence that was not admitted last for want of pages, and how many it had found that others use.
    blocked: Option<(u64, usize)>,
}

impl<T> Scheduler<T> {
    /// With steps of at most so much.
    pub fn new(budget: Budget) -> Self {
        let max_seqs = budget.seqs;
        // Every running sequence has a token in a step, and a row of logits.
        let (tokens, rows) = (budget.tokens.max(max_seqs), budget.rows.max(max_seqs));
        Self {
            waiting: Queue::new(),
            sequences: (0..max_seqs).map(|_| None).collect(),
            running: Vec::with_capacity(max_seqs),
            leaving: Vec::with_capacity(max_seqs),
            retiring: Vec::with_capacity(max_seqs),
            tokens: (0..max_seqs).map(|_| Vec::new()).collect(),
            tenants: Tenants::default(),
            budget: Budget { tokens, rows, ..budget },
            share: GrowthShare::new(),
            pace: Pace::new(budget.ms),
            arrivals: 0,
            collected: 0,
            preemptions: 0,
            blocked: None,
        }
    }

    /// Queues a sequence by its [`Sequence::standing`]: priorities first, then owners share what there is,
    /// then calls of one owner take turns, so that many texts of one do not keep others waiting; those of one
    /// call are admitted by deadline, then in the order in which they came.
    ///
    /// # Errors
    /// `KvFull` when the pool could not hold its worst case even if it were empty.
    pub fn submit(&mut self, sequence: Sequence<T>, kv: &KvManager) -> Result<()> {
        let (wanted, free, total) =
            (kv.tables.pages_for(sequence.limit), kv.pool.available(), kv.pool.total());
        if wanted > total {
            return Err(Error::KvFull { wanted, free, total });
        }
        self.submit_whole(sequence);
        Ok(())
    }

    /// Queues a text that runs as a whole and needs no pages: [`Scheduler::next_whole`].
    pub fn submit_whole(&mut self, mut sequence: Sequence<T>) {
        sequence.tenant = self.tenants.enter(sequence.standing.owner);
        self.waiting.push(sequence);
    }

    /// Takes out those that wait, were never admitted, and whose deadline is not behind `now`.
    pub fn expired(&mut self, now: Duration) -> Vec<Sequence<T>> {
        let expired = self.waiting.expired(now);
        expired.iter().for_each(|seq| self.tenants.leave(seq.tenant));
        expired
    }

    /// A step of this cost took so many milliseconds.
    pub fn observe(&mut self, cost: StepCost, ms: f64) {
        self.pace.observe(cost, ms);
    }

    /// Running sequences.
    pub fn running(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.running.iter().filter_map(|row| self.sequence(*row))
    }

    /// The running sequence in a request slot.
    pub fn sequence(&self, row: u32) -> Option<&Sequence<T>> {
        self.sequences.get(row as usize)?.as_ref()
    }

    /// The running sequence in a request slot, to record its progress.
    pub fn sequence_mut(&mut self, row: u32) -> Option<&mut Sequence<T>> {
        self.sequences.get_mut(row as usize)?.as_mut()
    }

    /// Sequences that wait for admission, the next one first among those that were preempted; of the others,
    /// those of one owner behind each other.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.waiting.iter()
    }

    /// How many run, and how many wait for admission.
    pub fn counts(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// Preempted sequences that steps in flight still name.
    pub fn leaving(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.leaving.iter().filter_map(|row| self.sequence(*row))
    }

    /// Request slots without a sequence that steps in flight still name, and the last of these steps.
    pub fn retiring(&self) -> impl Iterator<Item = (u32, u64)> {
        self.retiring.iter().map(|retiring| (retiring.row, retiring.step))
    }

    /// How much of the growth of running sequences admission sets aside: a level, the last
    /// one all.
    pub fn share_level(&self) -> usize {
        self.share.level()
    }

    /// Admission sets aside a level less, as after many steps without a preemption. For who visits all states
    /// that there are, and does not tell them apart by how many such steps have passed.
    pub fn fall_share(&mut self) {
        self.share.fall();
    }

    /// Whether request `id` waits for admission.
    pub fn is_waiting(&self, id: u64) -> bool {
        self.waiting.iter().any(|sequence| sequence.id == id)
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.leaving.is_empty()
    }

    /// How many have been admitted so far, each counted once.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The sequence that was not admitted last for want of pages, and how many it had found that others use.
    pub fn blocked(&self) -> Option<(u64, usize)> {
        self.blocked
    }

    /// How often a sequence has given its pages up, to go on later.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Plans a step, replacing `batch`; admits what fits first. Sequences whose tokens are all launched have
    /// no part in it.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping of pages is inconsistent.
    pub fn next(&mut self, kv: &mut KvManager, batch: &mut StepBatch) -> Result<()> {
        self.plan(kv, batch, true)
    }

    /// The same, with those of one token planned many at once or, as all others, each by itself.
    fn plan(&mut self, kv: &mut KvManager, batch: &mut StepBatch, at_once: bool) -> Result<()> {
        batch.clear();
        self.admit(kv, &mut batch.admitted)?;
        let (mut coming, mut decoding, mut prompts, mut urgent) = (Coming::default(), 0, false, None);
        // Decoding sequences first: a long prompt may not stall the others' next token.
        for wanted in [Phase::Decode, Phase::Prefill] {
            if wanted == Phase::Prefill && !prompts {
                break;
            }
            let mut at = 0;
            loop {
                if at_once && wanted == Phase::Decode {
                    at = self.lone_tokens(at, batch, kv);
                }
                let Some(row) = self.running.get(at).copied() else { break };
                at += 1;
                let Some(seq) = self.sequence(row) else { continue };
                if seq.phase() != wanted {
                    prompts = true;
                    continue;
                }
                let (mut slice, encodes) = (self.slice(seq, batch, decoding), seq.to_encode());
                let missing = kv.missing(row, slice.end());
                if missing > 0 && wanted == Phase::Decode && self.yields(row, missing, &mut urgent, kv) {
                    continue;
                }
                if missing > 0 && wanted == Phase::Prefill && coming.promised == 0 {
                    slice = shortened(slice, kv);
                }
                let rows = rows(seq, &slice);
                // Those preempted for it are behind it.
                let fits = slice.len > 0
                    && (missing == 0 || self.make_room(row, slice.end(), &mut coming, batch, kv)?);
                if fits {
                    batch.push(slice, rows, encodes);
                }
            }
            decoding = if wanted == Phase::Decode { batch.tokens } else { decoding };
        }
        if batch.tokens > 0 {
            self.share.step();
        }
        // Its row of the sampling table is written when it is admitted again.
        batch.admitted.retain(|row| self.running.contains(row));
        Ok(())
    }

    /// What a step that has `batch` already, `decoding` tokens of it of sequences that decode, has room for.
    fn slice(&self, seq: &Sequence<T>, batch: &StepBatch, decoding: usize) -> Slice {
        // An encoder's tokens are a budget of their own: they run as a whole.
        let reads = seq.to_encode();
        let late =
            decoding > 0 && batch.encodes > 0 && reads > 0 && !self.pace.allows(batch.cost.with(0, reads));
        let waits = late || batch.encodes + reads > self.budget.tokens;
        let room = if waits { 0 } else { seq.pending().min(self.budget.tokens - batch.tokens) };
        let mut len = seq.most_tokens(room, self.budget.rows.saturating_sub(batch.rows));
        if decoding > 0 && seq.phase() == Phase::Prefill {
            len = self.pace.most(batch.cost, batch.tokens - decoding, seq.next(), len);
        }
        let samples = |len| len > 0 && len == seq.pending() && seq.len() < seq.limit;
        let of = |len| Slice { row: seq.row, start: seq.next(), len, samples: samples(len) };
        // A token row that samples may be one more than those that are asked for.
        match len > 0 && batch.rows + rows(seq, &of(len)) > self.budget.rows {
            true => of(len - 1),
            false => of(len),
        }
    }

    /// Plans a step of whole texts, which keep nothing: those that wait, in their order, as many as fit.
    pub fn next_whole(&mut self, kv: &mut KvManager, batch: &mut StepBatch) {
        batch.clear();
        while self.running.len() < self.budget.seqs {
            let Some(seq) = self.waiting.front(&self.tenants) else { break };
            let rows = seq.asked_in(0, seq.len()).len();
            if batch.tokens + seq.len() > self.budget.tokens || batch.rows + rows > self.budget.rows {
                break;
            }
            let Some(row) = kv.tables.open() else { break };
            let Some(mut seq) = self.waiting.pop(&self.tenants) else { break };
            self.tenants.reads(seq.tenant, seq.len());
            batch.slices.push(Slice { row, start: 0, len: seq.len(), samples: false });
            batch.tokens += seq.len();
            batch.rows += rows;
            seq.row = row;
            self.enter(seq);
        }
    }

    /// Records that the step of this number was launched with `slice`, and in which row of the
    /// step's logits it samples.
    pub fn launched(&mut self, slice: &Slice, step: u64, sampled_in: Option<u32>) {
        let Some(seq) = self.sequence_mut(slice.row) else { return };
        seq.launched(slice.end(), step, sampled_in);
        let tenant = seq.tenant;
        if sampled_in.is_some() {
            self.tenants.samples(tenant, 1);
        }
    }

    /// Records that the step of this number copies something to `page`; whether a running sequence owns that.
    /// Its owner may have no other part in the step: its pages are free behind it in any case.
    pub fn copies_to(&mut self, page: u32, step: u64, kv: &KvManager) -> bool {
        let owner = self.running.iter().find(|row| kv.tables.pages(**row).contains(&page)).copied();
        let owner = owner.and_then(|row| self.sequence_mut(row));
        owner.map(|seq| seq.step = step).is_some()
    }

    /// Request slots of the sequences that own pages which these slices fill: their own, and continuations
    /// that joined a later step.
    pub fn readers(&self, slices: impl Iterator<Item = Slice>, kv: &KvManager) -> Vec<u32> {
        let mut filled = Vec::new();
        for slice in slices.filter(|slice| slice.len > 0) {
            let pages = kv.tables.pages_for(slice.start + 1) - 1..kv.tables.pages_for(slice.end());
            filled.extend_from_slice(kv.tables.pages(slice.row).get(pages).unwrap_or_default());
        }
        let reads = |row: &u32| kv.tables.pages(*row).iter().any(|page| filled.contains(page));
        self.running.iter().chain(&self.leaving).copied().filter(reads).collect()
    }

    /// Leaves to others what is in the cache of the sequence in a request slot: its first `positions`
    /// positions, whose steps are collected.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn commit(&mut self, row: u32, positions: usize, kv: &mut KvManager) -> Result<()> {
        let Some(seq) = self.sequence_mut(row) else { return Ok(()) };
        let Sequence { prefix: Some(prefix), tokens, step, .. } = seq else { return Ok(()) };
        // Few tokens of a sequence fill a page.
        match kv.fills(prefix, positions) {
            true => kv.commit(row, prefix, tokens, positions, *step),
            false => Ok(()),
        }
    }

    /// The memory of a request slot with these tokens in it and room for so many: steps allocate nothing, and
    /// what only waits holds no more than its prompt.
    fn room(&mut self, row: u32, most: usize, tokens: &[u32]) -> Vec<u32> {
        let mut room = self.tokens.get_mut(row as usize).map(std::mem::take).unwrap_or_default();
        room.clear();
        room.reserve_exact(most.max(tokens.len()));
        room.extend_from_slice(tokens);
        room
    }

    /// Puts a sequence among those that run, in their order.
    fn enter(&mut self, seq: Sequence<T>) {
        let row = seq.row;
        if let Some(place) = self.sequences.get_mut(row as usize) {
            *place = Some(seq);
        }
        // The oldest sequence stands first: whatever comes, it ends, and so does the one that is the oldest
        // then.
        let moves = match self.running.first().copied() {
            None => return self.running.push(row),
            Some(first) if self.order(row).1 < self.order(first).1 => {
                std::mem::replace(&mut self.running[0], row)
            }
            Some(_) => row,
        };
        let before = |other: &u32| self.order(*other) <= self.order(moves);
        let at = 1 + self.running[1..].partition_point(before);
        self.running.insert(at, moves);
    }

    /// By what sequences behind the first one stand in order: priority, then first admission.
    fn order(&self, row: u32) -> (i32, u64) {
        self.sequence(row).map_or((0, 0), |seq| (seq.standing.priority, seq.arrival))
    }

    /// Takes a request slot out of those that run.
    fn leave_running(&mut self, row: u32) {
        let Some(at) = self.running.iter().position(|other| *other == row) else { return };
        self.running.remove(at);
        if at == 0 {
            let oldest = (0..self.running.len()).min_by_key(|at| self.order(self.running[*at]).1);
            if let Some(oldest) = oldest {
                self.running[..=oldest].rotate_right(1);
            }
        }
    }

    /// Lets the running sequence in request slot `row` go on a second time as request `id`. Full pages are
    /// shared. Returns the request slot of `id`, and the page `(from, to)` that the caller has to copy before
    /// the next step; none where the last page is full.
    ///
    /// # Errors
    /// `KvFull` where there is no page for the copy, `Request` where as many sequences run as may; nothing
    /// has changed then. `Internal` for no sequence, or one with a token in flight.
    pub fn fork(
        &mut self,
        row: u32,
        id: u64,
        data: T,
        kv: &mut KvManager,
    ) -> Result<(u32, Option<(u32, u32)>)> {
        let Some(seq) = self.sequence(row).filter(|seq| seq.in_flight == 0) else {
            return Err(Error::internal("a fork of no sequence"));
        };
        if self.running.len() >= self.budget.seqs {
            let what = format!("{} sequences run already, as many as `max_seqs` allows", self.budget.seqs);
            return Err(Error::Request { id: seq.id, what });
        }
        let (new, copy) = kv.fork(row, seq.done)?;
        let (known, prompt, done, limit) = (seq.tokens.clone(), seq.prompt, seq.done, seq.limit);
        let (prefix, arrival, standing) = (seq.prefix.clone(), self.arrivals, seq.standing);
        let (source, source_positions, by_host) = (seq.source, seq.source_positions, seq.by_host);
        let tokens = self.room(new, kv.tables.most_positions(), &known);
        let tenant = self.tenants.enter(standing.owner);
        let fork =
            Sequence { tokens, done, row: new, prefix, arrival, ..Sequence::new(id, Vec::new(), 0, data) };
        self.arrivals += 1;
        self.enter(Sequence { prompt, limit, standing, tenant, source, source_positions, by_host, ..fork });
        Ok((new, copy))
    }

    /// Lets a sequence that never ran join the one in request slot `row`, whose prompt it has: the step that
    /// is being planned runs that prompt's last of `positions` positions. As [`Scheduler::fork`] otherwise;
    /// the sequence itself where there is no request slot, or no page for the copy.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    #[allow(clippy::type_complexity, clippy::result_large_err)]
    pub fn join(
        &mut self,
        row: u32,
        positions: usize,
        mut sequence: Sequence<T>,
        kv: &mut KvManager,
    ) -> Result<std::result::Result<(u32, Option<(u32, u32)>), Sequence<T>>> {
        if self.running.len() >= self.budget.seqs || sequence.tokens.len() != positions {
            return Ok(Err(sequence));
        }
        let (new, copy) = match kv.fork(row, positions) {
            Ok(forked) => forked,
            Err(Error::KvFull { .. }) => return Ok(Err(sequence)),
            Err(error) => return Err(error),
        };
        // One that ends with the token it samples there reads nothing.
        let copy = copy.filter(|_| sequence.limit > positions + 1);
        sequence.tokens = self.room(new, kv.tables.most_positions(), &sequence.tokens);
        sequence.tenant = self.tenants.enter(sequence.standing.owner);
        (sequence.done, sequence.row, sequence.arrival) = (positions, new, self.arrivals);
        self.arrivals += 1;
        self.enter(sequence);
        Ok(Ok((new, copy)))
    }

    /// Ends the running sequence in a request slot and returns its owner's data. Its pages and its request
    /// slot are free once step `collected` is not before the last one that names it: at once, or by
    /// [`Scheduler::settle`].
    pub fn finish(&mut self, row: u32, collected: u64, kv: &mut KvManager) -> Result<T> {
        let seq = self.sequences.get_mut(row as usize).and_then(Option::take);
        let seq = seq.ok_or_else(|| Error::internal("the end of no sequence"))?;
        self.tenants.leave(seq.tenant);
        self.leave_running(row);
        self.leaving.retain(|other| *other != row);
        self.retiring.push(Retiring { row, step: seq.step });
        if let Some(room) = self.tokens.get_mut(row as usize) {
            *room = seq.tokens;
        }
        self.collected = collected;
        self.free_rows(kv)?;
        Ok(seq.data)
    }

    /// Step `collected` and all before it are collected, and what they sampled is recorded: frees what no
    /// step behind them names.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn settle(&mut self, collected: u64, kv: &mut KvManager) -> Result<()> {
        self.collected = collected;
        self.settle_leaving(kv)?;
        self.free_rows(kv)
    }

    fn free_rows(&mut self, kv: &mut KvManager) -> Result<()> {
        kv.settle(self.collected)?;
        let mut i = 0;
        while let Some(Retiring { row, step }) = self.retiring.get(i) {
            if *step > self.collected {
                i += 1;
                continue;
            }
            kv.close(*row)?;
            self.retiring.swap_remove(i);
        }
        Ok(())
    }

    /// Ends a request wherever it stands; its owner's, if there was one.
    pub fn cancel(&mut self, id: u64, collected: u64, kv: &mut KvManager) -> Result<Option<T>> {
        if let Some(seq) = self.waiting.remove(id) {
            self.tenants.leave(seq.tenant);
            return Ok(Some(seq.data));
        }
        let row = self.sequences.iter().flatten().find(|s| s.id == id).map(|s| s.row);
        row.map(|row| self.finish(row, collected, kv)).transpose()
    }
}

/// The slice, or as much of it as there are pages for: a prompt takes those before others give up theirs.
fn shortened(slice: Slice, kv: &KvManager) -> Slice {
    let room = kv.room(slice.row).saturating_sub(slice.start);
    match 0 < room && room < slice.len {
        true => Slice { len: room, samples: false, ..slice },
        false => slice,
    }
}

/// Rows of logits that a slice of a sequence has.
fn rows<T>(seq: &Sequence<T>, slice: &Slice) -> usize {
    let asked = seq.asked_in(slice.start, slice.end());
    asked.len() + usize::from(slice.samples && !asked.contains(&(slice.end() - 1)))
}

#[cfg(test)]
mod tests;
