//! From hidden states of the wanted rows to logits, labels or pooled rows.

use super::scratch::HiddenIn;
use super::{Exec, Norm, Projection, Scratch, StepInputs};
use crate::mem::Device;
use crate::ops::{self, Convert, GatherRows, Linear, Scale};
use crate::params::Act;
use crate::policy::{Group, HeadSpec};
use crate::{Error, Result};

/// What makes a pooled row.
pub struct Pooler<D: Device> {
    /// Norm of the row.
    pub norm: Option<Norm<D>>,
    /// Dense layer.
    pub dense: Option<Projection<D>>,
    /// What follows it.
    pub act: Option<Act>,
}

/// What comes before a head's matmul: `norm(act(dense(row)))`.
pub struct Transform<D: Device> {
    /// Dense layer.
    pub dense: Projection<D>,
    /// What follows it.
    pub act: Act,
    /// And the norm.
    pub norm: Option<Norm<D>>,
}

/// The head's operands.
pub struct Head<D: Device> {
    /// Its description.
    pub spec: HeadSpec,
    /// Pooled rows.
    pub pooler: Option<Pooler<D>>,
    /// Of masked heads.
    pub transform: Option<Transform<D>>,
    /// The matmul; none borrows the token table.
    pub weight: Option<D::Weight>,
    /// Its bias.
    pub bias: Option<D::Weight>,
    /// Of a rank: who has which rows of the vocabulary.
    pub group: Option<Group>,
}

impl<D: Device> Head<D> {
    /// Leaves logits in `logits` and pooled rows in `pooled`.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        tokens_table: Option<&D::Weight>,
        hidden: HiddenIn,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, rows) = (step.view.shape.tokens, step.view.shape.rows);
        if rows == 0 || (self.spec == HeadSpec::None && self.pooler.is_none()) {
            return Ok(());
        }
        let width = s.head_width;
        let (from, [out, _]) = s.hidden_of(hidden, tokens, width)?;
        x.run(GatherRows { x: from, rows: step.view.wanted, out: out.shaped_mut(rows, width)? })?;
        self.pool(x, rows, s)?;
        let input = self.transformed(x, rows, s)?;
        let HeadSpec::Tokens { scale, cap, .. } = self.spec else {
            return match self.spec {
                HeadSpec::Labels { .. } => self.labels(x, rows, s),
                _ => Ok(()),
            };
        };
        let Some(logits) = &mut s.logits else { return Ok(()) };
        let input = s.head_in.shaped(rows, input)?;
        match self.group.as_ref().filter(|group| !group.vocabulary.is_empty()) {
            None => {
                let weight = self.weight.as_ref().or(tokens_table);
                let weight = weight.ok_or_else(|| Error::internal("a head without a weight"))?;
                x.run(Linear::new(input, weight, self.bias.as_ref(), logits.view_mut(rows)?))?;
            }
            Some(Group { vocabulary, rank, .. }) => {
                if let (Some(weight), Some(own)) = (&self.weight, vocabulary.get(rank.index)) {
                    let out = logits.view_mut(rows)?.columns(own.clone())?;
                    x.run(Linear::new(input, weight, self.bias.as_ref(), out))?;
                }
                x.all_gather(logits.view_mut(rows)?, vocabulary)?;
            }
        }
        match (scale, cap) {
            (1.0, None) => Ok(()),
            _ => x.run(Scale { x: logits.view_mut(rows)?, factor: scale, cap }),
        }
    }

    /// Leaves the transformed rows in `head_in` and says how wide they are.
    fn transformed(&self, x: &mut Exec<'_, D>, rows: usize, s: &mut Scratch<D::Mem>) -> Result<usize> {
        let full = s.head_width;
        let Some(Transform { dense, act, norm }) = &self.transform else { return Ok(full) };
        let width = dense.outputs();
        let Some(other) = &mut s.head_other else { return Err(Error::internal("no scratch for the head")) };
        let out = other.shaped_mut(rows, width)?;
        x.run(dense.linear(s.head_in.shaped(rows, full)?, out).act(*act))?;
        let (from, to) = (other.shaped(rows, width)?, s.head_in.shaped_mut(rows, width)?);
        match norm {
            Some(norm) => x.run(ops::Norm { x: from, norm: norm.weights(), out: to })?,
            None => x.run(Convert { x: from, bias: None, out: to })?,
        }
        Ok(width)
    }

    fn pool(&self, x: &mut Exec<'_, D>, rows: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let (Some(pooler), Some(pooled)) = (&self.pooler, &mut s.pooled) else { return Ok(()) };
        let mut row = s.head_in.shaped(rows, s.head_width)?;
        if let Some(norm) = &pooler.norm {
            let Some(other) = &mut s.head_other else {
                return Err(Error::internal("no scratch for the head"));
            };
            let out = other.shaped_mut(rows, s.head_width)?;
            x.run(ops::Norm { x: row, norm: norm.weights(), out })?;
            row = other.shaped(rows, s.head_width)?;
        }
        let out = pooled.view_mut(rows)?;
        match (&pooler.dense, pooler.act) {
            (Some(dense), Some(act)) => x.run(dense.linear(row, out).act(act)),
            (Some(dense), None) => x.run(dense.linear(row, out)),
            (None, _) => x.run(Convert { x: row, bias: None, out }),
        }
    }

    fn labels(&self, x: &mut Exec<'_, D>, rows: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let (Some(pooled), Some(logits), Some(weight)) = (&s.pooled, &mut s.logits, &self.weight) else {
            return Err(Error::internal("labels without a pooled row"));
        };
        x.run(Linear::new(pooled.view(rows)?, weight, self.bias.as_ref(), logits.view_mut(rows)?))
    }
}
