//! One block: attention, then the feed-forward part, each followed by residual and norm.

use super::{Norm, Scratch, StepInputs};
use crate::backend::{AttnCall, Backend, Exec, Linear, QkvCall, RopeView};
use crate::policy::{BlockSpec, Placement};
use crate::{Error, Result};

/// A block with its operands.
#[derive(Debug)]
pub struct Block<W> {
    /// Its description.
    pub spec: BlockSpec,
    /// Norm of the attention part.
    pub attn_norm: Norm<W>,
    /// Fused q | k | v.
    pub qkv: Linear<W>,
    /// Norms over query and key heads.
    pub qk_norm: Option<(Norm<W>, Norm<W>)>,
    /// Attention output.
    pub attn_out: Linear<W>,
    /// Norm of the feed-forward part.
    pub mlp_norm: Norm<W>,
    /// Up, or gate | up.
    pub up: Linear<W>,
    /// Down.
    pub down: Linear<W>,
}

impl<W> Block<W> {
    /// Runs the block. Pre-norm: reads `normed`, updates `residual`, leaves `next` of it in `normed`. Post-norm: reads
    /// and replaces `residual`.
    pub(super) fn forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        layer: usize,
        placement: Placement,
        rope: Option<RopeView<'_, B::Mem>>,
        next: Option<&Norm<W>>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let tokens = step.view.shape.tokens;
        self.attention(x, step, layer, placement, rope, s)?;
        let (first, second) = match placement {
            Placement::Pre => (Some(&self.mlp_norm), next),
            Placement::Post => (Some(&self.attn_norm), Some(&self.mlp_norm)),
        };
        add(x, tokens, placement, first, s)?;
        self.mlp(x, tokens, placement, s)?;
        add(x, tokens, placement, second, s)
    }

    fn attention<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        layer: usize,
        placement: Placement,
        rope: Option<RopeView<'_, B::Mem>>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, heads) = (step.view.shape.tokens, self.spec.heads);
        let input = match placement {
            Placement::Pre => s.normed.view(tokens),
            Placement::Post => s.residual.view(tokens),
        };
        x.linear(input, self.qkv.view(), s.qkv.shaped_mut(tokens, heads.qkv_cols())?)?;
        let out = s.attn.shaped_mut(tokens, heads.out_cols())?;
        if step.kv.is_empty() {
            let qkv = s.qkv.shaped(tokens, heads.qkv_cols())?;
            let (bounds, longest) = (step.view.bounds, step.view.shape.max_query);
            x.attend_dense(qkv, bounds, longest, heads, &self.spec.scores, out)?;
        } else {
            let missing = || Error::internal(format!("no KV slab for layer {layer}"));
            let kv = step.kv.layer(layer).ok_or_else(missing)?;
            let qkv = s.qkv.shaped_mut(tokens, heads.qkv_cols())?;
            let norms = self.qk_norm.as_ref();
            let call = QkvCall {
                heads,
                q_norm: norms.map(|n| n.0.call()),
                k_norm: norms.map(|n| n.1.call()),
                rope,
                step: step.view,
            };
            x.qkv_rope_append(qkv, call, kv)?;
            let q = s.qkv.shaped(tokens, heads.qkv_cols())?.columns(0..heads.q_cols())?;
            let call = AttnCall { heads, scores: &self.spec.scores, step: step.view, table: step.table };
            x.attend(step.plan, q, kv, call, out)?;
        }
        let attn = s.attn.shaped(tokens, heads.out_cols())?;
        x.linear(attn, self.attn_out.view(), s.partial.view_mut(tokens))
    }

    fn mlp<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        tokens: usize,
        placement: Placement,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let mlp = self.spec.mlp;
        let input = match placement {
            Placement::Pre => s.normed.view(tokens),
            Placement::Post => s.residual.view(tokens),
        };
        let inner = s.inner.shaped_mut(tokens, mlp.inner)?;
        if mlp.gated {
            let gate_up = s.gate_up.shaped_mut(tokens, 2 * mlp.inner)?;
            x.gated_linear(input, self.up.view(), mlp.act, gate_up, inner)?;
        } else {
            x.linear_act(input, self.up.view(), mlp.act, inner)?;
        }
        let inner = s.inner.shaped(tokens, mlp.inner)?;
        x.linear(inner, self.down.view(), s.partial.view_mut(tokens))
    }
}

/// Adds the partial result to the residual stream, with the norm that follows.
fn add<B: Backend>(
    x: &mut Exec<'_, B>,
    tokens: usize,
    placement: Placement,
    norm: Option<&Norm<B::Weight>>,
    s: &mut Scratch<B::Mem>,
) -> Result<()> {
    let (residual, partial) = (s.residual.view_mut(tokens), s.partial.view_mut(tokens));
    let Some(norm) = norm else { return x.reduce_add(residual, partial) };
    x.reduce_add_norm(residual, partial, norm.call(), s.normed.view_mut(tokens))?;
    if placement == Placement::Post {
        // The normed sum is the new residual stream. Two swaps a block: buffers are back in place at its end.
        std::mem::swap(&mut s.residual, &mut s.normed);
    }
    Ok(())
}
