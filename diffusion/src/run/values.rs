//! The buffers of a graph's values.

use crate::graph::{Graph, Lives, Size, Value};
use engraft_core::mem::{DeviceMem, Mat, MatMut, MatRef};
use engraft_core::{Error, Result};

/// Buffers, and which value has which.
pub(super) struct Values<M> {
    /// The order of nodes and who shares a buffer.
    pub lives: Lives,
    sizes: Vec<Size>,
    /// By number; none while it is written.
    buffers: Vec<Option<Mat<M>>>,
}

pub(super) fn lost() -> Error {
    Error::internal("a value without its buffer")
}

impl<M: DeviceMem> Values<M> {
    /// Allocates the buffers of a graph.
    pub fn new(graph: &Graph, alloc: &mut dyn FnMut(usize) -> Result<Mat<M>>) -> Result<Self> {
        let lives = Lives::of(graph);
        let buffers = lives.sizes.iter().map(|elements| alloc(*elements).map(Some)).collect::<Result<_>>()?;
        Ok(Self { lives, sizes: graph.values.clone(), buffers })
    }

    fn buffer(&self, value: Value) -> Result<usize> {
        self.lives.buffers[value.0].ok_or_else(lost)
    }

    /// A value, to read.
    pub fn view(&self, value: Value) -> Result<MatRef<'_, M>> {
        let Size { rows, cols, .. } = self.sizes[value.0];
        self.buffers[self.buffer(value)?].as_ref().ok_or_else(lost)?.shaped(rows, cols)
    }

    /// Writes a value; others are read meanwhile.
    pub fn write(
        &mut self,
        value: Value,
        run: impl FnOnce(&Self, MatMut<'_, M>) -> Result<()>,
    ) -> Result<()> {
        let (buffer, Size { rows, cols, .. }) = (self.buffer(value)?, self.sizes[value.0]);
        let mut mat = self.buffers[buffer].take().ok_or_else(lost)?;
        let outcome = mat.shaped_mut(rows, cols).and_then(|out| run(self, out));
        self.buffers[buffer] = Some(mat);
        outcome
    }
}
