//! Multi-head latent attention: all heads read one row of a position, of which they make keys and values.
//!
//! A head's key is `W_k c` and a part that all heads share and that rotates; its value is `W_v c`. Here the
//! matrices change sides: `q . (W_k c) = (W_k^T q) . c`, and what attention makes of rows `c` is multiplied
//! by `W_v`. So the cache holds a row and its rotated part, as a single key head, and the row once more as
//! its value, for prompts and for single tokens alike. No op is needed that other blocks do without; every
//! head has two matmuls of its own, which is many launches: one for all heads is still to be written, as is
//! a slab that holds the row once.

use super::input::Input;
use super::latent_scratch::LatentScratch;
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::{Device, Mat, MatRef};
use crate::ops::{Convert, HeadNorm, Linear};
use crate::params::Heads;
use crate::policy::LatentSpec;
use crate::{Error, Result};

/// The operands of a block's queries, keys and values. See [`LatentSpec`].
pub struct Latent<D: Device> {
    /// Their description.
    pub spec: LatentSpec,
    /// `[query_rank, hidden]` and the norm of what it gives; none where queries have one matmul.
    pub query_down: Option<(Projection<D>, Norm<D>)>,
    /// `[heads * (plain + rotated), query_rank]`; none on a rank without heads.
    pub query_up: Option<Projection<D>>,
    /// `[rank + rotated, hidden]`.
    pub down: Projection<D>,
    /// Of the row that is kept.
    pub norm: Norm<D>,
    /// Of every head `W_k^T`, `[rank, plain]`.
    pub key_up: Vec<D::Weight>,
    /// Of every head `W_v`, `[value, rank]`.
    pub value_up: Vec<D::Weight>,
}

fn missing() -> Error {
    Error::internal("a block of latent rows without its buffers or operands")
}

impl<D: Device> Latent<D> {
    /// Leaves `q | k | v` in `scratch.workspace`: of every head the rotated part, then the row's.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        heads: Heads,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { residual, normed, workspace: qkv, latent: Some(own), .. } = s else {
            return Err(missing());
        };
        let rows = input.read(residual, normed, tokens)?;
        let (rank, rotated) = (heads.v_dim, heads.k_dim - heads.v_dim);
        let width = self.spec.query(heads);
        let LatentScratch { low, kept, heads: wide } = own;
        let queries = wide.shaped_mut(tokens, heads.heads * width)?;
        let query_up = self.query_up.as_ref().ok_or_else(missing)?;
        match &self.query_down {
            Some((down, norm)) => {
                let rank = down.outputs();
                x.run(down.linear(rows, low.shaped_mut(tokens, rank)?))?;
                x.run(HeadNorm { x: low.shaped_mut(tokens, rank)?, width: rank, norm: norm.weights() })?;
                x.run(query_up.linear(low.shaped(tokens, rank)?, queries))?;
            }
            None => x.run(query_up.linear(rows, queries))?,
        }
        x.run(self.down.linear(rows, kept.shaped_mut(tokens, rank + rotated)?))?;
        let row = kept.shaped_mut(tokens, rank + rotated)?.columns(0..rank)?;
        x.run(HeadNorm { x: row, width: rank, norm: self.norm.weights() })?;

        let (kept, wide) = (kept.shaped(tokens, rank + rotated)?, wide.shaped(tokens, heads.heads * width)?);
        let (row, turned) = (kept.columns(0..rank)?, kept.columns(rank..rank + rotated)?);
        let mut put = |x: &mut Exec<'_, D>, from: MatRef<'_, D::Mem>, at: usize| {
            let out = qkv.shaped_mut(tokens, heads.qkv_cols())?.columns(at..at + from.cols())?;
            x.run(Convert { x: from, bias: None, out })
        };
        let (k, v) = (heads.q_cols(), heads.q_cols() + heads.k_cols());
        put(x, turned, k)?;
        put(x, row, k + rotated)?;
        put(x, row, v)?;
        for head in 0..heads.heads {
            let query = wide.columns(head * width..(head + 1) * width)?;
            put(x, query.columns(self.spec.plain..width)?, head * heads.k_dim)?;
        }
        for (head, weight) in self.key_up.iter().enumerate() {
            let plain = wide.columns(head * width..head * width + self.spec.plain)?;
            let at = head * heads.k_dim + rotated;
            let out = qkv.shaped_mut(tokens, heads.qkv_cols())?.columns(at..at + rank)?;
            x.run(Linear::new(plain, weight, None, out))?;
        }
        Ok(())
    }

    /// What the output's matmul reads, of what attention made of the rows in `scratch.attn`:
    /// `[tokens, heads * value]`.
    pub(super) fn values<'s>(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        heads: Heads,
        (attn, own): (&Mat<D::Mem>, &'s mut Option<LatentScratch<D::Mem>>),
    ) -> Result<MatRef<'s, D::Mem>> {
        let own = own.as_mut().ok_or_else(missing)?;
        let (attn, value) = (attn.shaped(tokens, heads.out_cols())?, self.spec.value);
        for (head, weight) in self.value_up.iter().enumerate() {
            let of = |width: usize| head * width..(head + 1) * width;
            let out = own.heads.shaped_mut(tokens, heads.heads * value)?.columns(of(value))?;
            x.run(Linear::new(attn.columns(of(heads.v_dim))?, weight, None, out))?;
        }
        own.heads.shaped(tokens, heads.heads * value)
    }
}
