//! Experts: a router scores them for every token, the chosen ones compute, their results are weighed and added.
//!
//! Which expert a token goes to is known on the device alone: buffers have room for `tokens * top_k` slots whatever is
//! chosen, so that a step can be captured. Every sum has one order, so results do not depend on batch mates.

use super::Scratch;
use super::block::From;
use crate::backend::{Backend, Exec, Groups, Linear, RouteMut};
use crate::mem::{Buf, DeviceMem, Float, Mat};
use crate::params::{Router, RouterScore};
use crate::policy::{BlockSpec, Join, ModelSpec, MoeSpec};
use crate::{Error, Result};

/// The experts of a block.
#[derive(Debug)]
pub struct Experts<W> {
    /// Their description.
    pub spec: MoeSpec,
    /// Scores `[experts, hidden]`.
    pub router: Linear<W>,
    /// First products of all experts.
    pub up: Linear<W>,
    /// Second products of all experts.
    pub down: Linear<W>,
    /// Weighs the dense part.
    pub join: Option<Linear<W>>,
}

/// Buffers of routing: a slot is a pair of token and chosen expert.
#[derive(Debug)]
pub struct ExpertScratch<M> {
    logits: Mat<M>,
    weights: Mat<M>,
    experts: Buf<M, u32>,
    groups: Buf<M, u32>,
    /// `[slots, gate | up]`.
    up: Mat<M>,
    /// `[slots, inner]`.
    inner: Mat<M>,
    /// `[slots, hidden]`.
    out: Mat<M>,
    /// The experts' sum, where the dense part waits in `partial`: `[tokens, hidden]`.
    sum: Mat<M>,
    join_weights: Mat<M>,
}

impl<M: DeviceMem> ExpertScratch<M> {
    /// Buffers for steps of up to `tokens` rows; none for models without experts.
    pub(super) fn new(
        spec: &ModelSpec,
        tokens: usize,
        dtype: Float,
        alloc: &mut impl FnMut(usize) -> Result<M>,
    ) -> Result<Option<Self>> {
        let most = |f: &dyn Fn(&BlockSpec, &MoeSpec) -> usize| {
            spec.blocks.iter().filter_map(|b| b.moe.as_ref().map(|m| f(b, m))).max().unwrap_or(0)
        };
        let top_k = most(&|_, m| m.router.top_k);
        if top_k == 0 {
            return Ok(None);
        }
        let (experts, slots) = (most(&|_, m| m.router.experts).max(2), tokens * top_k.max(2));
        let mut mat = |rows: usize, cols: usize, dtype: Float| {
            Mat::new(alloc(rows.max(1) * cols.max(1) * dtype.bytes())?, rows.max(1), cols.max(1), dtype)
        };
        let up = most(&|b, m| m.inner * (1 + usize::from(b.mlp.gated)));
        let rows = tokens * top_k;
        let logits = mat(tokens, experts, Float::F32)?;
        let weights = mat(tokens, top_k, Float::F32)?;
        let (up, inner) = (mat(rows, up, dtype)?, mat(rows, most(&|_, m| m.inner), dtype)?);
        let (out, sum) = (mat(rows, spec.hidden, dtype)?, mat(tokens, spec.hidden, dtype)?);
        let join_weights = mat(tokens, 2, Float::F32)?;
        let words = |n: usize, alloc: &mut dyn FnMut(usize) -> Result<M>| Buf::new(alloc(4 * n)?, n);
        Ok(Some(Self {
            logits,
            weights,
            experts: words(slots.max(1), alloc)?,
            groups: words(experts + 1 + slots, alloc)?,
            up,
            inner,
            out,
            sum,
            join_weights,
        }))
    }

    /// Scores `logits [tokens, router.experts]` and fills the routing; the weights go to `weights` or, for the dense
    /// part's, to `join_weights`.
    fn route<B: Backend<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, B>,
        router: &Router,
        tokens: usize,
        join: bool,
    ) -> Result<()> {
        let slots = tokens * router.top_k;
        let weights = if join { &mut self.join_weights } else { &mut self.weights };
        let out = RouteMut {
            experts: self.experts.view_mut().slice(0..slots)?,
            weights: weights.shaped_mut(tokens, router.top_k)?,
            groups: self.groups.view_mut().slice(0..router.experts + 1 + slots)?,
        };
        x.route(self.logits.shaped(tokens, router.experts)?, router, out)
    }
}

impl<W> Experts<W> {
    /// Leaves the feed-forward part in `partial`; `dense`: the dense part is there already.
    pub(super) fn forward<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        block: &BlockSpec,
        tokens: usize,
        from: From,
        dense: bool,
        s: &mut Scratch<B::Mem>,
    ) -> Result<()> {
        let Some(mut e) = s.experts.take() else { return Err(Error::internal("no scratch for experts")) };
        let result = self.run(x, block, tokens, from, dense, s, &mut e);
        s.experts = Some(e);
        result
    }

    fn run<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        block: &BlockSpec,
        tokens: usize,
        from: From,
        dense: bool,
        s: &mut Scratch<B::Mem>,
        e: &mut ExpertScratch<B::Mem>,
    ) -> Result<()> {
        let (router, inner) = (self.spec.router, self.spec.inner);
        let (slots, hidden) = (tokens * router.top_k, s.residual.cols());
        x.linear(
            from.read(&s.residual, &s.normed, tokens),
            self.router.view(),
            e.logits.shaped_mut(tokens, router.experts)?,
        )?;
        e.route(x, &router, tokens, false)?;
        let groups = Groups {
            experts: e.experts.view().slice(0..slots)?,
            groups: e.groups.view().slice(0..router.experts + 1 + slots)?,
            count: router.experts,
        };
        if block.mlp.gated {
            let up = e.up.shaped_mut(slots, 2 * inner)?;
            x.expert_linear(from.read(&s.residual, &s.normed, tokens), self.up.view(), groups, up)?;
            x.gate(e.up.shaped(slots, 2 * inner)?, block.mlp.act, e.inner.shaped_mut(slots, inner)?)?;
        } else {
            let up = e.inner.shaped_mut(slots, inner)?;
            x.expert_linear(from.read(&s.residual, &s.normed, tokens), self.up.view(), groups, up)?;
            x.activate(e.inner.shaped_mut(slots, inner)?, block.mlp.act)?;
        }
        let out = e.out.shaped_mut(slots, hidden)?;
        x.expert_linear(e.inner.shaped(slots, inner)?, self.down.view(), groups, out)?;
        let (out, weights) = (e.out.shaped(slots, hidden)?, e.weights.shaped(tokens, router.top_k)?);
        if !dense {
            return x.combine(out, weights, false, s.partial.view_mut(tokens));
        }
        x.combine(out, weights, false, e.sum.shaped_mut(tokens, hidden)?)?;
        self.join(x, tokens, from, s, e)
    }

    /// Adds the dense part, which is in `partial`, to the experts' sum.
    fn join<B: Backend<Weight = W>>(
        &self,
        x: &mut Exec<'_, B>,
        tokens: usize,
        from: From,
        s: &mut Scratch<B::Mem>,
        e: &mut ExpertScratch<B::Mem>,
    ) -> Result<()> {
        let hidden = s.residual.cols();
        let (experts, score) = match self.spec.join {
            Join::Add => return x.add(s.partial.view_mut(tokens), e.sum.shaped(tokens, hidden)?),
            Join::Gated => (1, RouterScore::Sigmoid),
            Join::Mixed => (2, RouterScore::Softmax),
        };
        let Some(join) = &self.join else { return Err(Error::internal("no weight for the dense part")) };
        let router = Router { experts, top_k: experts, score, renormalise: false, scale: 1.0, bias: false };
        x.linear(
            from.read(&s.residual, &s.normed, tokens),
            join.view(),
            e.logits.shaped_mut(tokens, experts)?,
        )?;
        e.route(x, &router, tokens, true)?;
        let weights = e.join_weights.shaped(tokens, experts)?;
        // The slots' buffer is free again: it holds the weighed sum.
        let dense = s.partial.view(tokens);
        match self.spec.join {
            Join::Mixed => {
                let sum = e.sum.shaped(tokens, hidden)?;
                x.combine(sum, weights.columns(0..1)?, false, e.out.shaped_mut(tokens, hidden)?)?;
                x.combine(dense, weights.columns(1..2)?, true, e.out.shaped_mut(tokens, hidden)?)?;
                x.convert(e.out.shaped(tokens, hidden)?, s.partial.view_mut(tokens))
            }
            _ => {
                x.combine(dense, weights, true, e.sum.shaped_mut(tokens, hidden)?)?;
                x.convert(e.sum.shaped(tokens, hidden)?, s.partial.view_mut(tokens))
            }
        }
    }
}
