//! Gates of the feed-forward part that are zero below a row's mean plus some deviations.

use super::{Block, Exec, Scratch};
use crate::mem::Device;
use crate::ops::{Convert, GaussianTopk};
use crate::{Error, Result};

impl<D: Device> Block<D> {
    /// Applies the cutoff to the gates in the first columns of `gate_up`, where the block has one. A rank
    /// that has some of the gates does it on those of all, so that its own are as on one rank.
    pub(super) fn limit_gates(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (Some(deviations), own) = (self.spec.mlp.cutoff, self.spec.mlp.inner) else { return Ok(()) };
        let Scratch { gate_up, all_heads, .. } = s;
        let Some(columns) = &self.whole_gates else {
            let gates = gate_up.shaped_mut(tokens, 2 * own)?.columns(0..own)?;
            return x.run(GaussianTopk { x: gates, deviations });
        };
        let Some(all) = all_heads else { return Err(Error::internal("nowhere to gather gates")) };
        let width = columns.iter().map(|range| range.end).max().unwrap_or(0);
        let mine = columns.get(self.rank).cloned().unwrap_or(0..0);
        if own > 0 {
            let gates = gate_up.shaped(tokens, 2 * own)?.columns(0..own)?;
            let out = all.shaped_mut(tokens, width)?.columns(mine.clone())?;
            x.run(Convert { x: gates, bias: None, out })?;
        }
        x.all_gather(all.shaped_mut(tokens, width)?, columns)?;
        if own == 0 {
            return Ok(());
        }
        x.run(GaussianTopk { x: all.shaped_mut(tokens, width)?, deviations })?;
        let out = gate_up.shaped_mut(tokens, 2 * own)?.columns(0..own)?;
        x.run(Convert { x: all.shaped(tokens, width)?.columns(mine)?, bias: None, out })
    }
}
