//! One request as the scheduler sees it.

use crate::kv::CachedPrefix;

/// What a sequence needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Known tokens are not in the cache yet: of the prompt, or of all it has, once preempted.
    Prefill,
    /// One token is missing from the cache: the one sampled last.
    Decode,
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
            done: 0,
            limit,
            row,
            in_flight: 0,
            sampled_in: u32::MAX,
            step: 0,
            kept: 0,
            arrival: u64::MAX,
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
        match self.len() >= self.limit && self.done >= self.prompt {
            true => 0,
            false => self.len() - self.done,
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
