//! What a step computes, and what it may not go beyond.

use super::pace::StepCost;

/// A run of consecutive tokens of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Request slot of the sequence: [`Scheduler::sequence`](super::Scheduler::sequence).
    pub row: u32,
    /// First position.
    pub start: usize,
    /// Tokens.
    pub len: usize,
    /// Whether a new token is sampled behind them.
    pub samples: bool,
}

impl Slice {
    /// The position behind the last one.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// What a step computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepBatch {
    /// In the order of their token rows.
    pub slices: Vec<Slice>,
    /// Token rows.
    pub tokens: usize,
    /// Tokens that an encoder reads first, for sequences whose slice begins behind them.
    pub encodes: usize,
    /// Rows of logits.
    pub rows: usize,
    /// What its time depends on.
    pub cost: StepCost,
    /// Request slots of the sequences that were admitted for this step.
    pub admitted: Vec<u32>,
}

/// What no step goes beyond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Sequences that run at once.
    pub seqs: usize,
    /// Token rows.
    pub tokens: usize,
    /// Rows of logits.
    pub rows: usize,
    /// Milliseconds, where sequences decode; none: any.
    pub ms: Option<f64>,
}

impl Budget {
    /// Of sequences and tokens alone.
    pub fn new(seqs: usize, tokens: usize) -> Self {
        Self { seqs, tokens, rows: usize::MAX, ms: None }
    }
}

impl StepBatch {
    /// Room for steps of up to so many sequences.
    pub fn with_capacity(seqs: usize) -> Self {
        let (slices, admitted) = (Vec::with_capacity(seqs), Vec::with_capacity(seqs));
        Self { slices, admitted, ..Self::default() }
    }

    /// A part more, with so many rows of logits, behind so many tokens that an encoder reads.
    pub(super) fn push(&mut self, slice: Slice, rows: usize, encodes: usize) {
        self.slices.push(slice);
        self.encodes += encodes;
        self.tokens += slice.len;
        self.rows += rows;
        self.cost = self.cost.with(slice.start, slice.len).with(0, encodes);
    }

    pub(super) fn clear(&mut self) {
        self.slices.clear();
        self.admitted.clear();
        (self.tokens, self.encodes, self.rows, self.cost) = (0, 0, 0, StepCost::default());
    }
}
