//! How model code runs ops.
//!
//! Model code is generic over the [`Device`] whose operands it holds; who runs its ops is an [`Executor`]:
//! the engine's stream, or a recorder that only looks (the plan, and the check before a weight is read, are
//! such dry runs).

use crate::Result;
use crate::mem::{Device, MatMut, MatRef};
use crate::ops::{Checked, Op, Run};
use std::ops::Range;

/// Runs the ops of a step, or looks at them.
pub trait Executor<D: Device>: Run<D> {
    /// `x = sum of x over all ranks`, by the tree of leaves: x `[rows, cols]` f32. A rank that adds nothing
    /// has zeros, whatever its x holds.
    ///
    /// # Errors
    /// What the group raises.
    fn all_reduce(&mut self, x: MatMut<'_, D::Mem>, adds: bool) -> Result<()>;

    /// Gives every rank the columns of all: of x `[rows, cols]` each has written its own, `columns[rank]`.
    ///
    /// # Errors
    /// What the group raises.
    fn all_gather(&mut self, x: MatMut<'_, D::Mem>, columns: &[Range<usize>]) -> Result<()>;

    /// Ops from here on belong to `layer` (none: before the first or after the last).
    fn enter(&mut self, _layer: Option<usize>) {}

    /// Sees hidden state `i` (0: what enters the first block) of every token row.
    ///
    /// # Errors
    /// What reading it raises.
    fn hidden(&mut self, _i: usize, _rows: MatRef<'_, D::Mem>) -> Result<()> {
        Ok(())
    }
}

/// What model code runs its ops by.
pub struct Exec<'a, D: Device> {
    to: &'a mut dyn Executor<D>,
    /// Whether hidden states are shown to it.
    watched: bool,
}

impl<'a, D: Device> Exec<'a, D> {
    /// Runs ops by `executor`.
    pub fn new(executor: &'a mut dyn Executor<D>) -> Self {
        Self { to: executor, watched: true }
    }

    /// Checks an op and runs it.
    ///
    /// # Errors
    /// `Shape` and `Type` for operands that do not go together, and what running it raises.
    pub fn run<'o>(&mut self, op: impl Into<Op<'o, D>>) -> Result<()> {
        self.to.run(Checked::new(op)?)
    }

    /// `x = sum of x over all ranks`: see [`Executor::all_reduce`].
    ///
    /// # Errors
    /// What the group raises.
    pub fn all_reduce(&mut self, x: MatMut<'_, D::Mem>, adds: bool) -> Result<()> {
        self.to.all_reduce(x, adds)
    }

    /// Gives every rank the columns of all: see [`Executor::all_gather`].
    ///
    /// # Errors
    /// What the group raises.
    pub fn all_gather(&mut self, x: MatMut<'_, D::Mem>, columns: &[Range<usize>]) -> Result<()> {
        self.to.all_gather(x, columns)
    }

    /// The same, whose hidden states nobody sees: an encoder's, next to the decoder's.
    pub(super) fn unwatched(&mut self) -> Exec<'_, D> {
        Exec { to: &mut *self.to, watched: false }
    }

    pub(super) fn enter(&mut self, layer: Option<usize>) {
        self.to.enter(layer);
    }

    pub(super) fn hidden(&mut self, i: usize, rows: MatRef<'_, D::Mem>) -> Result<()> {
        match self.watched {
            true => self.to.hidden(i, rows),
            false => Ok(()),
        }
    }
}
