//! Inputs of the blocks' own: where they come from, and what a block makes of its own at its end.
//!
//! They depend on the token and its embedding alone, so all are made before the first block; a block reads
//! its columns.

use super::layer_scratch::LayerScratch;
use super::{Exec, Norm, Projection, Scratch, StepInputs};
use crate::mem::{Device, Mat};
use crate::ops::{self, Add, Convert, Embed, Gate, HeadNorm, Scale};
use crate::policy::{LayerInput, LayerInputs};
use crate::{Error, Result};

/// The operands that give the inputs of all blocks. See [`LayerInputs`].
pub struct InputsOfLayers<D: Device> {
    /// Their description.
    pub spec: LayerInputs,
    /// `[rows, layers * width]`.
    pub table: D::Weight,
    /// `[layers * width, hidden]`.
    pub project: Projection<D>,
    /// Of what it gives, for every block.
    pub norm: Norm<D>,
}

/// The operands of a block that reads an input of its own. See [`LayerInput`].
pub struct InputOfLayer<D: Device> {
    /// Its description.
    pub spec: LayerInput,
    /// `[width, hidden]`.
    pub gate: Projection<D>,
    /// `[hidden, width]`.
    pub out: Projection<D>,
    /// Of what it gives.
    pub norm: Norm<D>,
}

fn missing() -> Error {
    Error::internal("no room for inputs of layers")
}

impl<D: Device> InputsOfLayers<D> {
    /// Leaves the inputs of all blocks in `layers.inputs`; the embedding is in `residual`.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, width) = (step.view.shape.tokens, self.spec.width);
        let Scratch { residual, layers: Some(LayerScratch { inputs, projected }), .. } = s else {
            return Err(missing());
        };
        let hidden = residual.cols();
        x.run(Embed { ids: step.view.ids, table: &self.table, add: None, out: inputs.view_mut(tokens)? })?;
        let scale = |mat: &mut Mat<D::Mem>, x: &mut Exec<'_, D>, factor: f64| {
            x.run(Scale { x: mat.view_mut(tokens)?, factor: factor as f32, cap: None })
        };
        scale(inputs, x, (width as f64).sqrt())?;
        x.run(self.project.linear(residual.view(tokens)?, projected.view_mut(tokens)?))?;
        scale(projected, x, (hidden as f64).powf(-0.5))?;
        x.run(HeadNorm { x: projected.view_mut(tokens)?, width, norm: self.norm.weights() })?;
        x.run(Add { acc: inputs.view_mut(tokens)?, x: projected.view(tokens)? })?;
        scale(inputs, x, 0.5f64.sqrt())
    }
}

impl<D: Device> InputOfLayer<D> {
    /// Leaves in `normed` what the block makes of its own input.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        layer: usize,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let LayerInput { width, act, .. } = self.spec;
        let Scratch { residual, normed, partial, gate_up, workspace: inner, layers: Some(own), .. } = s
        else {
            return Err(missing());
        };
        let gate = gate_up.shaped_mut(tokens, 2 * width)?.columns(0..width)?;
        x.run(self.gate.linear(residual.view(tokens)?, gate))?;
        let out = gate_up.shaped_mut(tokens, 2 * width)?.columns(width..2 * width)?;
        let input = own.inputs.view(tokens)?.columns(layer * width..(layer + 1) * width)?;
        x.run(Convert { x: input, bias: None, out })?;
        let (gate_up, out) = (gate_up.shaped(tokens, 2 * width)?, inner.shaped_mut(tokens, width)?);
        x.run(Gate { gate_up, act, clamp: None, out })?;
        x.run(self.out.linear(inner.shaped(tokens, width)?, partial.view_mut(tokens)?))?;
        let (from, out) = (partial.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: from, norm: self.norm.weights(), out })
    }
}
