//! One block: attention and the feed-forward part, and how each meets the residual stream and its norms.

use super::{Experts, Filter, Norm, Scratch, StepInputs};
use crate::backend::{AttnCall, Backend, Exec, Linear, QkvCall, RopeView};
use crate::mem::{DeviceMem, Mat, MatRef};
use crate::policy::{BlockSpec, Placement, QkSpan};
use crate::{Error, Result};

/// A block with its operands.
#[derive(Debug)]
pub struct Block<W> {
    /// Its description.
    pub spec: BlockSpec,
    /// Norm of the attention part.
    pub attn_norm: Option<Norm<W>>,
    /// What queries and keys read, where that is not what values read.
    pub filter: Option<Filter<W>>,
    /// Fused q | k | v; behind a filter q | k.
    pub qkv: Linear<W>,
    /// Norms of queries and keys.
    pub qk_norm: Option<(HeadNorms<W>, HeadNorms<W>)>,
    /// Attention output.
    pub attn_out: Linear<W>,
    /// Norm of what attention gives.
    pub attn_post: Option<Norm<W>>,
    /// Norm of the feed-forward part.
    pub mlp_norm: Option<Norm<W>>,
    /// Dense feed-forward part.
    pub mlp: Option<Mlp<W>>,
    /// Experts.
    pub experts: Option<Experts<W>>,
    /// Norm of what the feed-forward part gives.
    pub mlp_post: Option<Norm<W>>,
}

/// Norms of the heads of queries or keys: one for all of them, or one for every head.
pub type HeadNorms<W> = Vec<Norm<W>>;

/// A dense feed-forward part.
#[derive(Debug)]
pub struct Mlp<W> {
    /// Up, or gate | up.
    pub up: Linear<W>,
    /// Down.
    pub down: Linear<W>,
}

/// The buffer that a part reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// The residual stream itself.
    Residual,
    /// What a norm made of it.
    Normed,
}

impl From {
    /// What a part reads `[tokens, hidden]`.
    pub(super) fn read<'s, M: DeviceMem>(
        self,
        residual: &'s Mat<M>,
        normed: &'s Mat<M>,
        tokens: usize,
    ) -> MatRef<'s, M> {
        match self {
            From::Residual => residual.view(tokens),
            From::Normed => normed.view(tokens),
        }
    }
}

impl<W> Block<W> {
    /// Runs the block: reads `residual` (before it `normed`, where the block begins with a norm and is not post-norm),
    /// updates `residual`, and leaves `next` of it in `normed`.
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
        let normed = |norm: &Option<Norm<W>>| match (placement, norm) {
            (Placement::Post, _) | (_, None) => From::Residual,
            _ => From::Normed,
        };
        through(x, tokens, placement, s)?;
        self.attention(x, step, layer, normed(&self.attn_norm), rope, s)?;
        if placement == Placement::Parallel {
            return self.beside(x, tokens, next, s);
        }
        let (first, second) = match placement {
            Placement::Post => (self.attn_norm.as_ref(), self.mlp_norm.as_ref()),
            _ => (self.mlp_norm.as_ref(), next),
        };
        meet(x, tokens, placement, self.attn_post.as_ref(), first, s)?;
        through(x, tokens, placement, s)?;
        self.feed_forward(x, tokens, normed(&self.mlp_norm), s)?;
        meet(x, tokens, placement, self.mlp_post.as_ref(), second, s)
    }

    /// The feed-forward part beside attention, whose result waits in `partial`.
    fn beside<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        tokens: usize,
        next: Option<&Norm<W>>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let Some(mlp) = &self.mlp else {
            return Err(Error::internal("a parallel block without a dense part"));
        };
        if let Some(norm) = &self.mlp_norm {
            x.norm(s.residual.view(tokens), norm.call(), s.normed.view_mut(tokens))?;
        }
        self.inner(x, mlp, tokens, From::Normed, s)?;
        let Scratch { inner, normed, partial, .. } = s;
        let inner = inner.shaped(tokens, self.spec.mlp.inner)?;
        // The norm's rows have been read: they hold the product before it is added.
        x.linear_add(inner, mlp.down.view(), normed.view_mut(tokens), partial.view_mut(tokens))?;
        meet(x, tokens, Placement::Parallel, None, next, s)
    }

    fn attention<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        step: &StepInputs<'_, B>,
        layer: usize,
        from: From,
        rope: Option<RopeView<'_, B::Mem>>,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let (tokens, heads) = (step.view.shape.tokens, self.spec.heads);
        match &self.filter {
            Some(filter) => filter.forward(x, step, layer, heads, from, &self.qkv, s)?,
            None => {
                let input = from.read(&s.residual, &s.normed, tokens);
                x.linear(input, self.qkv.view(), s.qkv.shaped_mut(tokens, heads.qkv_cols())?)?;
            }
        }
        let done = self.norm_apart(x, tokens, s)?;
        let norms = self.qk_norm.as_ref().filter(|_| !done);
        let out = s.attn.shaped_mut(tokens, heads.out_cols())?;
        if step.kv.is_empty() {
            if norms.is_some() || rope.is_some() {
                return Err(Error::internal("rotation or norms of heads in an encoder"));
            }
            let qkv = s.qkv.shaped(tokens, heads.qkv_cols())?;
            let (bounds, longest) = (step.view.bounds, step.view.shape.max_query);
            x.attend_dense(qkv, bounds, longest, heads, &self.spec.scores, out)?;
        } else {
            let missing = || Error::internal(format!("no KV slab for layer {layer}"));
            let kv = step.kv.layer(layer).ok_or_else(missing)?;
            let qkv = s.qkv.shaped_mut(tokens, heads.qkv_cols())?;
            let call = QkvCall {
                heads,
                q_norm: norms.and_then(|n| n.0.first()).map(Norm::call),
                k_norm: norms.and_then(|n| n.1.first()).map(Norm::call),
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

    /// Norms of all query heads at once and of all key heads, or with values of their own for every head: those that no
    /// fused op takes. Whether they were of that kind.
    fn norm_apart<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        tokens: usize,
        s: &mut Scratch<B::Mem>,
    ) -> Result<bool> {
        let h = self.spec.heads;
        let apart = self.spec.qk_norm.is_some_and(|n| n.span != QkSpan::Head);
        if let (true, Some((q, k))) = (apart, &self.qk_norm) {
            let k_end = h.q_cols() + h.k_cols();
            for (norms, columns) in [(q, 0..h.q_cols()), (k, h.q_cols()..k_end)] {
                let width = columns.len() / norms.len().max(1);
                for (i, norm) in norms.iter().enumerate() {
                    let from = columns.start + i * width;
                    let part = s.qkv.shaped_mut(tokens, h.qkv_cols())?.columns(from..from + width)?;
                    x.head_norm(part, width, norm.call())?;
                }
            }
        }
        Ok(apart)
    }

    /// Leaves the feed-forward part in `partial`.
    fn feed_forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        tokens: usize,
        from: From,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        if let Some(mlp) = &self.mlp {
            self.inner(x, mlp, tokens, from, s)?;
            let inner = s.inner.shaped(tokens, self.spec.mlp.inner)?;
            x.linear(inner, mlp.down.view(), s.partial.view_mut(tokens))?;
        }
        match &self.experts {
            Some(experts) => experts.forward(x, &self.spec, tokens, from, self.mlp.is_some(), s),
            None => Ok(()),
        }
    }

    /// `act(up)` or `act(gate) * up` in `inner`.
    fn inner<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        weights: &Mlp<W>,
        tokens: usize,
        from: From,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let mlp = self.spec.mlp;
        let input = from.read(&s.residual, &s.normed, tokens);
        let inner = s.inner.shaped_mut(tokens, mlp.inner)?;
        if mlp.gated {
            let gate_up = s.gate_up.shaped_mut(tokens, 2 * mlp.inner)?;
            x.gated_linear(input, weights.up.view(), mlp.act, gate_up, inner)
        } else {
            x.linear_act(input, weights.up.view(), mlp.act, inner)
        }
    }
}

/// Where the residual stream goes through the norms, what the norm gave takes its place.
fn through<B: Backend>(
    x: &mut Exec<'_, B>,
    tokens: usize,
    placement: Placement,
    s: &mut Scratch<B::Mem>,
) -> Result<()> {
    match placement {
        Placement::Through => x.convert(s.normed.view(tokens), s.residual.view_mut(tokens)),
        _ => Ok(()),
    }
}

/// Adds the partial result, normed by `post` where that is given, to the residual stream; `norm` of the sum is left in
/// `normed` or, post-norm, becomes the residual stream.
fn meet<B: Backend>(
    x: &mut Exec<'_, B>,
    tokens: usize,
    placement: Placement,
    post: Option<&Norm<B::Weight>>,
    norm: Option<&Norm<B::Weight>>,
    s: &mut Scratch<B::Mem>,
) -> Result<()> {
    if let Some(post) = post {
        x.reduce_norm(s.partial.view_mut(tokens), post.call(), s.normed.view_mut(tokens))?;
        std::mem::swap(&mut s.partial, &mut s.normed);
        let (residual, partial) = (s.residual.view_mut(tokens), s.partial.view(tokens));
        return match norm {
            Some(norm) => x.add_norm(residual, partial, norm.call(), s.normed.view_mut(tokens)),
            None => x.add(residual, partial),
        };
    }
    let (residual, partial) = (s.residual.view_mut(tokens), s.partial.view_mut(tokens));
    let Some(norm) = norm else { return x.reduce_add(residual, partial) };
    x.reduce_add_norm(residual, partial, norm.call(), s.normed.view_mut(tokens))?;
    if placement == Placement::Post {
        // The normed sum is the new residual stream. Two swaps a block: buffers are back in place at its end.
        std::mem::swap(&mut s.residual, &mut s.normed);
    }
    Ok(())
}
