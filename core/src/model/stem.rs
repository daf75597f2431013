//! Convolutions over features of sound in the place of a token table, and positions by a convolution: each as
//! a matmul over its taps side by side, a part of the rows at a time.

use super::stem_scratch::{StemScratch, rows_at_once};
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::{BufRef, Device, Mat, MatMut, MatRef};
use crate::ops::{self, Activate, Add, Convert, GatherRows, GroupNorm};
use crate::params::Act;
use crate::policy::{ConvNorm, PositionConv, StemSpec};
use crate::{Error, Result};

/// The operands of a [`StemSpec`].
pub struct Stem<D: Device> {
    /// Its description.
    pub spec: StemSpec,
    /// Each `[outputs, kernel * inputs]`, and the norm behind it.
    pub convs: Vec<(Projection<D>, Option<Norm<D>>)>,
    /// Those of its positions.
    pub positions: Option<Positions<D>>,
}

/// The operands of a [`PositionConv`].
pub struct Positions<D: Device> {
    /// Of every group of columns `[columns, kernel * columns]`.
    pub groups: Vec<Projection<D>>,
    /// Norm of the sum.
    pub norm: Option<Norm<D>>,
}

/// What a convolution reads of every row, and where.
pub(super) struct Taps<'a, D: Device> {
    pub from: MatRef<'a, D::Mem>,
    /// Rows that each row reads.
    pub kernel: usize,
    /// First word of their taps.
    pub first: usize,
}

fn missing() -> Error {
    Error::internal("a stem without its buffers or operands")
}

impl<D: Device> Stem<D> {
    /// Leaves what the last convolution gives in the residual stream `[tokens, outputs]`.
    pub(super) fn forward(&self, x: &mut Exec<'_, D>, tokens: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Scratch { residual: out, workspace, stem: Some(stem), .. } = s else { return Err(missing()) };
        let StemScratch { features, windows, between, taps, frames, .. } = stem;
        let (mut from, mut to, mut first) = (between, workspace, 0);
        let mut lengths = frames.clone();
        let mut before: usize = lengths.iter().sum();
        for (i, (conv, (projection, norm))) in self.spec.convs.iter().zip(&self.convs).enumerate() {
            lengths.iter_mut().for_each(|length| *length = conv.rows(*length));
            let (rows, last): (usize, _) = (lengths.iter().sum(), i + 1 == self.spec.convs.len());
            let norm = norm.as_ref().zip(conv.norm);
            let input = match i {
                0 => features.view(before)?,
                _ => from.shaped(before, self.spec.inputs(i))?,
            };
            let given = match last && norm.is_none() {
                true => out.shaped_mut(tokens, conv.outputs)?,
                false => to.shaped_mut(rows, conv.outputs)?,
            };
            let read = Taps::<D> { from: input, kernel: conv.kernel, first };
            convolve(x, (projection, conv.act), &read, (taps.view(), windows), given)?;
            match norm {
                Some(norm) => {
                    let normed = match last {
                        true => out.shaped_mut(tokens, conv.outputs)?,
                        false => from.shaped_mut(rows, conv.outputs)?,
                    };
                    normalise(x, norm, &lengths, (to.shaped(rows, conv.outputs)?, normed))?;
                }
                None => std::mem::swap(&mut from, &mut to),
            }
            (first, before) = (first + rows * conv.kernel, rows);
        }
        Ok(())
    }

    /// Adds the positions to the residual stream.
    pub(super) fn add_positions(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (Some(Positions { groups, norm }), Some(spec)) = (&self.positions, self.spec.positions) else {
            return Ok(());
        };
        let Scratch { residual, normed, stem: Some(StemScratch { windows, taps, frames, .. }), .. } = s
        else {
            return Err(missing());
        };
        let PositionConv { kernel, act, .. } = spec;
        let width = residual.cols() / groups.len().max(1);
        let first = self.spec.words(&self.spec.rows_of(frames)).saturating_sub(tokens * kernel);
        for (group, projection) in groups.iter().enumerate() {
            let columns = group * width..(group + 1) * width;
            let from = residual.view(tokens)?.columns(columns.clone())?;
            let out = normed.view_mut(tokens)?.columns(columns)?;
            let read = Taps::<D> { from, kernel, first };
            convolve(x, (projection, Some(act)), &read, (taps.view(), windows), out)?;
        }
        x.run(Add { acc: residual.view_mut(tokens)?, x: normed.view(tokens)? })?;
        if let Some(norm) = norm {
            let (sum, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
            x.run(ops::Norm { x: sum, norm: norm.weights(), out })?;
            x.run(Convert { x: normed.view(tokens)?, bias: None, out: residual.view_mut(tokens)? })?;
        }
        Ok(())
    }
}

/// Gathers what some rows of `out` read, and multiplies them, until all are done.
pub(super) fn convolve<D: Device>(
    x: &mut Exec<'_, D>,
    (projection, act): (&Projection<D>, Option<Act>),
    read: &Taps<'_, D>,
    (taps, windows): (BufRef<'_, D::Mem, u32>, &mut Mat<D::Mem>),
    mut out: MatMut<'_, D::Mem>,
) -> Result<()> {
    let Taps { from, kernel, first } = *read;
    let (rows, window) = (out.rows(), kernel * from.cols());
    let step = rows_at_once(window);
    for start in (0..rows).step_by(step) {
        let part = start..(start + step).min(rows);
        let (count, at) = (part.len() * kernel, first + start * kernel);
        let gathered = windows.shaped_mut(count, from.cols())?;
        x.run(GatherRows { x: from, rows: taps.slice(at..at + count)?, out: gathered })?;
        let linear = projection.linear(windows.shaped(part.len(), window)?, out.reborrow().row_range(part)?);
        x.run(match act {
            Some(act) => linear.act(act),
            None => linear,
        })?;
    }
    Ok(())
}

/// The norm of every row, or of groups over the rows of each sequence; and what follows.
fn normalise<D: Device>(
    x: &mut Exec<'_, D>,
    (norm, spec): (&Norm<D>, ConvNorm),
    lengths: &[usize],
    (from, mut out): (MatRef<'_, D::Mem>, MatMut<'_, D::Mem>),
) -> Result<()> {
    match spec.groups {
        None => x.run(ops::Norm { x: from, norm: norm.weights(), out: out.reborrow() })?,
        Some(groups) => {
            let mut start = 0;
            for length in lengths {
                let rows = start..start + length;
                let (x_rows, out) = (from.row_range(rows.clone())?, out.reborrow().row_range(rows)?);
                x.run(GroupNorm { x: x_rows, groups, norm: norm.weights(), out })?;
                start += length;
            }
        }
    }
    match spec.act {
        Some(act) => x.run(Activate { x: out, act }),
        None => Ok(()),
    }
}
