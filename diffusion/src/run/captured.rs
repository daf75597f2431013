//! Steps that are captured once and replayed from then on.
//!
//! A step runs the same ops at the same addresses as the one before. What differs between steps (sample,
//! times, residuals of a ControlNet) is copied into the graph's buffers before a replay; what a run begins
//! with (texts, masks, guidance, sizes) lies in buffers that steps only read. So a captured step depends on
//! two things: on the graph, which is made anew for other sizes, other numbers of pictures or texts and where
//! residuals are read, and on the operands, which differ between models and with a LoRA. It is held by the
//! graph that it is a step of, and knows its operands: those of another model are captured anew. As a model
//! keeps one graph, it keeps one captured step.
//!
//! Replay is safe because of who owns what: an executable graph allocates its buffers once and never moves
//! them, and a captured step holds the operands.

use crate::load::Operands;
use engraft_core::Result;
use engraft_core::backend::{Backend, Stream};
use engraft_core::graph::Captured;
use std::sync::Arc;

/// What became of a model's steps so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Steps that were captured: the first one of every size, and of all else that steps depend on.
    pub captured: u64,
    /// Steps that were replayed, those just captured among them.
    pub replayed: u64,
    /// Steps that ran op by op.
    pub op_by_op: u64,
    /// Why a step could not be captured, the last one of them; such steps run op by op.
    pub refused: Option<String>,
}

impl StepCounts {
    /// Those of two models.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            captured: self.captured + other.captured,
            replayed: self.replayed + other.replayed,
            op_by_op: self.op_by_op + other.op_by_op,
            refused: self.refused.or(other.refused),
        }
    }
}

/// Whether a model captures its steps, and what became of them.
#[derive(Debug, Clone)]
pub(crate) struct Graphs {
    pub(super) on: bool,
    /// Of steps so far.
    pub counts: StepCounts,
}

impl Graphs {
    /// On, where the backend can capture.
    pub fn of<B: Backend>(backend: &B) -> Self {
        Self { on: backend.caps().graphs, counts: StepCounts::default() }
    }

    /// On or off; never on where the backend cannot capture.
    pub fn set<B: Backend>(&mut self, backend: &B, on: bool) {
        self.on = on && backend.caps().graphs;
    }
}

/// A step captured with these operands.
pub(super) struct StepOf<B: Backend> {
    /// Goes before what it knows the addresses of.
    step: Captured<B>,
    operands: Operands<B>,
}

impl<B: Backend> StepOf<B> {
    /// One of these operands, not captured yet.
    pub(super) fn new(operands: &Operands<B>) -> Self {
        Self { step: Captured::default(), operands: operands.clone() }
    }

    pub(super) fn is_of(&self, operands: &Operands<B>) -> bool {
        Arc::ptr_eq(&self.operands, operands)
    }

    /// Captures `run` where that was not tried, and replays it; where it cannot be captured it runs op by op.
    ///
    /// # Safety
    /// All that `run` enqueues works on memory that lives at its address as long as this, and on the
    /// operands.
    pub(super) unsafe fn step(
        &mut self,
        stream: &mut B::Stream,
        counts: &mut StepCounts,
        mut run: impl FnMut(&mut B::Stream) -> Result<()>,
    ) -> Result<()> {
        if self.step.is_untried() {
            self.step.keep(stream.capture(&mut run), || "a step of pictures".into())?;
            counts.captured += u64::from(self.step.is_captured());
            counts.refused = self.step.refused().map(String::from).or(counts.refused.take());
        }
        // SAFETY: the caller's promise; the operands are held.
        if unsafe { self.step.replay(stream)? } {
            counts.replayed += 1;
            return Ok(());
        }
        counts.op_by_op += 1;
        run(stream)
    }
}
