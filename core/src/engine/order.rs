//! What a coordinator orders of the runner of every rank, and what comes back: plain data, which other
//! threads and processes are sent.

use super::request::Layers;
use crate::Error;
use crate::mem::{StepShape, StepWords};
use crate::sample::SampleRow;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One step: what changes on the device before it, its words, and what to bring back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepOrder {
    /// From 1, in order and without a gap.
    pub number: u64,
    /// Shape and words of the step's buffer.
    pub words: StepWords,
    /// Shape and words of what an encoder reads first; no tokens where there is nothing to read.
    pub source: StepWords,
    /// Whether the shape is that of a bucket: a decode step that is captured once and replayed.
    pub captured: bool,
    /// Pages `(from, to)` to copy first, in every slab.
    pub copies: Vec<(u32, u32)>,
    /// Rows of the sampling table to write then.
    pub admitted: Vec<Admitted>,
    /// Token ids that [`Admitted::seen`] refers to.
    pub seen: Vec<u32>,
    /// Pixels `[tokens, values of a patch]`, of models that read images; features `[frames, columns]` of what
    /// an encoder of sound reads.
    pub values: Vec<f32>,
    /// Frames of every sequence of sound.
    pub frames: Vec<usize>,
    /// What to bring back.
    pub want: StepWant,
}

/// A sequence that a step admits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    /// Its request slot, which is its row of the sampling table.
    pub row: u32,
    /// How it samples.
    pub sampling: SampleRow,
    /// For a repetition penalty: which ids of [`StepOrder::seen`] its text has so far.
    pub seen: Option<Range<usize>>,
}

/// What a step brings back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepWant {
    /// The token sampled from every row of logits.
    pub tokens: bool,
    /// Logits of all token rows that the head reads.
    pub logits: bool,
    /// What the pooler makes of the same rows.
    pub pooled: bool,
    /// Hidden states of all tokens.
    pub hidden: Layers,
}

/// What a step brought back; absent parts are empty.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct StepResult {
    /// `[rows]`; rows here and below are those that the head read ([`StepShape`](crate::mem::StepShape)).
    pub tokens: Vec<u32>,
    /// `[rows, columns]`.
    pub logits: Vec<f32>,
    /// `[rows, columns]`.
    pub pooled: Vec<f32>,
    /// `[tokens, columns]` of every layer that was asked for.
    pub hidden: Vec<Vec<f32>>,
}

impl StepOrder {
    /// Takes an order back to be filled again: its memory stays.
    pub(super) fn clear(&mut self) {
        let Self { number, words: _, source, captured, copies, admitted, seen, values, frames, want } = self;
        (*number, *captured, *want) = (0, false, StepWant::default());
        source.begin(StepShape::default());
        copies.clear();
        admitted.clear();
        seen.clear();
        values.clear();
        frames.clear();
    }
}

/// An internal error for state that must be there.
pub(super) fn lost(what: &str) -> Error {
    Error::internal(format!("{what} is missing"))
}
