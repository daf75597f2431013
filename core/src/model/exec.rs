//! The door through which model code reaches ops.
//!
//! Model code is generic over the [`Device`] whose operands it holds; who runs its ops is an [`Executor`]:
//! the engine's stream, or a recorder that only looks (the plan, and the check before a weight is read, are
//! such dry runs).

use crate::Result;
use crate::mem::{Device, MatMut, MatRef};
use crate::ops::{Add, AddNorm, Checked, Norm, NormWeights, Op, Run};

/// Runs the ops of a step, or looks at them.
pub trait Executor<D: Device>: Run<D> {
    /// `x = sum of x over all ranks`.
    ///
    /// # Errors
    /// What the group raises.
    fn all_reduce(&mut self, x: MatMut<'_, D::Mem>) -> Result<()>;

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
pub struct Exec<'a, D: Device>(&'a mut dyn Executor<D>);

impl<'a, D: Device> Exec<'a, D> {
    /// A door to `executor`.
    pub fn new(executor: &'a mut dyn Executor<D>) -> Self {
        Self(executor)
    }

    /// Checks an op and runs it.
    ///
    /// # Errors
    /// `Shape` and `Type` for operands that do not go together, and what running it raises.
    pub fn run<'o>(&mut self, op: impl Into<Op<'o, D>>) -> Result<()> {
        self.0.run(Checked::new(op)?)
    }

    /// `residual += sum of partial over all ranks; out = norm(residual)`; partial is overwritten.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub fn reduce_add_norm(
        &mut self,
        residual: MatMut<'_, D::Mem>,
        mut partial: MatMut<'_, D::Mem>,
        norm: NormWeights<'_, D>,
        out: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        self.0.all_reduce(partial.reborrow())?;
        self.run(AddNorm { residual, x: partial.as_ref(), norm, out })
    }

    /// `residual += sum of partial over all ranks`, where no norm follows; partial is overwritten.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub fn reduce_add(
        &mut self,
        residual: MatMut<'_, D::Mem>,
        mut partial: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        self.0.all_reduce(partial.reborrow())?;
        self.run(Add { acc: residual, x: partial.as_ref() })
    }

    /// `out = norm(sum of partial over all ranks)`; partial is overwritten.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub fn reduce_norm(
        &mut self,
        mut partial: MatMut<'_, D::Mem>,
        norm: NormWeights<'_, D>,
        out: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        self.0.all_reduce(partial.reborrow())?;
        self.run(Norm { x: partial.as_ref(), norm, out })
    }

    pub(super) fn enter(&mut self, layer: Option<usize>) {
        self.0.enter(layer);
    }

    pub(super) fn hidden(&mut self, i: usize, rows: MatRef<'_, D::Mem>) -> Result<()> {
        self.0.hidden(i, rows)
    }
}
