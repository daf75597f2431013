//! From ids, pixels or features of sound to the residual stream: tokens, projection, token types, positions,
//! norm.

use super::{Exec, InputsOfLayers, Norm, Projection, Relative, Scratch, Stem, StepInputs};
use crate::mem::Device;
use crate::ops::{self, Convert, Embed, Scale};
use crate::policy::{EmbedSpec, Project};
use crate::{Error, Result};

/// Tables of the embedding.
pub struct Embedding<D: Device> {
    /// Its description.
    pub spec: EmbedSpec,
    /// `[vocab, width]`; none where patches of pixels take its place.
    pub tokens: Option<D::Weight>,
    /// `[hidden, values of a patch]`.
    pub patches: Option<Projection<D>>,
    /// Convolutions over features; none where tokens are read.
    pub stem: Option<Stem<D>>,
    /// From width to hidden.
    pub project: Option<Projection<D>>,
    /// `[token types, columns of the sum]`.
    pub token_types: Option<D::Weight>,
    /// `[positions, columns of the sum]`, row 0 for position 0.
    pub positions: Option<D::Weight>,
    /// Norm over the sum.
    pub norm: Option<Norm<D>>,
    /// Inputs of the blocks' own.
    pub layers: Option<InputsOfLayers<D>>,
    /// Rows of distances.
    pub relative: Option<Relative<D>>,
}

impl<D: Device> Embedding<D> {
    /// Leaves the sum in `residual`; `table` is what a stack without a token table reads.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        table: Option<&D::Weight>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let tokens = step.view.shape.tokens;
        let table = self.tokens.as_ref().or(table);
        self.projected(x, step, table, s)?;
        self.stem.as_ref().map_or(Ok(()), |stem| stem.add_positions(x, tokens, s))?;
        self.layers.as_ref().map_or(Ok(()), |layers| layers.forward(x, step, s))?;
        let longest = step.view.shape.max_query;
        self.relative.as_ref().map_or(Ok(()), |relative| relative.forward(x, longest, s))
    }

    /// The same without positions that are convolutions.
    fn projected(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        table: Option<&D::Weight>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let tokens = step.view.shape.tokens;
        match (&self.project, self.spec.project) {
            (None, _) => {
                self.rows(x, step, table, s)?;
                self.sum(x, step, s)
            }
            (Some(project), order) => {
                // The narrow rows live in `residual`, as wide as they are, until they are projected.
                let wide = s.wide.take().ok_or_else(|| Error::internal("no projection scratch"))?;
                let full = std::mem::replace(&mut s.residual, wide);
                let done = self.rows(x, step, table, s);
                let done =
                    done.and_then(|()| if order == Project::Sum { self.sum(x, step, s) } else { Ok(()) });
                let narrow = std::mem::replace(&mut s.residual, full);
                // Back before any error: captured steps are replayed with this memory.
                let narrow = &*s.wide.insert(narrow);
                done?;
                let rows = narrow.shaped(tokens, self.spec.width)?;
                x.run(project.linear(rows, s.residual.view_mut(tokens)?))?;
                if order == Project::Tokens { self.sum(x, step, s) } else { Ok(()) }
            }
        }
    }

    /// Token rows, patches of pixels, or what the convolutions give; tokens scaled.
    fn rows(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        table: Option<&D::Weight>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, width) = (step.view.shape.tokens, self.spec.width);
        if let Some(patches) = &self.patches {
            let Some(image_patches) = &mut s.image_patches else {
                return Err(Error::internal("no room for pixels"));
            };
            return x.run(patches.linear(image_patches.view(tokens)?, s.residual.view_mut(tokens)?));
        }
        if let Some(stem) = &self.stem {
            return stem.forward(x, tokens, s);
        }
        let Some(table) = table else { return Err(Error::internal("no token table")) };
        let out = s.residual.shaped_mut(tokens, width)?;
        x.run(Embed { ids: step.view.ids, table, add: None, out })?;
        match self.spec.scale {
            Some(factor) => x.run(Scale { x: s.residual.shaped_mut(tokens, width)?, factor, cap: None }),
            None => Ok(()),
        }
    }

    /// Token types, positions, norm.
    fn sum(&self, x: &mut Exec<'_, D>, step: &StepInputs<'_, D>, s: &mut Scratch<D::Mem>) -> Result<()> {
        let (view, tokens) = (step.view, step.view.shape.tokens);
        let sum_width = match self.spec.project {
            Project::Sum => self.spec.width,
            Project::Tokens => s.partial.cols(),
        };
        for (table, ids) in [(&self.token_types, view.token_type_ids), (&self.positions, view.positions)] {
            if let Some(table) = table {
                let add = Some(s.partial.shaped_mut(tokens, sum_width)?);
                x.run(Embed { ids, table, add, out: s.residual.shaped_mut(tokens, sum_width)? })?;
            }
        }
        if let Some(norm) = &self.norm {
            let (sum, out) = (s.residual.shaped(tokens, sum_width)?, s.normed.shaped_mut(tokens, sum_width)?);
            x.run(ops::Norm { x: sum, norm: norm.weights(), out })?;
            let normed = s.normed.shaped(tokens, sum_width)?;
            x.run(Convert { x: normed, bias: None, out: s.residual.shaped_mut(tokens, sum_width)? })?;
        }
        Ok(())
    }
}
