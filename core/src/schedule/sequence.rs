//! One request as the scheduler sees it.

use crate::kv::CachedPrefix;
use std::ops::Range;
use std::time::Duration;

/// What a sequence needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Known tokens are not in the cache yet: of the prompt, or of all it has, once preempted.
    Prefill,
    /// One token is missing from the cache: the one sampled last.
    Decode,
}

/// What decides who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Smaller numbers are served first.
    pub priority: i32,
    /// Whose it is: owners of one priority share what there is.
    pub owner: u64,
    /// What it came with: calls of one owner take turns.
    pub call: u64,
    /// When it is no use any more to begin, by the clock of whoever calls.
    pub deadline: Duration,
}

impl Standing {
    /// Of an owner, with no priority and no deadline.
    pub fn of(owner: u64) -> Self {
        Self { priority: 0, owner, call: 0, deadline: Duration::MAX }
    }
}

/// Tokens of a request and how many of them steps have been launched for; `T` is what its owner keeps of it.
///
/// A step may be launched before the one before is collected. Until then the token that the earlier step
/// samples is *in flight*: it counts, its place is known, its id is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence<T = ()> {
    /// The request.
    pub id: u64,
    /// Prompt, then what was sampled and collected.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens in front that an encoder reads, all in one step; none of a model without one.
    pub source: usize,
    /// Positions that they take, in whole pages.
    pub source_positions: usize,
    /// Positions that launched steps leave in the cache.
    pub done: usize,
    /// Most positions it may come to hold.
    pub limit: usize,
    /// Request slot: row of the page table and of the sampling table, once admitted.
    pub row: u32,
    /// Tokens in flight.
    pub in_flight: usize,
    /// Row of the logits of the step launched last that samples the last of them.
    pub sampled_in: u32,
    /// The step launched last that names it.
    pub step: u64,
    /// Positions whose results were taken before it was preempted: they may be computed again, for the cache
    /// alone.
    pub kept: usize,
    /// How many sequences had been admitted when it was first; `u64::MAX` before.
    pub arrival: u64,
    /// Who it waits for.
    pub standing: Standing,
    /// Its owner's place among those that share.
    pub tenant: u32,
    /// How many that came later stand before it for their deadlines, or did.
    pub overtaken: u32,
    /// Positions whose rows of logits are asked for besides those that sample.
    pub asked: Range<usize>,
    /// Whether the host chooses its tokens: no step is launched for one that it does not know.
    pub by_host: bool,
    /// Its place in the prefix cache; none: it neither reads nor fills it.
    pub prefix: Option<CachedPrefix>,
    /// Its owner's.
    pub data: T,
}

impl<T> Sequence<T> {
    /// A request with `prompt` tokens that may generate up to `new` more.
    pub fn new(id: u64, prompt: Vec<u32>, new: usize, data: T) -> Self {
        let (len, limit) = (prompt.len(), prompt.len() + new);
        let (tokens, row) = (prompt, u32::MAX);
        Self {
            id,
            tokens,
            prompt: len,
            source: 0,
            source_positions: 0,
            done: 0,
            limit,
            row,
            in_flight: 0,
            sampled_in: u32::MAX,
            step: 0,
            kept: 0,
            arrival: u64::MAX,
            standing: Standing::of(0),
            tenant: u32::MAX,
            overtaken: 0,
            asked: 0..0,
            by_host: false,
            prefix: None,
            data,
        }
    }

    /// Tokens that have a place: known ones, and those in flight.
    pub fn len(&self) -> usize {
        self.tokens.len() + self.in_flight
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that a step may be launched for. The last one of a sequence is never run: nothing follows it.
    pub fn pending(&self) -> usize {
        let ended = self.len() >= self.limit && self.done >= self.prompt;
        match ended || self.is_awaited() {
            true => 0,
            false => self.len() - self.next(),
        }
    }

    /// Whether its next token is still to be chosen by the host.
    pub fn is_awaited(&self) -> bool {
        self.by_host && self.in_flight > 0
    }

    /// The position that its next step begins with. The same step runs the encoder, where it has not run.
    pub fn next(&self) -> usize {
        self.done.max(self.source_positions)
    }

    /// Tokens that its next step has an encoder read.
    pub fn to_encode(&self) -> usize {
        if self.done < self.source_positions { self.source } else { 0 }
    }

    /// Positions below `end` that are asked for and that steps so far have not brought back.
    pub fn asked_in(&self, start: usize, end: usize) -> Range<usize> {
        let from = self.asked.start.max(start).max(self.kept);
        from..self.asked.end.min(end).max(from)
    }

    /// The most of `len` tokens from its next one on that a step with room for `rows` rows of logits can
    /// have.
    pub(super) fn most_tokens(&self, len: usize, rows: usize) -> usize {
        let asked = self.asked_in(self.next(), self.next() + len);
        match asked.len() > rows {
            true => asked.start - self.next() + rows,
            false => len,
        }
    }

    /// A step was launched that leaves `end` positions in the cache, and samples in a row of its logits.
    pub(super) fn launched(&mut self, end: usize, step: u64, sampled_in: Option<u32>) {
        (self.done, self.step) = (end, step);
        if let Some(row) = sampled_in {
            self.in_flight += 1;
            self.sampled_in = row;
        }
    }

    /// What it needs next.
    pub fn phase(&self) -> Phase {
        if self.done >= self.prompt && self.done + 1 >= self.len() { Phase::Decode } else { Phase::Prefill }
    }

    /// Tokens sampled and collected so far.
    pub fn sampled(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// The token of a position, or the row of the logits of the step before that samples it.
    pub fn token(&self, position: usize) -> Token {
        match self.tokens.get(position) {
            Some(id) => Token::Known(*id),
            None => Token::SampledIn(self.sampled_in),
        }
    }
}

/// A token of a step that is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// Its id.
    Known(u32),
    /// It is in flight: the row of the logits of the step before that samples it.
    SampledIn(u32),
}
