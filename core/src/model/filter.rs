//! What queries and keys of some blocks read: the attention part's input with the two positions before mixed in.
//!
//! A position's filter needs the input of the one before it and what the first product gave there. Both are kept like keys
//! and values: in the same pages, by the same slots. So chunks, pages, batch mates and a sequence that starts again after it
//! lost its pages change nothing, and no op is needed that other blocks do without: `kv_append` writes the rows, `gather_rows`
//! reads those before (zeros for the first position), a product over both taps is one product over twice the columns.

use super::block::From;
use super::{Norm, Scratch, StepInputs};
use crate::backend::{Backend, Exec, Linear};
use crate::params::Heads;
use crate::{Error, Result};

/// A filter with its operands, and the product of those that it does not feed. See
/// [`FilterSpec`](crate::policy::FilterSpec).
#[derive(Debug)]
pub struct Filter<W> {
    /// `[middle, 2 * hidden]`.
    pub first: Linear<W>,
    /// `[hidden, 2 * middle]`.
    pub second: Linear<W>,
    /// Of input and what the second product gave.
    pub norm: Norm<W>,
    /// v.
    pub value: Linear<W>,
}

impl<W> Filter<W> {
    /// Leaves `q | k | v` in `scratch.qkv`: v of what `from` names, q and k of what the filter makes of it.
    pub(super) fn forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        layer: usize,
        heads: Heads,
        from: From,
        qk: &Linear<W>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, view) = (step.view.shape.tokens, step.view);
        let missing = || Error::internal(format!("nowhere to keep what the filter of layer {layer} needs"));
        let kept = step.kv.filter(layer).ok_or_else(missing)?;
        let [inputs, middles] = kept.rows()?;
        let Scratch { residual, normed, partial, qkv, pair: Some(pair), middle_pair: Some(between), .. } = s
        else {
            return Err(missing());
        };
        let input = from.read(residual, normed, tokens);
        let (hidden, middle) = (input.cols, middles.cols);
        let (early, now) = (0..middle, middle..2 * middle);

        // The input first: the row before may be one of this very step. What goes beside it is written again below.
        x.kv_append(input, between.shaped(tokens, 2 * middle)?.columns(now.clone())?, view.slots, kept)?;
        x.gather_rows(inputs, view.before, pair.shaped_mut(tokens, 2 * hidden)?.columns(0..hidden)?)?;
        x.convert(input, pair.shaped_mut(tokens, 2 * hidden)?.columns(hidden..2 * hidden)?)?;
        let out = between.shaped_mut(tokens, 2 * middle)?.columns(now.clone())?;
        x.linear(pair.shaped(tokens, 2 * hidden)?, self.first.view(), out)?;

        x.kv_append(input, between.shaped(tokens, 2 * middle)?.columns(now)?, view.slots, kept)?;
        x.gather_rows(middles, view.before, between.shaped_mut(tokens, 2 * middle)?.columns(early)?)?;
        // Both inputs have been read: what the filter gives takes their place.
        let filtered = pair.shaped_mut(tokens, hidden)?;
        x.linear(between.shaped(tokens, 2 * middle)?, self.second.view(), filtered)?;
        x.add_norm(pair.shaped_mut(tokens, hidden)?, input, self.norm.call(), partial.view_mut(tokens))?;

        let (cols, split) = (heads.qkv_cols(), heads.q_cols() + heads.k_cols());
        x.linear(partial.view(tokens), qk.view(), qkv.shaped_mut(tokens, cols)?.columns(0..split)?)?;
        x.linear(input, self.value.view(), qkv.shaped_mut(tokens, cols)?.columns(split..cols)?)
    }
}
