//! Who runs next. No backend in sight: sequences, pages and a token budget go in, a [`StepBatch`] comes out.
//!
//! Dynamic SplitFuse: every step has a fixed token budget. Sequences that decode get one token each; what is
//! left of the budget goes to prompts in the order in which they came, long ones in chunks. A request is
//! admitted when the pages of its worst case (prompt and all tokens it may generate) are free, so that a
//! running sequence never has to be stopped for want of a page.

mod sequence;

pub use sequence::{Phase, Sequence};

use crate::kv::{PagePool, PageTables};
use crate::{Error, Result};
use std::collections::VecDeque;

/// A run of consecutive tokens of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Index of the sequence in [`Scheduler::running`].
    pub index: usize,
    /// First position.
    pub start: usize,
    /// Tokens.
    pub len: usize,
    /// Whether these are the last known tokens, so that a new one is sampled.
    pub samples: bool,
}

/// What a step computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepBatch {
    /// In the order of their rows.
    pub slices: Vec<Slice>,
    /// Token rows.
    pub tokens: usize,
    /// Indices of the sequences that were admitted for this step: they own a table row now.
    pub admitted: Vec<usize>,
}

/// Waiting and running sequences.
#[derive(Debug)]
pub struct Scheduler {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    max_seqs: usize,
    budget: usize,
    reserved: usize,
}

impl Scheduler {
    /// At most `max_seqs` sequences at once, `budget` tokens a step.
    pub fn new(max_seqs: usize, budget: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(max_seqs),
            max_seqs,
            budget: budget.max(max_seqs),
            reserved: 0,
        }
    }

    /// Queues a sequence.
    ///
    /// # Errors
    /// `KvFull` when the pool could not hold its worst case even if it were empty.
    pub fn submit(&mut self, sequence: Sequence, tables: &PageTables, pool: &PagePool) -> Result<()> {
        let wanted = tables.pages_for(sequence.limit);
        if wanted > pool.total() {
            return Err(Error::KvFull { wanted, free: pool.free(), total: pool.total() });
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Running sequences.
    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// A running sequence, to record its progress.
    pub fn running_mut(&mut self, index: usize) -> Option<&mut Sequence> {
        self.running.get_mut(index)
    }

    /// Sequences that wait for admission.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Plans the next step into `batch`: admits, grows page tables, chunks prompts. Empty when idle.
    pub fn next(
        &mut self,
        tables: &mut PageTables,
        pool: &mut PagePool,
        batch: &mut StepBatch,
    ) -> Result<()> {
        batch.slices.clear();
        batch.admitted.clear();
        batch.tokens = 0;
        self.admit(tables, pool, &mut batch.admitted);
        // Decoding sequences first: a long prompt may not stall the others' next token.
        for wanted in [Phase::Decode, Phase::Prefill] {
            for (index, seq) in self.running.iter().enumerate() {
                let room = self.budget - batch.tokens;
                if seq.phase() != wanted || room == 0 {
                    continue;
                }
                let len = seq.pending().min(room);
                tables.grow(seq.row, seq.done + len, pool)?;
                let samples = len == seq.pending();
                batch.slices.push(Slice { index, start: seq.done, len, samples });
                batch.tokens += len;
            }
        }
        Ok(())
    }

    fn admit(&mut self, tables: &mut PageTables, pool: &PagePool, admitted: &mut Vec<usize>) {
        while self.running.len() < self.max_seqs {
            let Some(seq) = self.waiting.front() else { break };
            let worst = tables.pages_for(seq.limit);
            if self.reserved + worst > pool.total() {
                break;
            }
            let Some(row) = tables.open() else { break };
            let Some(mut seq) = self.waiting.pop_front() else { break };
            seq.row = row;
            self.reserved += worst;
            admitted.push(self.running.len());
            self.running.push(seq);
        }
    }

    /// Lets the running sequence at `index` go on a second time as request `id`, which becomes the last
    /// running one. Full pages are shared. The page `(from, to)` that the caller has to copy before the next
    /// step; none where the last page is full.
    ///
    /// # Errors
    /// `KvFull` where there is no room for its worst case or for another sequence; nothing has changed then.
    pub fn fork(
        &mut self,
        index: usize,
        id: u64,
        tables: &mut PageTables,
        pool: &mut PagePool,
    ) -> Result<Option<(u32, u32)>> {
        let Some(seq) = self.running.get(index) else { return Err(Error::internal("a fork of no sequence")) };
        let worst = tables.pages_for(seq.limit);
        let full = Error::KvFull { wanted: worst, free: pool.free(), total: pool.total() };
        if self.running.len() >= self.max_seqs || self.reserved + worst > pool.total() {
            return Err(full);
        }
        let (row, copy) = tables.fork(seq.row, seq.done, pool)?;
        let mut tokens = seq.tokens.clone();
        tokens.reserve_exact(seq.limit.saturating_sub(tokens.len()));
        let fork = Sequence { id, tokens, row, ..seq.clone() };
        self.reserved += worst;
        self.running.push(fork);
        Ok(copy)
    }

    /// Ends the running sequence at `index` and frees its pages. The last one takes its index.
    pub fn finish(&mut self, index: usize, tables: &mut PageTables, pool: &mut PagePool) -> Result<Sequence> {
        let seq = self.running.swap_remove(index);
        self.reserved -= tables.pages_for(seq.limit);
        tables.close(seq.row, pool)?;
        Ok(seq)
    }

    /// Ends a request wherever it stands; whether it was there.
    pub fn cancel(&mut self, id: u64, tables: &mut PageTables, pool: &mut PagePool) -> Result<bool> {
        if let Some(at) = self.waiting.iter().position(|s| s.id == id) {
            self.waiting.remove(at);
            return Ok(true);
        }
        match self.running.iter().position(|s| s.id == id) {
            Some(index) => self.finish(index, tables, pool).map(|_| true),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests;
