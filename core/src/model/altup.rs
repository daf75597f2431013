//! Several residual streams: how the embedding becomes them, what a block does with them around its own
//! work, and how they become one again. See [`AltupSpec`].
//!
//! They lie side by side in a buffer of their own; `residual` has the one that a block computes.

use super::stream_scratch::StreamScratch;
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::{Device, MatRef};
use crate::ops::{self, Add, Combine, Convert, Embed, MatchRms, Modulate, Scale};
use crate::policy::AltupSpec;
use crate::{Error, Result};
use std::ops::Range;

/// What makes streams of the embedding, and one of them at the end.
pub struct Streams<D: Device> {
    /// Their description.
    pub spec: AltupSpec,
    /// From the embedding to each stream but the first.
    pub project: Vec<Projection<D>>,
    /// From each stream but the first to what is merged.
    pub unembed: Vec<Projection<D>>,
}

/// The operands of a block that computes one of several streams.
pub struct Altup<D: Device> {
    /// Its description.
    pub spec: AltupSpec,
    /// Of what the router reads.
    pub norm: Norm<D>,
    /// `[inputs, hidden]`.
    pub router: Projection<D>,
    /// `[inputs * inputs, inputs]`.
    pub predict: Projection<D>,
    /// `[inputs, inputs]`.
    pub correct: Projection<D>,
    /// Factors of the columns that the block's own input reads `[1, hidden]`.
    pub scale: Option<D::Weight>,
}

fn missing() -> Error {
    Error::internal("no room for residual streams")
}

/// The columns of a stream.
fn columns(hidden: usize, stream: usize) -> Range<usize> {
    stream * hidden..(stream + 1) * hidden
}

impl<D: Device> Streams<D> {
    /// Makes the streams of the embedding in `residual`.
    pub(super) fn spread(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { residual, streams: Some(room), .. } = s else { return Err(missing()) };
        let hidden = residual.cols();
        let first = room.all.view_mut(tokens)?.columns(0..hidden)?;
        x.run(Convert { x: residual.view(tokens)?, bias: None, out: first })?;
        for (i, project) in self.project.iter().enumerate() {
            let out = room.all.view_mut(tokens)?.columns(columns(hidden, i + 1))?;
            x.run(project.linear(residual.view(tokens)?, out))?;
        }
        let others = room.all.view_mut(tokens)?.columns(hidden..self.spec.inputs * hidden)?;
        x.run(MatchRms { x: others, like: residual.view(tokens)?, floor: AltupSpec::FLOOR })
    }

    /// Leaves their mean in `residual`.
    pub(super) fn merge(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { residual, streams: Some(room), .. } = s else { return Err(missing()) };
        let hidden = residual.cols();
        let first = room.all.view(tokens)?.columns(0..hidden)?;
        x.run(Convert { x: first, bias: None, out: residual.view_mut(tokens)? })?;
        for (i, unembed) in self.unembed.iter().enumerate() {
            let from = room.all.view(tokens)?.columns(columns(hidden, i + 1))?;
            let out = room.predicted.view_mut(tokens)?.columns(columns(hidden, i + 1))?;
            x.run(unembed.linear(from, out))?;
        }
        let others = room.predicted.view_mut(tokens)?.columns(hidden..self.spec.inputs * hidden)?;
        x.run(MatchRms { x: others, like: residual.view(tokens)?, floor: AltupSpec::FLOOR })?;
        for i in 1..self.spec.inputs {
            let other = room.predicted.view(tokens)?.columns(columns(hidden, i))?;
            x.run(Add { acc: residual.view_mut(tokens)?, x: other })?;
        }
        let factor = (1.0 / self.spec.inputs as f64) as f32;
        x.run(Scale { x: residual.view_mut(tokens)?, factor, cap: None })
    }
}

impl<D: Device> Altup<D> {
    /// Leaves what is predicted of all streams in `predicted`, the active one in `residual`, and `norm` of it
    /// in `normed`.
    pub(super) fn predict(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        norm: Option<&Norm<D>>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { residual, normed, streams: Some(room), .. } = s else { return Err(missing()) };
        let (n, hidden) = (self.spec.inputs, residual.cols());
        let active = columns(hidden, self.spec.active);
        x.run(ops::Norm {
            x: room.all.view(tokens)?.columns(active.clone())?,
            norm: self.norm.weights(),
            out: normed.view_mut(tokens)?,
        })?;
        self.route(x, normed.view(tokens)?, room)?;
        let out = room.coefficients.shaped_mut(tokens, n * n)?;
        x.run(self.predict.linear(room.modalities.view(tokens)?, out))?;
        for i in 0..n {
            let weights = room.coefficients.shaped(tokens, n * n)?.columns(i * n..(i + 1) * n)?;
            let out = room.predicted.view_mut(tokens)?.columns(columns(hidden, i))?;
            x.run(Combine::chain(room.all.shaped(tokens * n, hidden)?, weights, false, out))?;
        }
        x.run(Add { acc: room.predicted.view_mut(tokens)?, x: room.all.view(tokens)? })?;
        let own = room.predicted.view(tokens)?.columns(active)?;
        x.run(Convert { x: own, bias: None, out: residual.view_mut(tokens)? })?;
        let Some(norm) = norm else { return Ok(()) };
        let (residual, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: residual, norm: norm.weights(), out })
    }

    /// Corrects what was predicted by what the block has made of it, which is in `residual`; leaves there
    /// what the block's own input reads.
    pub(super) fn correct(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { residual, normed, partial, streams: Some(room), .. } = s else {
            return Err(missing());
        };
        let (n, hidden) = (self.spec.inputs, residual.cols());
        let active = columns(hidden, self.spec.active);
        let (made, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: made, norm: self.norm.weights(), out })?;
        self.route(x, normed.view(tokens)?, room)?;
        let out = room.coefficients.shaped_mut(tokens, n)?;
        x.run(self.correct.linear(room.modalities.view(tokens)?, out))?;
        // What was made, less what was predicted.
        let own = room.predicted.view(tokens)?.columns(active.clone())?;
        x.run(Convert { x: own, bias: None, out: partial.view_mut(tokens)? })?;
        x.run(Scale { x: partial.view_mut(tokens)?, factor: -1.0, cap: None })?;
        x.run(Add { acc: partial.view_mut(tokens)?, x: residual.view(tokens)? })?;
        std::mem::swap(&mut room.all, &mut room.predicted);
        for i in 0..n {
            let weights = room.coefficients.shaped(tokens, n)?.columns(i..i + 1)?;
            let out = room.all.view_mut(tokens)?.columns(columns(hidden, i))?;
            x.run(Combine::chain(partial.view(tokens)?, weights, true, out))?;
            let acc = room.all.view_mut(tokens)?.columns(columns(hidden, i))?;
            x.run(Add { acc, x: partial.view(tokens)? })?;
        }
        let own = room.all.view(tokens)?.columns(active)?;
        x.run(Convert { x: own, bias: None, out: residual.view_mut(tokens)? })?;
        let Some(table) = &self.scale else { return Ok(()) };
        x.run(Embed { ids: room.zeros.view().slice(0..1)?, table, add: None, out: room.scale.view_mut(1)? })?;
        x.run(Modulate {
            x: residual.view_mut(tokens)?,
            scale: room.scale.view(1)?,
            shift: None,
            rows: room.zeros.view().slice(0..tokens)?,
            plus_one: false,
        })
    }

    /// Adds `normed`, what the block's own input gives, to all streams but the first.
    pub(super) fn join(x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { normed, streams: Some(room), .. } = s else { return Err(missing()) };
        let hidden = normed.cols();
        for i in 1..room.count() {
            let acc = room.all.view_mut(tokens)?.columns(columns(hidden, i))?;
            x.run(Add { acc, x: normed.view(tokens)? })?;
        }
        Ok(())
    }

    /// `modalities = tanh(R rows / hidden)`.
    fn route(
        &self,
        x: &mut Exec<'_, D>,
        rows: MatRef<'_, D::Mem>,
        room: &mut StreamScratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, factor) = (rows.rows(), (1.0 / rows.cols() as f64) as f32);
        x.run(self.router.linear(rows, room.modalities.view_mut(tokens)?))?;
        x.run(Scale { x: room.modalities.view_mut(tokens)?, factor, cap: Some(1.0) })
    }
}
