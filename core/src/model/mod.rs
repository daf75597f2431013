//! A model with its operands: embedding, blocks, head, and the order in which they run.
//!
//! Model code reaches ops through [`Exec`] alone and writes into [`Scratch`]; it never sees a checkpoint
//! name. What changes per step comes as a [`StepInputs`]. Blocks differ by their
//! [`BlockSpec`](crate::policy::BlockSpec), not by code.

mod altup;
mod apart;
mod block;
mod block_end;
mod cross;
mod cutoff;
mod embed;
mod exec;
mod expert_scratch;
mod experts;
mod filter;
mod head;
mod identities;
mod index;
mod index_scratch;
mod input;
mod latent;
mod latent_scratch;
mod laurel;
mod layer_conv;
mod layer_conv_scratch;
mod layer_input;
mod layer_scratch;
mod own;
mod parts;
mod relative;
mod relative_scratch;
mod rope;
mod scratch;
mod shortcut;
mod state;
mod stem;
mod stem_scratch;
mod stream_scratch;
#[cfg(test)]
mod tests;
mod values;

pub use altup::{Altup, Streams};
pub use apart::Apart;
pub use block::{Block, HeadNorms, Mlp};
pub use cross::Cross;
pub use embed::Embedding;
pub use exec::{Exec, Executor};
pub use experts::Experts;
pub use filter::Filter;
pub use head::{Head, Pooler, Transform};
pub use index::Index;
pub use index_scratch::IndexScratch;
pub use latent::Latent;
pub use latent_scratch::LatentScratch;
pub use laurel::Laurel;
pub use layer_conv::ConvOfLayer;
pub use layer_conv_scratch::ConvScratch;
pub use layer_input::{InputOfLayer, InputsOfLayers};
pub use layer_scratch::LayerScratch;
pub(crate) use own::Own;
pub use own::{Capturable, OwnBlock, Place};
pub use parts::{Fused, Norm, Projection, RowParallel, StepInputs};
pub use relative::Relative;
pub use relative_scratch::RelativeScratch;
pub use rope::{RopeShifts, RopeTable, angles, table_len};
pub use scratch::Scratch;
pub use shortcut::ShortcutScratch;
pub use state::{EncoderState, Sizes, State, index_dtype, slab_bytes, table_rows};
pub use stem::{Positions, Stem};
pub use stem_scratch::StemScratch;
pub use stream_scratch::{LaurelScratch, StreamScratch};

use crate::mem::{Device, Weight as _};
use crate::ops;
use crate::policy::{ModelSpec, Origin, Placement};
use crate::{Error, Result};
use block::At;
use std::sync::Arc;

/// A model ready to run on a kind of device.
pub struct Model<D: Device> {
    /// Its description.
    pub spec: ModelSpec,
    /// From ids to the residual stream.
    pub embed: Embedding<D>,
    /// What makes several residual streams of the embedding, and one of them at the end.
    pub streams: Option<Streams<D>>,
    /// Rotary tables that blocks refer to.
    pub ropes: Vec<RopeTable<D::Mem>>,
    /// The blocks; one that has another's operands is that one.
    pub blocks: Vec<Arc<Block<D>>>,
    /// Norm after the last block.
    pub final_norm: Option<Norm<D>>,
    /// Projection of the last hidden state.
    pub project_out: Option<Projection<D>>,
    /// What reads the last hidden state.
    pub head: Head<D>,
    /// The encoder whose last hidden states the blocks read.
    pub encoder: Option<Box<Model<D>>>,
    /// Factors of queries `[positions, 1]`.
    pub query_factors: Option<D::Weight>,
    /// The policy and the tensors behind it, of models that were read from a checkpoint.
    pub origin: Option<Origin>,
    /// A checksum of the tensors that were read, and of what became of them on the way; none of models that
    /// have blocks of their own.
    pub fingerprint: Option<u32>,
    /// Bytes of its operands on the device.
    pub(crate) weight_bytes: u64,
    /// A user's own blocks by layer; empty where there are none.
    pub(crate) own: Vec<Option<Own<D>>>,
}

impl<D: Device> Model<D> {
    /// Positions that its computed tables reach, of rotations, of sines and of factors; none without any.
    pub(crate) fn reach(&self) -> Option<usize> {
        let sines = self.embed.positions.as_ref().filter(|_| self.spec.embed.sinusoids.is_some());
        let tables = sines.into_iter().chain(&self.query_factors).map(|table| table.info().rows);
        self.ropes.iter().map(RopeTable::reach).chain(tables).min()
    }

    /// Limits the positions of either stack of an encoder and a decoder to those that its tables reach.
    pub(crate) fn stay_within_tables(&mut self) {
        let own = self.reach().unwrap_or(usize::MAX);
        let (Some(encoder), Some(spec)) = (&self.encoder, &mut self.spec.encoder) else { return };
        let other = encoder.reach().unwrap_or(usize::MAX);
        spec.stack.max_positions = spec.stack.max_positions.min(other);
        self.spec.max_positions = self.spec.max_positions.min(own);
    }

    /// One step: the hidden states of all token rows, then the head on the wanted rows.
    ///
    /// Logits end up in `scratch.logits` `[rows, vocab]` f32, pooled rows in `scratch.pooled`.
    ///
    /// # Errors
    /// What its ops raise.
    pub fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        scratch: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        self.stack(x, step, None, scratch)?;
        let place = self.hidden_place();
        let tokens = step.view.shape.tokens;
        x.hidden(self.blocks.len(), scratch.hidden(place, tokens, self.spec.out_width())?)?;
        self.head.forward(x, step, self.embed.tokens.as_ref(), place, scratch)
    }

    /// Hidden states of all token rows, up to the last norm or projection; `table` is the one that a stack
    /// without one reads.
    fn stack(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        table: Option<&D::Weight>,
        scratch: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, placement) = (step.view.shape.tokens, self.spec.placement);
        x.enter(None);
        if let Some(shortcut) = &mut scratch.shortcut {
            shortcut.end_of = None;
        }
        self.embed.forward(x, step, table, scratch)?;
        self.streams.as_ref().map_or(Ok(()), |streams| streams.spread(x, tokens, scratch))?;
        if let (Some(table), Some(growth)) = (&self.query_factors, &mut scratch.growth) {
            let out = growth.factors.shaped_mut(tokens, 1)?;
            x.run(ops::Embed { ids: step.view.positions, table, add: None, out })?;
        }
        x.hidden(0, scratch.state(tokens)?)?;
        self.norm_before(0, x, tokens, scratch)?;
        for (i, block) in self.blocks.iter().enumerate() {
            x.enter(Some(i));
            let rope_of = |number: Option<usize>| number.and_then(|r| self.ropes.get(r)).map(RopeTable::view);
            let ropes = [rope_of(block.spec.rope), rope_of(block.spec.index.map(|index| index.rope))];
            match self.own.get(i).and_then(Option::as_ref) {
                None => {
                    let at = At { layer: i, placement, ropes };
                    block.forward(x, step, at, self.norm_of(i + 1), scratch)?;
                }
                Some(own) => {
                    let rope = ropes[0];
                    let place = Place { layer: i, tokens, block, step, rope, scratch, ropes, placement };
                    own.block.forward(x, place)?;
                    if let Some(shortcut) = &mut scratch.shortcut {
                        shortcut.add(x, tokens, i, &mut scratch.residual)?;
                    }
                    self.norm_before(i + 1, x, tokens, scratch)?;
                }
            }
            if i + 1 < self.blocks.len() {
                x.hidden(i + 1, scratch.state(tokens)?)?;
            }
        }
        x.enter(None);
        self.finish(x, tokens, scratch)
    }

    /// The norm that block `layer` begins with; behind the last block the model's. None of several residual
    /// streams: what is normed is made by the block itself, or at the end.
    fn norm_of(&self, layer: usize) -> Option<&Norm<D>> {
        match self.blocks.get(layer) {
            _ if self.streams.is_some() => None,
            Some(block) => block.attn_norm.as_ref(),
            None => self.final_norm.as_ref(),
        }
    }

    /// Leaves in `normed` what block `layer` begins with, where no op before it did.
    fn norm_before(
        &self,
        layer: usize,
        x: &mut Exec<'_, D>,
        tokens: usize,
        scratch: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        // Without blocks the last norm is `finish`'s.
        match self.norm_of(layer).filter(|_| !self.blocks.is_empty()) {
            Some(norm) if self.spec.placement != Placement::Post => norm_residual(x, norm, tokens, scratch),
            _ => Ok(()),
        }
    }

    /// Puts an own block in the place of a layer's.
    ///
    /// # Errors
    /// `Config`, naming both, where another one has that place; and for models of several residual streams.
    pub(crate) fn graft(&mut self, layer: usize, own: Own<D>) -> Result<()> {
        if self.streams.is_some() {
            let field = format!("own block of layer {layer}");
            let allowed =
                "a model of one residual stream: of several, a block computes one and predicts the rest";
            return Err(Error::config(field, &own.name, allowed));
        }
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

    /// Whether its steps may be captured: no block of a user's own stands in the way.
    pub fn is_capturable(&self) -> bool {
        self.own.iter().flatten().all(|own| own.block.capture().is_some())
    }

    /// What follows the last block and is not part of the head.
    fn finish(&self, x: &mut Exec<'_, D>, tokens: usize, scratch: &mut Scratch<D::Mem>) -> Result<()> {
        let pending =
            self.spec.placement == Placement::Post || self.blocks.is_empty() || self.streams.is_some();
        self.streams.as_ref().map_or(Ok(()), |streams| streams.merge(x, tokens, scratch))?;
        if let (true, Some(norm)) = (pending, &self.final_norm) {
            norm_residual(x, norm, tokens, scratch)?;
        }
        let Some(project) = &self.project_out else { return Ok(()) };
        let from = match self.final_norm {
            Some(_) => scratch.normed.view(tokens)?,
            None => scratch.residual.view(tokens)?,
        };
        let Some(wide) = &mut scratch.wide else {
            return Err(Error::internal("no projection scratch"));
        };
        x.run(project.linear(from, wide.shaped_mut(tokens, self.spec.out_width())?))
    }

    /// How far prompts' rows of the rotary tables lie behind those of shorter ones.
    pub fn rope_shifts(&self) -> RopeShifts {
        RopeShifts::new(&self.spec.ropes, &self.ropes)
    }

    fn hidden_place(&self) -> scratch::HiddenIn {
        match (&self.project_out, &self.final_norm) {
            (Some(_), _) => scratch::HiddenIn::Wide,
            (None, Some(_)) => scratch::HiddenIn::Normed,
            (None, None) => scratch::HiddenIn::Residual,
        }
    }
}

/// `normed = norm(residual)`.
fn norm_residual<D: Device>(
    x: &mut Exec<'_, D>,
    norm: &Norm<D>,
    tokens: usize,
    scratch: &mut Scratch<D::Mem>,
) -> Result<()> {
    let (residual, out) = (scratch.residual.view(tokens)?, scratch.normed.view_mut(tokens)?);
    x.run(ops::Norm { x: residual, norm: norm.weights(), out })
}
