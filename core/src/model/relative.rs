//! Queries and keys of distances, which a block makes of the rows of a table by its own matmul (disentangled
//! attention).
//!
//! A step asks for the rows that its longest text needs and no more: they stand in the order of their
//! distances, the nearest first. A row is what it is whatever the others are, so no bit depends on it.

use super::relative_scratch::RelativeScratch;
use super::{Block, Exec, Fused, Norm, Scratch, StepInputs};
use crate::mem::{Device, DeviceMem, MatRef};
use crate::ops::{self, AttendDense, AttendDisentangled, Embed, GatherRows};
use crate::params::Heads;
use crate::policy::{Disentangled, RelativeTable};
use crate::{Error, Result};

/// The operands of a [`RelativeTable`].
pub struct Relative<D: Device> {
    /// Its description.
    pub spec: RelativeTable,
    /// `[rows, hidden]`.
    pub table: D::Weight,
    /// Norm of the rows.
    pub norm: Option<Norm<D>>,
}

fn missing() -> Error {
    Error::internal("no room for rows of distances")
}

impl<M: DeviceMem> RelativeScratch<M> {
    /// Makes a block's queries and keys of every distance in texts of up to `longest` tokens.
    fn make<D: Device<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, D>,
        (qkv, heads): (&Fused<D>, Heads),
        longest: usize,
    ) -> Result<()> {
        let (count, cols) = (self.spec.needed(longest), heads.qkv_cols());
        qkv.run(x, self.rows.view(count)?, self.qkv.shaped_mut(count, cols)?)?;
        let both = heads.q_cols() + heads.k_cols();
        // The key that is `longest - 1` behind a query comes first.
        let first = self.spec.rows() + self.longest.saturating_sub(longest);
        let rows = self.words.view().slice(first..first + 2 * longest - 1)?;
        let made = self.qkv.shaped(count, cols)?.columns(0..both)?;
        x.run(GatherRows { x: made, rows, out: self.by_distance.shaped_mut(2 * longest - 1, both)? })
    }

    /// The queries and the keys of every distance.
    fn made(&self, heads: Heads, longest: usize) -> Result<[MatRef<'_, M>; 2]> {
        let (q, both) = (heads.q_cols(), heads.q_cols() + heads.k_cols());
        let made = self.by_distance.shaped(2 * longest - 1, both)?;
        Ok([made.columns(0..q)?, made.columns(q..both)?])
    }
}

impl<D: Device> Relative<D> {
    /// Leaves the rows that texts of up to `longest` tokens need where blocks read them.
    pub(super) fn forward(&self, x: &mut Exec<'_, D>, longest: usize, s: &mut Scratch<D::Mem>) -> Result<()> {
        let Some(RelativeScratch { words, stored, rows, .. }) = &mut s.relative else {
            return Err(missing());
        };
        let count = self.spec.needed(longest);
        let ids = words.view().slice(0..count)?;
        let Some(norm) = &self.norm else {
            return x.run(Embed { ids, table: &self.table, add: None, out: rows.view_mut(count)? });
        };
        x.run(Embed { ids, table: &self.table, add: None, out: stored.view_mut(count)? })?;
        x.run(ops::Norm { x: stored.view(count)?, norm: norm.weights(), out: rows.view_mut(count)? })
    }
}

impl<D: Device> Block<D> {
    /// Attention of whole texts whose scores have terms by distance.
    pub(super) fn attend_disentangled(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        terms: Disentangled,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (shape, heads) = (step.view.shape, self.spec.heads);
        let longest = shape.max_query.max(1);
        let Scratch { relative: Some(relative), workspace: qkv, attn, .. } = s else { return Err(missing()) };
        relative.make(x, (&self.qkv, heads), longest)?;
        let [queries, keys] = relative.made(heads, longest)?;
        let qkv = qkv.shaped(shape.tokens, heads.qkv_cols())?;
        let rows = (step.view.bounds, shape.max_query);
        let out = attn.shaped_mut(shape.tokens, heads.out_cols())?;
        let plain = AttendDense::fused(qkv, rows, heads, (&self.spec.scores, None, None), out)?;
        x.run(AttendDisentangled::of(
            plain,
            terms.position_to_content.then_some(queries),
            terms.content_to_position.then_some(keys),
        ))
    }
}
