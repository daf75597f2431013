//! The end of a block: what joins the residual stream behind its feed-forward part.

use super::shortcut::leaves_sum;
use super::{Altup, Block, Exec, Norm, Scratch};
use crate::Result;
use crate::mem::Device;
use crate::ops::{self, Add, Scale};

impl<D: Device> Block<D> {
    /// Whether nothing but the feed-forward part joins at the end of this block, `layer` of the model. The
    /// sum that its own experts have left waits for the next one from here on.
    pub(super) fn ends_plainly(&self, layer: usize, s: &mut Scratch<D::Mem>) -> bool {
        let plain = self.input.is_none() && self.end_factor.is_none() && self.altup.is_none();
        let Some(shortcut) = &mut s.shortcut else { return plain };
        if leaves_sum(&self.spec) {
            shortcut.end_of = Some(layer + 1);
        }
        plain && shortcut.end_of != Some(layer)
    }

    /// What a block does behind its feed-forward part: what an earlier one's experts gave, the correction
    /// of several residual streams, its own input, the factor, then what the next block begins with.
    pub(super) fn end(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        (layer, next): (usize, Option<&Norm<D>>),
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        if let Some(shortcut) = &mut s.shortcut {
            shortcut.add(x, tokens, layer, &mut s.residual)?;
        }
        if let Some(altup) = &self.altup {
            altup.correct(x, tokens, s)?;
        }
        if let Some(input) = &self.input {
            input.forward(x, tokens, layer, s)?;
            match self.altup {
                Some(_) => Altup::join(x, tokens, s)?,
                None => x.run(Add { acc: s.residual.view_mut(tokens)?, x: s.normed.view(tokens)? })?,
            }
        }
        if let Some(factor) = self.end_factor {
            x.run(Scale { x: s.residual.view_mut(tokens)?, factor, cap: None })?;
        }
        let Some(norm) = next else { return Ok(()) };
        let (residual, out) = (s.residual.view(tokens)?, s.normed.view_mut(tokens)?);
        x.run(ops::Norm { x: residual, norm: norm.weights(), out })
    }
}
