//! From hidden states of the wanted rows to logits, labels or pooled rows.

use super::{Norm, Scratch, StepInputs};
use crate::backend::{Backend, Exec, Linear, LinearRef, Prepared};
use crate::params::Act;
use crate::policy::HeadSpec;
use crate::{Error, Result};

/// Which buffer holds the last hidden state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenIn {
    /// `residual`.
    Residual,
    /// `normed`.
    Normed,
    /// `wide`, after a projection.
    Wide,
}

/// What makes a pooled row.
#[derive(Debug)]
pub struct Pooler<W> {
    /// Norm of the row.
    pub norm: Option<Norm<W>>,
    /// Dense layer.
    pub dense: Option<Linear<W>>,
    /// What follows it.
    pub act: Option<Act>,
}

/// What comes before a head's product: `norm(act(dense(row)))`.
#[derive(Debug)]
pub struct Transform<W> {
    /// Dense layer.
    pub dense: Linear<W>,
    /// What follows it.
    pub act: Act,
    /// And the norm.
    pub norm: Option<Norm<W>>,
}

/// The head's operands.
#[derive(Debug)]
pub struct Head<W> {
    /// Its description.
    pub spec: HeadSpec,
    /// Pooled rows.
    pub pooler: Option<Pooler<W>>,
    /// Of masked heads.
    pub transform: Option<Transform<W>>,
    /// The product; none borrows the token table.
    pub weight: Option<Prepared<W>>,
    /// Its bias.
    pub bias: Option<Prepared<W>>,
}

impl<W> Head<W> {
    /// Leaves logits in `logits` and pooled rows in `pooled`.
    pub(super) fn forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        tokens_table: Option<&Prepared<W>>,
        hidden: HiddenIn,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, rows) = (step.view.shape.tokens, step.view.shape.rows);
        if rows == 0 || (self.spec == HeadSpec::None && self.pooler.is_none()) {
            return Ok(());
        }
        let width = s.head_width;
        let from = s.hidden_of(hidden, tokens, width);
        x.gather_rows(from.0, step.view.wanted, from.1.shaped_mut(rows, width)?)?;
        self.pool(x, rows, s)?;
        let input = self.transformed(x, rows, s)?;
        let HeadSpec::Tokens { scale, cap, .. } = self.spec else {
            return match self.spec {
                HeadSpec::Labels { .. } => self.labels(x, rows, s),
                _ => Ok(()),
            };
        };
        let Some(logits) = &mut s.logits else { return Ok(()) };
        let weight = self.weight.as_ref().or(tokens_table);
        let weight = weight.ok_or_else(|| Error::internal("a head without a weight"))?;
        let input = s.head_in.shaped(rows, input)?;
        x.linear(input, LinearRef { weight, bias: self.bias.as_ref() }, logits.view_mut(rows))?;
        match (scale, cap) {
            (1.0, None) => Ok(()),
            _ => x.scale(logits.view_mut(rows), scale, cap),
        }
    }

    /// Leaves the transformed rows in `head_in` and says how wide they are.
    fn transformed<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        rows: usize,
        s: &mut Scratch<B::Mem>,
    ) -> Result<usize> {
        let full = s.head_width;
        let Some(Transform { dense, act, norm }) = &self.transform else { return Ok(full) };
        let width = dense.weight.rows;
        let Some(other) = &mut s.head_other else { return Err(Error::internal("no scratch for the head")) };
        x.linear_act(s.head_in.shaped(rows, full)?, dense.view(), *act, other.shaped_mut(rows, width)?)?;
        let (from, to) = (other.shaped(rows, width)?, s.head_in.shaped_mut(rows, width)?);
        match norm {
            Some(norm) => x.norm(from, norm.call(), to)?,
            None => x.convert(from, to)?,
        }
        Ok(width)
    }

    fn pool<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        rows: usize,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (Some(pooler), Some(pooled)) = (&self.pooler, &mut s.pooled) else { return Ok(()) };
        let mut row = s.head_in.shaped(rows, s.head_width)?;
        if let Some(norm) = &pooler.norm {
            let Some(other) = &mut s.head_other else {
                return Err(Error::internal("no scratch for the head"));
            };
            x.norm(row, norm.call(), other.shaped_mut(rows, s.head_width)?)?;
            row = other.shaped(rows, s.head_width)?;
        }
        match (&pooler.dense, pooler.act) {
            (Some(dense), Some(act)) => x.linear_act(row, dense.view(), act, pooled.view_mut(rows)),
            (Some(dense), None) => x.linear(row, dense.view(), pooled.view_mut(rows)),
            (None, _) => x.convert(row, pooled.view_mut(rows)),
        }
    }

    fn labels<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        rows: usize,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (Some(pooled), Some(logits), Some(weight)) = (&s.pooled, &mut s.logits, &self.weight) else {
            return Err(Error::internal("labels without a pooled row"));
        };
        x.linear(pooled.view(rows), LinearRef { weight, bias: self.bias.as_ref() }, logits.view_mut(rows))
    }
}
