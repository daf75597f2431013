//! From hidden states of the wanted rows to logits, labels or pooled rows.

use super::{Norm, Scratch, StepInputs};
use crate::Result;
use crate::backend::{Backend, Exec, Linear, LinearRef, Prepared};
use crate::ops::Act;
use crate::policy::HeadSpec;

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

/// The head's operands.
#[derive(Debug)]
pub struct Head<W> {
    /// Its description.
    pub spec: HeadSpec,
    /// `tanh(dense(row))`.
    pub pooler: Option<Linear<W>>,
    /// `norm(act(dense(row)))` of masked heads.
    pub transform: Option<(Linear<W>, Act, Norm<W>)>,
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
        tokens_table: &Prepared<W>,
        hidden: HiddenIn,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, rows) = (step.view.shape.tokens, step.view.shape.rows);
        if rows == 0 || (self.spec == HeadSpec::None && self.pooler.is_none()) {
            return Ok(());
        }
        let width = s.head_in.cols();
        let from = s.hidden_of(hidden, tokens, width);
        x.gather_rows(from.0, step.view.wanted, from.1.view_mut(rows))?;
        if let (Some(dense), Some(pooled)) = (&self.pooler, &mut s.pooled) {
            x.linear_act(s.head_in.view(rows), dense.view(), Act::Tanh, pooled.view_mut(rows))?;
        }
        if let (Some((dense, act, norm)), Some(other)) = (&self.transform, &mut s.head_other) {
            x.linear_act(s.head_in.view(rows), dense.view(), *act, other.view_mut(rows))?;
            x.norm(other.view(rows), norm.call(), s.head_in.view_mut(rows))?;
        }
        let input = match (self.spec, &s.pooled) {
            (HeadSpec::Labels { .. }, Some(pooled)) => pooled.view(rows),
            _ => s.head_in.view(rows),
        };
        let Some(logits) = &mut s.logits else { return Ok(()) };
        let weight = self.weight.as_ref().unwrap_or(tokens_table);
        x.linear(input, LinearRef { weight, bias: self.bias.as_ref() }, logits.view_mut(rows))
    }
}
