//! From ids or pixels to the residual stream: tokens, projection, token types, positions, norm.

use super::{Norm, Scratch, StepInputs};
use crate::backend::{Backend, Exec, Linear, Prepared};
use crate::policy::{EmbedSpec, Project};
use crate::{Error, Result};

/// Tables of the embedding.
#[derive(Debug)]
pub struct Embedding<W> {
    /// Its description.
    pub spec: EmbedSpec,
    /// `[vocab, width]`; none where squares of pixels take its place.
    pub tokens: Option<Prepared<W>>,
    /// `[hidden, values of a square]`.
    pub patches: Option<Linear<W>>,
    /// From width to hidden.
    pub project: Option<Linear<W>>,
    /// `[kinds, columns of the sum]`.
    pub kinds: Option<Prepared<W>>,
    /// `[positions, columns of the sum]`, row 0 for position 0.
    pub positions: Option<Prepared<W>>,
    /// Norm over the sum.
    pub norm: Option<Norm<W>>,
}

impl<W> Embedding<W> {
    /// Leaves the sum in `residual`.
    pub(super) fn forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let tokens = step.view.shape.tokens;
        match (&self.project, self.spec.project) {
            (None, _) => {
                self.rows(x, step, s)?;
                self.sum(x, step, s)
            }
            (Some(project), order) => {
                // The narrow rows live in `residual`, as wide as they are, until they are projected.
                let wide = s.wide.take().ok_or_else(|| Error::internal("no projection scratch"))?;
                let full = std::mem::replace(&mut s.residual, wide);
                let done = self.rows(x, step, s);
                let done =
                    done.and_then(|()| if order == Project::Sum { self.sum(x, step, s) } else { Ok(()) });
                let narrow = std::mem::replace(&mut s.residual, full);
                done?;
                let rows = narrow.shaped(tokens, self.spec.width)?;
                x.linear(rows, project.view(), s.residual.view_mut(tokens))?;
                s.wide = Some(narrow);
                if order == Project::Tokens { self.sum(x, step, s) } else { Ok(()) }
            }
        }
    }

    /// Token rows, or squares of pixels, scaled.
    fn rows<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, width) = (step.view.shape.tokens, self.spec.width);
        if let Some(patches) = &self.patches {
            let Some(squares) = &mut s.squares else { return Err(Error::internal("no room for pixels")) };
            return x.linear(squares.view(tokens), patches.view(), s.residual.view_mut(tokens));
        }
        let Some(table) = &self.tokens else { return Err(Error::internal("no token table")) };
        x.embed(step.view.ids, table, s.residual.shaped_mut(tokens, width)?)?;
        match self.spec.scale {
            Some(factor) => x.scale(s.residual.shaped_mut(tokens, width)?, factor, None),
            None => Ok(()),
        }
    }

    /// Token types, positions, norm.
    fn sum<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (view, tokens) = (step.view, step.view.shape.tokens);
        let sum_width = match self.spec.project {
            Project::Sum => self.spec.width,
            Project::Tokens => s.partial.cols(),
        };
        for (table, ids) in [(&self.kinds, view.kinds), (&self.positions, view.positions)] {
            if let Some(table) = table {
                let scratch = s.partial.shaped_mut(tokens, sum_width)?;
                x.embed_add(ids, table, scratch, s.residual.shaped_mut(tokens, sum_width)?)?;
            }
        }
        if let Some(norm) = &self.norm {
            let normed = s.normed.shaped_mut(tokens, sum_width)?;
            x.norm(s.residual.shaped(tokens, sum_width)?, norm.call(), normed)?;
            let normed = s.normed.shaped(tokens, sum_width)?;
            x.convert(normed, s.residual.shaped_mut(tokens, sum_width)?)?;
        }
        Ok(())
    }
}
