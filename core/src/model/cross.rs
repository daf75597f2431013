//! Attention of a decoder's block over what an encoder gives.
//!
//! Keys and values of the encoder's rows are made once, by the step that runs the encoder, and lie in pages
//! of the block's own slab. Their heads are those of the block, so that pages are counted, evicted, stored
//! and copied as any others; a sequence has two rows of the page table, the first for them.

use super::input::Input;
use super::parts::of_rank;
use super::{Exec, Fused, Norm, Projection, RowParallel, Scratch, StepInputs};
use crate::kv::PagedKv;
use crate::mem::{BufRef, Device, Mat, MatRef};
use crate::ops::{Attend, KvAppend, Sequences};
use crate::params::Heads;
use crate::policy::CrossSpec;
use crate::{Error, Result};

/// The part with its operands.
pub struct Cross<D: Device> {
    /// Its description.
    pub spec: CrossSpec,
    /// Its norm.
    pub norm: Option<Norm<D>>,
    /// Queries; none on a rank without heads.
    pub query: Option<Projection<D>>,
    /// Keys and values k | v.
    pub key_value: Fused<D>,
    /// Output.
    pub out: RowParallel<D>,
}

impl<D: Device> Cross<D> {
    /// Makes keys and values of an encoder's `rows` `[tokens, hidden]` and writes them to `slots`; `scratch`
    /// has room for both.
    pub(super) fn keep(
        &self,
        x: &mut Exec<'_, D>,
        (layer, heads): (usize, Heads),
        rows: MatRef<'_, D::Mem>,
        slots: BufRef<'_, D::Mem, i32>,
        (kv, scratch): (&mut PagedKv<D::Mem>, &mut Mat<D::Mem>),
    ) -> Result<()> {
        if heads.heads == 0 {
            return Ok(());
        }
        let (tokens, k, all) = (rows.rows(), heads.k_cols(), heads.k_cols() + heads.v_cols());
        self.key_value.run(x, rows, scratch.shaped_mut(tokens, all)?)?;
        let both = scratch.shaped(tokens, all)?;
        let kv = kv.layer_mut(layer).ok_or_else(|| missing(layer))?;
        x.run(KvAppend { k: both.columns(0..k)?, v: both.columns(k..all)?, slots, kv })
    }

    /// Leaves what this part adds to the residual stream in `partial`.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &StepInputs<'_, D>,
        (layer, heads): (usize, Heads),
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, view) = (step.view.shape.tokens, step.view);
        if let Some(query) = &self.query {
            let from = input.read(&s.residual, &s.normed, tokens)?;
            x.run(query.linear(from, s.workspace.shaped_mut(tokens, heads.q_cols())?))?;
            x.run(Attend {
                plan: step.plan,
                q: s.workspace.shaped(tokens, heads.q_cols())?,
                kv: step.kv.layer(layer).ok_or_else(|| missing(layer))?,
                heads,
                scores: &self.spec.scores,
                sinks: None,
                bias: None,
                seqs: Sequences { table_rows: view.cross_rows, kv_lens: view.cross_lens, ..view.into() },
                table: step.table,
                out: s.attn.shaped_mut(tokens, heads.out_cols())?,
            })?;
        }
        let Scratch { attn, partial, nodes, .. } = s;
        let attn = self.query.as_ref().map(|_| attn.shaped(tokens, heads.out_cols())).transpose()?;
        let nodes = of_rank(nodes, tokens, partial.cols())?;
        self.out.run(x, attn, nodes, partial.view_mut(tokens)?)
    }
}

fn missing(layer: usize) -> Error {
    Error::internal(format!("no KV slab for layer {layer}"))
}
