//! One request as the scheduler sees it.

/// What a sequence needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Known tokens are not in the cache yet.
    Prefill,
    /// One token is missing from the cache: the one sampled last.
    Decode,
}

/// Tokens of a request and how many of them are in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The request.
    pub id: u64,
    /// Prompt, then what was sampled.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Positions in the cache.
    pub done: usize,
    /// Most positions it may come to hold.
    pub limit: usize,
    /// Row of the page table and of the sampling table, once admitted.
    pub row: u32,
}

impl Sequence {
    /// A request with `prompt` tokens that may generate up to `new` more.
    pub fn new(id: u64, prompt: Vec<u32>, new: usize) -> Self {
        let (len, limit) = (prompt.len(), prompt.len() + new);
        let mut tokens = prompt;
        // Reserved at once: steps allocate nothing.
        tokens.reserve_exact(new);
        Self { id, tokens, prompt: len, done: 0, limit, row: u32::MAX }
    }

    /// Tokens that are not in the cache yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// What it needs next.
    pub fn phase(&self) -> Phase {
        if self.done >= self.prompt { Phase::Decode } else { Phase::Prefill }
    }

    /// Tokens sampled so far.
    pub fn sampled(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }
}
