//! A user's own code in the place of a block.
//!
//! An [`OwnBlock`] finds the residual stream in `scratch.residual` and leaves the next one there. Whatever
//! norm the following block begins with is the model's business, as are embedding, cache pages, head and
//! sampling. The block that it replaces is still there, with its operands: [`Place::standard`] runs it, so
//! that wrapping it (a scaled branch, a vector added, an adapter) is one line and leaving it out is none.
//!
//! A block runs whenever the engine makes a plan, too: one token, whose ops are looked at and not run. It
//! keeps no count of its calls.
//!
//! Inside, [`Exec`] is the only way to run ops, as for the engine's own model code: the calls are checked,
//! profiled, and enqueued. What changes per step comes from device buffers (`step`), since steps may be
//! captured and replayed: numbers that the host computes are frozen into the graph.

use super::block::At;
use super::{Block, Exec, Scratch, StepInputs};
use crate::Result;
use crate::mem::Device;
use crate::ops::RopeView;
use crate::policy::Placement;

/// Takes the place of a block.
pub trait OwnBlock<D: Device> {
    /// `residual = f(residual)` `[tokens, hidden]`, in the element type of activations.
    ///
    /// # Errors
    /// What its ops raise.
    fn forward(&self, x: &mut Exec<'_, D>, place: Place<'_, '_, D>) -> Result<()>;

    /// Whether decode steps of a model with this block may be captured and replayed. Without the promise they
    /// run op by op: the engine cannot know what memory the block's ops were given.
    fn capture(&self) -> Option<Capturable> {
        None
    }
}

/// The promise that a block's steps may be replayed.
#[derive(Debug, Clone, Copy)]
pub struct Capturable(());

impl Capturable {
    /// Promises it.
    ///
    /// # Safety
    /// All device memory that the block's ops are given is the engine's, or is neither freed nor written by
    /// anyone else as long as the model lives; and the block moves nothing out of [`Place::scratch`] or
    /// [`Place::step`], nor exchanges it.
    pub const unsafe fn promise() -> Self {
        Self(())
    }
}

/// Where an own block runs.
pub struct Place<'a, 's, D: Device> {
    /// Which layer.
    pub layer: usize,
    /// Rows of this step.
    pub tokens: usize,
    /// The block that would have run.
    pub block: &'a Block<D>,
    /// Positions, bounds, pages.
    pub step: &'a mut StepInputs<'s, D>,
    /// The rotary table of this layer.
    pub rope: Option<RopeView<'a, D::Mem>>,
    /// The residual stream, and buffers that nothing else needs while this block runs, but for `shortcut`:
    /// what experts of the block before gave, to be added at this one's end.
    pub scratch: &'a mut Scratch<D::Mem>,
    pub(super) ropes: [Option<RopeView<'a, D::Mem>>; 2],
    pub(super) placement: Placement,
}

impl<D: Device> Place<'_, '_, D> {
    /// Runs the block that would have run.
    ///
    /// # Errors
    /// What its ops raise.
    pub fn standard(&mut self, x: &mut Exec<'_, D>) -> Result<()> {
        let at = At { layer: self.layer, placement: self.placement, ropes: self.ropes };
        self.block.forward(x, self.step, at, None, self.scratch)
    }
}

/// An own block of a model.
pub(crate) struct Own<D: Device> {
    /// As it was registered.
    pub name: String,
    /// What runs.
    pub block: Box<dyn OwnBlock<D>>,
}
