//! Experts without weights: they give what they read, so all that is left of them is the sum of the weights
//! that the router gives them.
//!
//! That sum is made on the device, as the choice is: every slot's expert looks up whether it is one of them.

use super::Exec;
use crate::mem::{BufRef, Device, DeviceMem, Float, Mat, MatMut, MatRef};
use crate::ops::{Combine, GatherRows};
use crate::policy::{BlockSpec, ModelSpec, MoeSpec};
use crate::{Error, Result};

/// Buffers of such experts.
#[derive(Debug)]
pub struct IdentityScratch<M> {
    /// Zeros, then ones `[experts, 1]`, f32: a block's experts are the rows around the first one.
    marks: Mat<M>,
    /// How many zeros.
    zeros: usize,
    /// Marks of the slots' experts `[slots, 1]`, f32.
    of_slots: Mat<M>,
    /// The sum of weights of a token's experts without weights `[tokens, 1]`, f32.
    weights: Mat<M>,
}

impl<M: DeviceMem> IdentityScratch<M> {
    /// Room for steps of up to `tokens` rows of up to `slots` slots; none for models without such experts.
    pub(super) fn new(
        spec: &ModelSpec,
        [tokens, slots]: [usize; 2],
        mat: &mut dyn FnMut(usize, usize, Float) -> Result<Mat<M>>,
    ) -> Result<Option<Self>> {
        let of = |block: &BlockSpec| block.moe.filter(|moe| moe.identities > 0);
        let all = || spec.blocks.iter().filter_map(of);
        let Some(ones) = all().map(|moe| moe.identities).max() else { return Ok(None) };
        if all().any(|moe| moe.bias) {
            // Biases are found by the router's number of an expert, which has no row for them.
            return Err(Error::config("experts without weights", ones, "0, where experts have biases"));
        }
        let zeros = all().map(|moe| moe.with_weights()).max().unwrap_or(0);
        Ok(Some(Self {
            marks: mat(zeros + ones, 1, Float::F32)?,
            zeros,
            of_slots: mat(slots, 1, Float::F32)?,
            weights: mat(tokens, 1, Float::F32)?,
        }))
    }

    /// What must be in the marks before the first step, and where.
    pub(super) fn marks(&mut self) -> Result<(Vec<f32>, MatMut<'_, M>)> {
        let rows = self.marks.rows();
        let values = (0..rows).map(|row| if row < self.zeros { 0.0 } else { 1.0 }).collect();
        Ok((values, self.marks.view_mut(rows)?))
    }

    /// Adds to `sum` what the experts without weights give: `rows`, which they read, times the sum of the
    /// weights of those that a token chose, one after the other.
    pub(super) fn add<D: Device<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, D>,
        spec: &MoeSpec,
        (experts, weights): (BufRef<'_, M, u32>, MatRef<'_, M>),
        rows: MatRef<'_, M>,
        sum: MatMut<'_, M>,
    ) -> Result<()> {
        let (tokens, slots) = (weights.rows(), experts.len());
        let marks = self.marks.view(self.marks.rows())?;
        // Of this block: its experts with weights are the last zeros.
        let marks = marks.row_range(self.zeros - spec.with_weights()..self.zeros + spec.identities)?;
        x.run(GatherRows { x: marks, rows: experts, out: self.of_slots.shaped_mut(slots, 1)? })?;
        let (of_slots, out) = (self.of_slots.shaped(slots, 1)?, self.weights.shaped_mut(tokens, 1)?);
        x.run(Combine::chain(of_slots, weights, false, out))?;
        x.run(Combine::chain(rows, self.weights.shaped(tokens, 1)?, true, sum))
    }
}
