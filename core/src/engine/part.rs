//! Slices of sequences as a step has them, and what they come to.

use super::order::StepWant;
use super::request::Want;
use crate::mem::StepShape;
use crate::schedule::{Slice, Token};

/// What a step has of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub id: u64,
    pub slice: Slice,
    /// Token rows that the head reads.
    pub rows: u32,
    /// Tokens in front that an encoder reads, and positions that they take.
    pub source: [u32; 2],
    /// Where it is one token that samples the next: that token. Most parts are such, and what is to be
    /// written of them is looked up once.
    pub lone: Option<Lone>,
    pub want: Want,
    /// Whether its row of logits is looked at where a token is sampled.
    pub looks: bool,
    pub keeps: bool,
    /// Whether it is one token that samples the next, behind no encoder's rows, and nothing but the next is
    /// of interest.
    pub bare: bool,
}

/// The one token of a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lone {
    pub token: Token,
    /// How far its row of the rotary tables lies behind its position.
    pub shift: u32,
}

/// What the parts of a step come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    /// Without tokens and changes of the page table.
    pub shape: StepShape,
    pub want: StepWant,
    /// Whether every part is one token that samples the next, and asks for no more than its probability.
    pub plain: bool,
    /// Whether every part is one token that samples the next.
    pub lone: bool,
}

impl Totals {
    /// Of no part.
    pub(super) fn new() -> Self {
        Self { shape: StepShape::default(), want: StepWant::default(), plain: true, lone: true }
    }

    pub(super) fn add(&mut self, part: &Part) {
        let Self { shape, want, .. } = self;
        let (Slice { len, samples, .. }, [source, positions]) = (part.slice, part.source);
        shape.rows += part.rows as usize;
        shape.max_keys = shape.max_keys.max(part.slice.end() - positions as usize).max(source as usize);
        shape.seqs += usize::from(len > 0);
        shape.max_query = shape.max_query.max(len);
        self.plain &= len == 1 && samples && Want { logprobs: false, ..part.want } == Want::default();
        self.lone &= part.lone.is_some();
        want.tokens |= samples;
        want.logits |= part.want.logits || (part.looks && samples);
        want.hidden = want.hidden.max(part.want.hidden);
    }

    /// The same of parts that are bare.
    pub(super) fn add_bare(&mut self, parts: &[Part]) {
        let (shape, count) = (&mut self.shape, parts.len());
        (shape.rows, shape.seqs) = (shape.rows + count, shape.seqs + count);
        shape.max_query = shape.max_query.max(count.min(1));
        shape.max_keys = parts.iter().fold(shape.max_keys, |most, part| most.max(part.slice.start + 1));
        self.want.tokens |= count > 0;
    }
}
