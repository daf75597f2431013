//! Experts that read the residual stream through norms of their own, next to a dense part.

use super::expert_scratch::ExpertScratch;
use super::{Exec, Norm, Projection, Scratch};
use crate::mem::{Device, DeviceMem, MatMut, MatRef};
use crate::ops::{self, Add, Combine, Embed, Scale};
use crate::policy::ApartSpec;
use crate::{Error, Result};

/// The norms. See [`ApartSpec`].
pub struct Apart<D: Device> {
    /// Their description.
    pub spec: ApartSpec,
    /// Of what the router reads.
    pub router: Norm<D>,
    /// Of what the experts read.
    pub experts: Norm<D>,
    /// Of what the dense part gives.
    pub dense_post: Norm<D>,
    /// Of the experts' sum.
    pub expert_post: Norm<D>,
}

impl<D: Device> Apart<D> {
    /// Leaves the scores of `residual` in `logits`, and in `normed`, which the dense part has read, what the
    /// experts read.
    pub(super) fn scores(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        (router, mut logits): (&Projection<D>, MatMut<'_, D::Mem>),
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { residual, normed, .. } = s;
        let mut norm = |x: &mut Exec<'_, D>, norm: &Norm<D>| {
            let (rows, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
            x.run(ops::Norm { x: rows, norm: norm.weights(), out })
        };
        norm(x, &self.router)?;
        x.run(router.linear(s.normed.view(tokens)?, logits.reborrow()))?;
        x.run(Scale { x: logits, factor: self.spec.scale, cap: None })?;
        let Scratch { residual, normed, .. } = s;
        let (rows, out) = (residual.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: rows, norm: self.experts.weights(), out })
    }

    /// Leaves in `partial` the sum of the dense part, which is there, and of the experts' `sum`, each normed.
    pub(super) fn join(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        sum: MatRef<'_, D::Mem>,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Scratch { partial, normed, .. } = s;
        let (dense, out) = (partial.view(tokens)?, normed.view_mut(tokens)?);
        x.run(ops::Norm { x: dense, norm: self.dense_post.weights(), out })?;
        x.run(ops::Norm { x: sum, norm: self.expert_post.weights(), out: partial.view_mut(tokens)? })?;
        x.run(Add { acc: partial.view_mut(tokens)?, x: normed.view(tokens)? })
    }
}

impl<M: DeviceMem> ExpertScratch<M> {
    /// Leaves the weights of slots times the factors of their experts in `multiplied`.
    pub(super) fn multiply_weights<D: Device<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, D>,
        table: &D::Weight,
        slots: usize,
    ) -> Result<()> {
        let Some((factors, out)) = &mut self.multiplied else {
            return Err(Error::internal("no room for factors of experts"));
        };
        let ids = self.experts.view().slice(0..slots)?;
        x.run(Embed { ids, table, add: None, out: factors.shaped_mut(slots, 1)? })?;
        let (weights, out) = (self.weights.shaped(slots, 1)?, out.shaped_mut(slots, 1)?);
        x.run(Combine::chain(weights, factors.shaped(slots, 1)?, false, out))
    }
}
