//! Queries and keys of distances, which a block makes of the rows of a table by its own matmul (disentangled
//! attention).
//!
//! A step asks for the rows that its longest text needs and no more: they stand in the order of their
//! distances, the nearest first. A row is what it is whatever the others are, so no bit depends on it.

use super::{Block, Exec, Fused, Norm, Scratch, StepInputs};
use crate::mem::{Buf, Device, DeviceMem, Float, Mat, MatRef};
use crate::ops::{self, AttendDense, AttendDisentangled, Embed, GatherRows};
use crate::params::Heads;
use crate::policy::{Disentangled, ModelSpec, RelativeTable};
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

/// Buffers of the rows of distances, and of what a block makes of them.
#[derive(Debug)]
pub struct RelativeScratch<M> {
    spec: RelativeTable,
    /// Tokens of the longest text.
    longest: usize,
    /// Rows of the table, the nearest first; then which of them every distance has.
    words: Buf<M, u32>,
    /// Rows as they are stored `[rows, hidden]`.
    stored: Mat<M>,
    /// Rows as blocks read them.
    rows: Mat<M>,
    /// What a block makes of them `[rows, q | k | v]`.
    qkv: Mat<M>,
    /// Its queries and keys, a row for every distance `[2 * longest - 1, q | k]`.
    by_distance: Mat<M>,
}

fn missing() -> Error {
    Error::internal("no room for rows of distances")
}

impl<M: DeviceMem> RelativeScratch<M> {
    /// Buffers for texts of up to `tokens` rows; none for models without such a table.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut dyn FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let Some(table) = spec.embed.relative else { return Ok(None) };
        let longest = tokens.min(spec.max_positions).max(1);
        let (rows, distances) = (table.needed(longest), 2 * longest - 1);
        let most = |f: &dyn Fn(Heads) -> usize| spec.blocks.iter().map(|b| f(b.heads)).max().unwrap_or(0);
        let mut mat = |rows: usize, cols: usize| {
            let cols = cols.max(1);
            Mat::new(alloc(rows * cols * dtype.bytes())?, rows, cols, dtype)
        };
        let (stored, own) = (mat(rows, spec.hidden)?, mat(rows, spec.hidden)?);
        let qkv = mat(rows, most(&|heads| heads.qkv_cols()))?;
        let by_distance = mat(distances, most(&|heads| heads.q_cols() + heads.k_cols()))?;
        let words = table.rows() + distances;
        let words = Buf::new(alloc(4 * words)?, words)?;
        Ok(Some(Self { spec: table, longest, words, stored, rows: own, qkv, by_distance }))
    }

    /// What the words are from the first step on.
    pub(crate) fn first_words(&mut self) -> (Vec<u32>, &mut Buf<M, u32>) {
        let mut words = self.spec.nearest_first();
        words.extend(self.spec.by_distance(self.longest));
        (words, &mut self.words)
    }

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
        let Scratch { relative: Some(relative), qkv, attn, .. } = s else { return Err(missing()) };
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
