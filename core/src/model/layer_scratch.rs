//! Buffers of the inputs of the blocks' own.

use crate::Result;
use crate::mem::{DeviceMem, Float, Mat};
use crate::policy::ModelSpec;

/// Buffers of the inputs of all blocks `[tokens, layers * width]`, f32: they are rounded where a block reads
/// its own.
#[derive(Debug)]
pub struct LayerScratch<M> {
    /// The inputs.
    pub inputs: Mat<M>,
    /// What the embedding gives of them, before it is added.
    pub projected: Mat<M>,
}

impl<M: DeviceMem> LayerScratch<M> {
    /// Buffers for steps of up to `tokens` rows; none for models without such inputs.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let Some(cols) = spec.layer_columns() else { return Ok(None) };
        let (rows, dtype) = (tokens.max(1), Float::F32);
        let mut mat = || Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype);
        Ok(Some(Self { inputs: mat()?, projected: mat()? }))
    }
}
