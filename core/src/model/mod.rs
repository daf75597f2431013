//! A model with its operands: embedding, blocks, head, and the order in which they run.
//!
//! Model code reaches ops through [`Exec`] alone and writes into [`Scratch`]; it never sees a checkpoint name. What
//! changes per step comes as a [`StepInputs`]. Blocks differ by their [`BlockSpec`](crate::policy::BlockSpec), not by
//! code.

mod block;
mod embed;
mod experts;
mod filter;
mod head;
mod own;
mod rope;
mod scratch;

pub use block::{Block, HeadNorms, Mlp};
pub use embed::Embedding;
pub use experts::Experts;
pub use filter::Filter;
pub use head::{Head, Pooler, Transform};
pub(crate) use own::Own;
pub use own::{MakeBlock, OwnBlock, Place};
pub use rope::{RopeTable, angles};
pub use scratch::Scratch;

use crate::backend::{Backend, Exec, Linear, NormCall, Prepared, Table};
use crate::kv::PagedKv;
use crate::mem::{MatRef, StepView};
use crate::policy::{ModelSpec, NormSpec, Origin, Placement, RopeScaling};
use crate::{Error, Result};
use std::sync::Arc;

/// A norm with its operands.
#[derive(Debug)]
pub struct Norm<W> {
    /// Which norm.
    pub spec: NormSpec,
    /// `[1, cols]`.
    pub weight: Prepared<W>,
    /// `[1, cols]`.
    pub bias: Option<Prepared<W>>,
}

impl<W> Norm<W> {
    /// What ops take.
    pub fn call(&self) -> NormCall<'_, W> {
        NormCall {
            kind: self.spec.kind,
            eps: self.spec.eps,
            weight: Some(&self.weight.raw),
            bias: self.bias.as_ref().map(|b| &b.raw),
            plus_one: self.spec.plus_one,
        }
    }
}

/// Device data that a step reads besides operands.
pub struct StepInputs<'a, B: Backend> {
    /// Ids, positions, bounds, ...
    pub view: StepView<'a, B::Mem>,
    /// The slabs; empty for encoders.
    pub kv: &'a PagedKv<B::Mem>,
    /// Pages of sequences.
    pub table: Table<'a, B::Mem>,
    /// Attention schedule.
    pub plan: &'a B::AttnPlan,
}

/// Sees hidden state `i` (0: what enters the first block) of every token row, in an eager step.
pub type Tap<'a, B> =
    &'a mut dyn FnMut(&mut <B as Backend>::Stream, usize, MatRef<'_, <B as Backend>::Mem>) -> Result<()>;

/// A model ready to run on `B`.
pub struct Model<B: Backend> {
    /// Its description.
    pub spec: ModelSpec,
    /// From ids to the residual stream.
    pub embed: Embedding<B::Weight>,
    /// Rotary tables that blocks refer to.
    pub ropes: Vec<RopeTable<B::Mem>>,
    /// The blocks; one that has another's operands is that one.
    pub blocks: Vec<Arc<Block<B::Weight>>>,
    /// Norm after the last block.
    pub final_norm: Option<Norm<B::Weight>>,
    /// Projection of the last hidden state.
    pub project_out: Option<Linear<B::Weight>>,
    /// What reads the last hidden state.
    pub head: Head<B::Weight>,
    /// The policy and the tensors behind it, of models that were read from a checkpoint.
    pub origin: Option<Origin>,
    /// A user's own blocks by layer; empty where there are none.
    own: Vec<Option<Own<B>>>,
}

impl<B: Backend> Model<B> {
    /// A model of its parts, every block the engine's.
    pub fn new(
        spec: ModelSpec,
        embed: Embedding<B::Weight>,
        ropes: Vec<RopeTable<B::Mem>>,
        blocks: Vec<Arc<Block<B::Weight>>>,
        final_norm: Option<Norm<B::Weight>>,
        project_out: Option<Linear<B::Weight>>,
        head: Head<B::Weight>,
    ) -> Self {
        Self { spec, embed, ropes, blocks, final_norm, project_out, head, origin: None, own: Vec::new() }
    }

    /// One step: the hidden states of all token rows, then the head on the wanted rows.
    ///
    /// Logits end up in `scratch.logits` `[rows, vocab]` f32, pooled rows in `scratch.pooled`.
    pub fn forward(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        scratch: &mut Scratch<B::Mem>,
        mut tap: Option<Tap<'_, B>>,
    ) -> Result<()> {
        let tokens = step.view.shape.tokens;
        let last = self.blocks.len();
        enter(x, None);
        self.embed.forward(x, step, scratch)?;
        if let Some(tap) = &mut tap {
            tap(x.stream, 0, scratch.residual.view(tokens))?;
        }
        let first = self.blocks.first().and_then(|b| b.attn_norm.as_ref());
        if let (true, Some(first)) = (self.spec.placement != Placement::Post, first) {
            let (r, h) = (&scratch.residual, &mut scratch.normed);
            x.norm(r.view(tokens), first.call(), h.view_mut(tokens))?;
        }
        for (i, block) in self.blocks.iter().enumerate() {
            enter(x, Some(i));
            let rope = block.spec.rope.and_then(|r| self.ropes.get(r)).map(RopeTable::view);
            let next = match self.blocks.get(i + 1) {
                Some(next) => next.attn_norm.as_ref(),
                None => self.final_norm.as_ref(),
            };
            match self.own.get(i).and_then(Option::as_ref) {
                None => block.forward(x, step, i, self.spec.placement, rope, next, scratch)?,
                Some(own) => {
                    let placement = self.spec.placement;
                    own.block
                        .forward(x, Place { layer: i, tokens, block, step, rope, scratch, placement })?;
                    if let (true, Some(next)) = (placement != Placement::Post, next) {
                        let (r, h) = (&scratch.residual, &mut scratch.normed);
                        x.norm(r.view(tokens), next.call(), h.view_mut(tokens))?;
                    }
                }
            }
            if let (Some(tap), true) = (&mut tap, i + 1 < last) {
                tap(x.stream, i + 1, scratch.residual.view(tokens))?;
            }
        }
        enter(x, None);
        self.finish(x, tokens, scratch)?;
        if let Some(tap) = &mut tap {
            tap(x.stream, last, self.hidden(scratch, tokens))?;
        }
        let hidden_in = self.hidden_place();
        self.head.forward(x, step, self.embed.tokens.as_ref(), hidden_in, scratch)
    }

    /// Puts an own block in the place of a layer's.
    ///
    /// # Errors
    /// `Config`, naming both, where another one has that place.
    pub(crate) fn graft(&mut self, layer: usize, own: Own<B>) -> Result<()> {
        self.own.resize_with(self.blocks.len(), || None);
        let Some(place) = self.own.get_mut(layer) else { return Err(Error::internal("no such layer")) };
        if let Some(other) = place {
            let (field, allowed) =
                (format!("own block of layer {layer}"), format!("one of the two: {}", other.name));
            return Err(Error::config(field, &own.name, allowed));
        }
        *place = Some(own);
        Ok(())
    }

    /// The name of the own block that runs in the place of a layer's.
    pub fn own_block(&self, layer: usize) -> Option<&str> {
        self.own.get(layer).and_then(Option::as_ref).map(|own| own.name.as_str())
    }

    /// What follows the last block and is not part of the head.
    fn finish(&self, x: &mut Exec<'_, B>, tokens: usize, scratch: &mut Scratch<B::Mem>) -> Result<()> {
        let pending = self.spec.placement == Placement::Post || self.blocks.is_empty();
        if let (true, Some(norm)) = (pending, &self.final_norm) {
            let (r, h) = (&scratch.residual, &mut scratch.normed);
            x.norm(r.view(tokens), norm.call(), h.view_mut(tokens))?;
        }
        let Some(project) = &self.project_out else { return Ok(()) };
        let from = match self.final_norm {
            Some(_) => scratch.normed.view(tokens),
            None => scratch.residual.view(tokens),
        };
        let Some(wide) = &mut scratch.wide else {
            return Err(Error::internal("no projection scratch"));
        };
        x.linear(from, project.view(), wide.shaped_mut(tokens, self.spec.out_width())?)
    }

    /// For prompts of `tokens` tokens: how far their rows of the rotary tables lie behind those of shorter prompts.
    pub fn rope_shift(&self, tokens: usize) -> u32 {
        let shifts = self.spec.ropes.iter().zip(&self.ropes).map(|(spec, table)| match spec.scaling {
            RopeScaling::Long { original, .. } if tokens > original => table.reach() as u32,
            _ => 0,
        });
        shifts.max().unwrap_or(0)
    }

    fn hidden_place(&self) -> head::HiddenIn {
        match (&self.project_out, &self.final_norm) {
            (Some(_), _) => head::HiddenIn::Wide,
            (None, Some(_)) => head::HiddenIn::Normed,
            (None, None) => head::HiddenIn::Residual,
        }
    }

    /// The last hidden state of a finished step.
    fn hidden<'s>(&self, scratch: &'s Scratch<B::Mem>, tokens: usize) -> MatRef<'s, B::Mem> {
        scratch.hidden(self.hidden_place(), tokens, self.spec.out_width())
    }
}

/// Tells the profiler which block comes.
fn enter<B: Backend>(x: &mut Exec<'_, B>, layer: Option<usize>) {
    if let Some(probe) = &mut x.probe {
        probe.enter(layer);
    }
}
