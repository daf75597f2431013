//! What queries and keys of some blocks read: the attention part's input with the two positions before mixed
//! in.
//!
//! A position's filter needs the input of the one before it and what the first matmul gave there. Both are
//! kept like keys and values: in the same pages, by the same slots. So chunks, pages, batch mates and a
//! sequence that starts again after it lost its pages change nothing, and no op is needed that other blocks
//! do without: `kv_append` writes the rows, `gather_rows` reads those before (zeros for the first position),
//! a matmul over both taps is one over twice the columns.

use super::input::Input;
use super::{Exec, Fused, Norm, Projection, Scratch, StepInputs};
use crate::mem::Device;
use crate::ops::{AddNorm, Convert, GatherRows, KvAppend};
use crate::params::Heads;
use crate::{Error, Result};

/// A filter with its operands, and the matmul of those that it does not feed. See
/// [`FilterSpec`](crate::policy::FilterSpec).
pub struct Filter<D: Device> {
    /// `[middle, 2 * hidden]`.
    pub first: Projection<D>,
    /// `[hidden, 2 * middle]`.
    pub second: Projection<D>,
    /// Of input and what the second matmul gave.
    pub norm: Norm<D>,
    /// v; none on a rank without heads.
    pub value: Option<Projection<D>>,
}

impl<D: Device> Filter<D> {
    /// Leaves `q | k | v` in `scratch.workspace`: v of what `input` names, q and k (by `qk`) of what the
    /// filter makes of it.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        step: &mut StepInputs<'_, D>,
        layer: usize,
        heads: Heads,
        (input, qk): (Input, &Fused<D>),
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, view, kv) = (step.view.shape.tokens, step.view, &mut *step.kv);
        let missing = || Error::internal(format!("nowhere to keep what the filter of layer {layer} needs"));
        let Scratch { residual, normed, partial, workspace: qkv, .. } = s;
        let (Some(pair), Some(between)) = (&mut s.pair, &mut s.middle_pair) else { return Err(missing()) };
        let input = input.read(residual, normed, tokens)?;
        let (hidden, middle) = (input.cols(), kv.next_to(layer).ok_or_else(missing)?.layout().v_dim);
        let (early, now) = (0..middle, middle..2 * middle);

        // The input first: the row before may be one of this very step. What goes next to it is written again
        // below.
        let v = between.shaped(tokens, 2 * middle)?.columns(now.clone())?;
        let slab = kv.next_to_mut(layer).ok_or_else(missing)?;
        x.run(KvAppend { k: input, v, slots: view.slots, kv: slab })?;
        let [inputs, _] = kv.next_to(layer).ok_or_else(missing)?.rows()?;
        let out = pair.shaped_mut(tokens, 2 * hidden)?.columns(0..hidden)?;
        x.run(GatherRows { x: inputs, rows: view.before, out })?;
        let out = pair.shaped_mut(tokens, 2 * hidden)?.columns(hidden..2 * hidden)?;
        x.run(Convert { x: input, bias: None, out })?;
        let out = between.shaped_mut(tokens, 2 * middle)?.columns(now.clone())?;
        x.run(self.first.linear(pair.shaped(tokens, 2 * hidden)?, out))?;

        let v = between.shaped(tokens, 2 * middle)?.columns(now)?;
        let slab = kv.next_to_mut(layer).ok_or_else(missing)?;
        x.run(KvAppend { k: input, v, slots: view.slots, kv: slab })?;
        let [_, middles] = kv.next_to(layer).ok_or_else(missing)?.rows()?;
        let out = between.shaped_mut(tokens, 2 * middle)?.columns(early)?;
        x.run(GatherRows { x: middles, rows: view.before, out })?;
        // Both inputs have been read: what the filter gives takes their place.
        let filtered = pair.shaped_mut(tokens, hidden)?;
        x.run(self.second.linear(between.shaped(tokens, 2 * middle)?, filtered))?;
        x.run(AddNorm {
            residual: pair.shaped_mut(tokens, hidden)?,
            x: input,
            norm: self.norm.weights(),
            out: partial.view_mut(tokens)?,
        })?;

        let (cols, split) = (heads.qkv_cols(), heads.q_cols() + heads.k_cols());
        let out = qkv.shaped_mut(tokens, cols)?.columns(0..split)?;
        qk.run(x, partial.view(tokens)?, out)?;
        let value = self.value.as_ref().ok_or_else(|| Error::internal("heads without values"))?;
        x.run(value.linear(input, qkv.shaped_mut(tokens, cols)?.columns(split..cols)?))
    }
}
