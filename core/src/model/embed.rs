//! From ids to the residual stream: tokens, projection, token types, positions, norm.

use super::{Norm, Scratch, StepInputs};
use crate::Result;
use crate::backend::{Backend, Exec, Linear, Prepared};

/// Tables of the embedding.
#[derive(Debug)]
pub struct Embedding<W> {
    /// `[vocab, width]`.
    pub tokens: Prepared<W>,
    /// From width to hidden.
    pub project: Option<Linear<W>>,
    /// `[kinds, hidden]`.
    pub kinds: Option<Prepared<W>>,
    /// `[positions, hidden]`, row 0 for position 0.
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
        let (view, tokens) = (step.view, step.view.shape.tokens);
        match (&self.project, &mut s.wide) {
            (Some(project), Some(wide)) => {
                x.embed(view.ids, &self.tokens, wide.shaped_mut(tokens, self.tokens.cols)?)?;
                let wide = wide.shaped_mut(tokens, self.tokens.cols)?;
                x.linear(wide.as_ref(), project.view(), s.residual.view_mut(tokens))?;
            }
            _ => x.embed(view.ids, &self.tokens, s.residual.view_mut(tokens))?,
        }
        for (table, ids) in [(&self.kinds, view.kinds), (&self.positions, view.positions)] {
            if let Some(table) = table {
                x.embed_add(ids, table, s.partial.view_mut(tokens), s.residual.view_mut(tokens))?;
            }
        }
        if let Some(norm) = &self.norm {
            x.norm(s.residual.view(tokens), norm.call(), s.normed.view_mut(tokens))?;
            x.convert(s.normed.view(tokens), s.residual.view_mut(tokens))?;
        }
        Ok(())
    }
}
