//! A user's own code in the place of a block.
//!
//! An [`OwnBlock`] finds the residual stream in `scratch.residual` and leaves the next one there. Whatever norm the
//! following block begins with is the model's business, as are embedding, cache pages, head and sampling. The block that it
//! replaces is still there, with its operands: [`Place::standard`] runs it, so that wrapping it (a scaled branch, a vector
//! added, an adapter) is one line and leaving it out is none.
//!
//! Inside, [`Exec`] is the only door, as for the engine's own model code: the calls are checked, profiled, and enqueued. What
//! changes per step comes from device buffers (`step`), since steps may be recorded and replayed: numbers that the host
//! computes are frozen into a recording.

use super::{Block, Scratch, StepInputs};
use crate::Result;
use crate::backend::{Backend, Exec, RopeView};
use crate::policy::{ModelSpec, Placement};
use std::sync::Arc;

/// Takes the place of a block.
pub trait OwnBlock<B: Backend> {
    /// `residual = f(residual)` `[tokens, hidden]`, in the element type of activations.
    ///
    /// # Errors
    /// What its ops raise.
    fn forward(&self, x: &mut Exec<'_, B>, place: Place<'_, B>) -> Result<()>;
}

/// Looks at a layer of a model and gives the block that takes its place, or none; prepares its weights with the backend.
pub type MakeBlock<B> =
    dyn Fn(&Arc<B>, &ModelSpec, usize) -> Result<Option<Box<dyn OwnBlock<B>>>> + Send + Sync;

/// Where an own block runs.
pub struct Place<'a, B: Backend> {
    /// Which layer.
    pub layer: usize,
    /// Rows of this step.
    pub tokens: usize,
    /// The block that would have run.
    pub block: &'a Block<B::Weight>,
    /// Positions, bounds, pages.
    pub step: &'a StepInputs<'a, B>,
    /// The rotary table of this layer.
    pub rope: Option<RopeView<'a, B::Mem>>,
    /// The residual stream, and buffers that nobody else needs while this block runs.
    pub scratch: &'a mut Scratch<B::Mem>,
    pub(super) placement: Placement,
}

impl<B: Backend> Place<'_, B> {
    /// Runs the block that would have run.
    pub fn standard(&mut self, x: &mut Exec<'_, B>) -> Result<()> {
        self.block.forward(x, self.step, self.layer, self.placement, self.rope, None, self.scratch)
    }
}

/// An own block of a model.
pub(crate) struct Own<B: Backend> {
    /// As it was registered.
    pub name: String,
    /// What runs.
    pub block: Box<dyn OwnBlock<B>>,
}
