//! Attention over the keys that an index has chosen.
//!
//! Short keys lie next to keys and values in slots of one position, half of their columns as the keys and
//! half as the values of a slab of their own: so that pages, copies, stores and saved requests have them
//! without knowing of them. What is chosen is a page table of pages of one position, in which every query is
//! a sequence: attention is the op that it was. For that the block's keys and values lie in slots of one
//! position, too. A query that sees no more keys than it may choose reads all of them, and no score is
//! computed for it.

use super::index_scratch::{IndexScratch, ReadBy};
use super::input::Input;
use super::{Exec, Norm, Projection, Scratch, StepInputs};
use crate::mem::Device;
use crate::ops::{HeadNorm, IndexChoose, IndexScores, KvAppend, Rope, RopeView, Sequences};
use crate::policy::IndexSpec;
use crate::{Error, Result};

/// The operands of a block's index. See [`IndexSpec`].
pub struct Index<D: Device> {
    /// Its description.
    pub spec: IndexSpec,
    /// Columns between the two matmuls of the block's queries.
    pub query_rank: usize,
    /// `[heads * width, query_rank]`.
    pub query: Projection<D>,
    /// `[width, hidden]`.
    pub key: Projection<D>,
    /// Of keys.
    pub norm: Norm<D>,
    /// `[heads, hidden]`.
    pub factors: Projection<D>,
}

fn missing() -> Error {
    Error::internal("a block with an index without its buffers")
}

impl<D: Device> Index<D> {
    /// Keeps this step's keys, and chooses those that its queries read.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        (layer, rope): (usize, Option<RopeView<'_, D::Mem>>),
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        self.keep(x, step, (layer, rope), input, s)?;
        self.choose(x, step, layer, s.index.as_mut().ok_or_else(missing)?)
    }

    /// Makes queries and factors, and keeps this step's keys.
    fn keep(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        (layer, rope): (usize, Option<RopeView<'_, D::Mem>>),
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, view) = (step.view.shape.tokens, step.view);
        let Scratch { residual, normed, latent: Some(latent), index: Some(own), .. } = s else {
            return Err(missing());
        };
        let rows = input.read(residual, normed, tokens)?;
        let IndexSpec { heads, width, .. } = self.spec;
        let (queries, all) = (heads * width, (heads + 1) * width);
        let out = own.rows.shaped_mut(tokens, all)?.columns(0..queries)?;
        x.run(self.query.linear(latent.query_rows(tokens, self.query_rank)?, out))?;
        let out = own.rows.shaped_mut(tokens, all)?.columns(queries..all)?;
        x.run(self.key.linear(rows, out))?;
        let keys = own.rows.shaped_mut(tokens, all)?.columns(queries..all)?;
        x.run(HeadNorm { x: keys, width, norm: self.norm.weights() })?;
        if let Some(rope) = rope {
            let every = own.rows.shaped_mut(tokens, all)?;
            x.run(Rope { x: every, width, positions: view.positions, rope })?;
        }
        x.run(self.factors.linear(rows, own.factors.shaped_mut(tokens, heads)?))?;
        let middle = queries + self.spec.halves()[0];
        let rows = own.rows.shaped(tokens, all)?;
        let (k, v) = (rows.columns(queries..middle)?, rows.columns(middle..all)?);
        let kv = step.kv.next_to_mut(layer).ok_or_else(missing)?;
        x.run(KvAppend { k, v, slots: view.slots, kv })
    }

    /// Leaves the chosen keys of every token in `own`, as many tokens at a time as there is room for scores.
    fn choose(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        layer: usize,
        own: &mut IndexScratch<D::Mem>,
    ) -> Result<()> {
        let (shape, seqs, table) = (step.view.shape, Sequences::from(step.view), step.table);
        let [low, high] = step.kv.next_to(layer).ok_or_else(missing)?.rows()?;
        let IndexSpec { heads, width, .. } = self.spec;
        let (page_size, count, keys) = (own.page_size, own.count(&self.spec), shape.max_keys.max(1));
        let at_once = own.rows_at_once(keys);
        let scale = ((heads * width) as f64).powf(-0.5) as f32;
        for first in (0..shape.tokens).step_by(at_once) {
            let rows = at_once.min(shape.tokens - first);
            x.run(IndexScores {
                q: own.rows.shaped(shape.tokens, (heads + 1) * width)?.columns(0..heads * width)?,
                factors: own.factors.shaped(shape.tokens, heads)?,
                low,
                high,
                heads,
                scale,
                seqs,
                table,
                page_size,
                first,
                count,
                out: own.scores.shaped_mut(rows, keys)?,
            })?;
            let counts = own.counts_at() + first;
            x.run(IndexChoose {
                scores: own.scores.shaped(rows, keys)?,
                seqs,
                table,
                page_size,
                first,
                count,
                chosen: own.chosen.view_mut().slice(first * count..(first + rows) * count)?,
                counts: own.seqs.view_mut().slice(counts..counts + rows)?,
            })?;
        }
        Ok(())
    }
}

/// The sequences that attention reads and their pages: those of the step, or each of its queries with the
/// keys that were chosen for it.
pub(super) fn read_by<'s, D: Device>(
    spec: Option<&IndexSpec>,
    step: &'s StepInputs<'_, D>,
    own: Option<&'s IndexScratch<D::Mem>>,
) -> Result<ReadBy<'s, D::Mem>> {
    let Some(spec) = spec else { return Ok((step.view.into(), step.table)) };
    own.ok_or_else(missing)?.read_by(spec, step.view.shape)
}
