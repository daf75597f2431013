//! Experts: a router scores them for every token, the chosen ones compute, their results are weighed and
//! added.
//!
//! Which expert a token goes to is known on the device alone: buffers have room for `tokens * top_k` slots
//! whatever is chosen, so that a step can be captured. Every sum has one order, so results do not depend on
//! batch mates.

use super::apart::Apart;
use super::expert_scratch::ExpertScratch;
use super::input::Input;
use super::shortcut::ShortcutScratch;
use super::{Exec, Projection, Scratch};
use crate::mem::{Device, DeviceMem, Mat, MatMut, MatRef};
use crate::ops::{Activate, Add, Chosen, Combine, Convert, Embed, ExpertLinear, Gate, Groups, Route, Scale};
use crate::params::{ExpertShare, Router, RouterScore};
use crate::policy::{BlockSpec, Join, MoeSpec};
use crate::{Error, Result};

/// The experts of a block.
pub struct Experts<D: Device> {
    /// Their description.
    pub spec: MoeSpec,
    /// Scores `[experts, hidden]`.
    pub router: Projection<D>,
    /// What is added to scores for the choice alone `[experts]`.
    pub choice_bias: Option<D::Weight>,
    /// The experts of this rank.
    pub share: ExpertShare,
    /// Whether it has a part of each: what slots give is summed over all ranks, then, and ranks with parts of
    /// other experts add -0, the identity of addition.
    pub parts: bool,
    /// Where ranks have parts: what is added to the sums of all, `[experts, hidden]`, if anything.
    pub biases: Option<D::Weight>,
    /// Their first matmuls; none where it has no expert.
    pub up: Option<Projection<D>>,
    /// Their second matmuls.
    pub down: Option<Projection<D>>,
    /// Norms of their own.
    pub apart: Option<Apart<D>>,
    /// Factors of the weights of every expert `[experts, 1]`.
    pub factors: Option<D::Weight>,
    /// Weighs the dense part.
    pub join: Option<Projection<D>>,
}

impl<M: DeviceMem> ExpertScratch<M> {
    /// Scores `logits [tokens, router.experts]` and fills the routing; the weights go to `weights` or, for
    /// the dense part's, to `join_weights`.
    fn route<D: Device<Mem = M>>(
        &mut self,
        x: &mut Exec<'_, D>,
        router: Router,
        choice_bias: Option<&D::Weight>,
        tokens: usize,
        join: bool,
    ) -> Result<()> {
        let slots = tokens * router.top_k;
        let weights = if join { &mut self.join_weights } else { &mut self.weights };
        x.run(Route {
            logits: self.logits.shaped(tokens, router.experts)?,
            router,
            choice_bias,
            experts: self.experts.view_mut().slice(0..slots)?,
            weights: weights.shaped_mut(tokens, router.top_k)?,
            groups: self.groups.view_mut().slice(0..router.experts + 1 + slots)?,
        })
    }
}

impl<D: Device> Experts<D> {
    /// Leaves the feed-forward part in `partial`, where the dense part is already if the block has one; of
    /// experts that join a block later, their sum in `shortcut`.
    pub(super) fn forward(
        &self,
        x: &mut Exec<'_, D>,
        block: (&BlockSpec, bool),
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
    ) -> Result<()> {
        let Some(mut e) = s.experts.take() else { return Err(Error::internal("no scratch for experts")) };
        let result = self.run(x, block, tokens, input, s, &mut e);
        s.experts = Some(e);
        result
    }

    fn run(
        &self,
        x: &mut Exec<'_, D>,
        (block, dense): (&BlockSpec, bool),
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let (router, hidden) = (self.spec.router, s.residual.cols());
        let slots = tokens * router.top_k;
        let rows = self.scores(x, tokens, input, s, &mut e.logits)?;
        e.route(x, router, self.choice_bias.as_ref(), tokens, false)?;
        if let Some(table) = &self.factors {
            e.multiply_weights(x, table, slots)?;
        }
        let others = self.parts && (self.share.is_part() || self.spec.identities > 0);
        if let (true, Some(nodes), Some(zeros)) = (others, &mut e.nodes, &e.zeros) {
            let out = nodes.shaped_mut(slots, hidden)?;
            x.run(Convert { x: zeros.shaped(slots, hidden)?, bias: None, out })?;
        }
        if let (Some(up), Some(down)) = (&self.up, &self.down) {
            if self.spec.input_weighted {
                self.weigh_inputs(x, rows, e)?;
            }
            self.chosen(x, block, rows, (up, down), e)?;
        }
        if self.parts {
            self.exchange(x, slots, hidden, others || self.up.is_some(), e)?;
        }
        self.sum(x, (tokens, dense), s, e)?;
        if self.spec.identities > 0 {
            self.add_identities(x, (tokens, dense), input, s, e)?;
        }
        if dense && self.spec.join != Join::NextBlock { self.join(x, tokens, input, s, e) } else { Ok(()) }
    }

    /// Adds up what the experts with weights gave.
    fn sum(
        &self,
        x: &mut Exec<'_, D>,
        (tokens, dense): (usize, bool),
        s: &mut Scratch<D::Mem>,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let (router, hidden) = (self.spec.router, s.residual.cols());
        let slots = tokens * router.top_k;
        let weights = match (&e.weighted, &e.multiplied) {
            (Some((_, ones)), _) if self.spec.input_weighted => ones,
            (_, Some((_, weights))) if self.factors.is_some() => weights,
            _ => &e.weights,
        };
        let (y, weights) = (e.out.shaped(slots, hidden)?, weights.shaped(tokens, router.top_k)?);
        // Sums of parts are on every rank.
        let share = if self.parts { ExpertShare::whole(self.spec.with_weights()) } else { self.share };
        let chosen = Some(Chosen { experts: e.experts.view().slice(0..slots)?, share });
        let Scratch { partial, nodes, shortcut, .. } = s;
        let out = place_of_sum((self.spec.join, dense), tokens, (partial, &mut e.sum, shortcut))?;
        match nodes {
            Some(nodes) if !self.parts => {
                let mut node = nodes.shaped_mut(tokens, hidden)?;
                if self.up.is_some() {
                    let out = node.reborrow();
                    x.run(Combine { y, weights, chosen, add: false, out })?;
                }
                x.all_reduce(node.reborrow(), self.up.is_some())?;
                x.run(Convert { x: node.as_ref(), bias: None, out })
            }
            _ => x.run(Combine { y, weights, chosen, add: false, out }),
        }
    }

    /// Adds to that sum what the experts without weights give, on every rank.
    fn add_identities(
        &self,
        x: &mut Exec<'_, D>,
        (tokens, dense): (usize, bool),
        input: Input,
        s: &mut Scratch<D::Mem>,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let ExpertScratch { weights, multiplied, experts, sum, identities, .. } = e;
        let Some(own) = identities else {
            return Err(Error::internal("no room for experts without weights"));
        };
        let weights = match multiplied {
            Some((_, weights)) if self.factors.is_some() => &*weights,
            _ => &*weights,
        };
        let top_k = self.spec.router.top_k;
        let chosen = (experts.view().slice(0..tokens * top_k)?, weights.shaped(tokens, top_k)?);
        let Scratch { residual, normed, partial, shortcut, .. } = s;
        let input = if self.apart.is_some() { Input::Normed } else { input };
        let rows = input.read(residual, normed, tokens)?;
        let out = place_of_sum((self.spec.join, dense), tokens, (partial, sum, shortcut))?;
        own.add(x, &self.spec, chosen, rows, out)
    }

    /// Leaves the scores in `logits`; what the experts read.
    fn scores<'s>(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        input: Input,
        s: &'s mut Scratch<D::Mem>,
        logits: &mut Mat<D::Mem>,
    ) -> Result<MatRef<'s, D::Mem>> {
        let logits = logits.shaped_mut(tokens, self.spec.router.experts)?;
        if let Some(apart) = &self.apart {
            apart.scores(x, tokens, (&self.router, logits), s)?;
            return s.normed.view(tokens);
        }
        let rows = input.read(&s.residual, &s.normed, tokens)?;
        x.run(self.router.linear(rows, logits))?;
        Ok(rows)
    }

    /// Adds what all ranks have of every slot, in `e.nodes`, and the biases of the slots' experts; leaves the
    /// sums, rounded, in `e.out`.
    fn exchange(
        &self,
        x: &mut Exec<'_, D>,
        slots: usize,
        hidden: usize,
        adds: bool,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let Some(nodes) = &mut e.nodes else { return Err(Error::internal("no room for a rank's slots")) };
        let mut sums = nodes.shaped_mut(slots, hidden)?;
        x.all_reduce(sums.reborrow(), adds)?;
        if let (Some(table), Some(rows)) = (&self.biases, &mut e.bias_rows) {
            let ids = e.experts.view().slice(0..slots)?;
            let add = Some(rows.shaped_mut(slots, hidden)?);
            x.run(Embed { ids, table, add, out: sums.reborrow() })?;
        }
        x.run(Convert { x: sums.as_ref(), bias: None, out: e.out.shaped_mut(slots, hidden)? })
    }

    /// Leaves what every slot's expert reads, times its weight, in `e.weighted`.
    fn weigh_inputs(
        &self,
        x: &mut Exec<'_, D>,
        rows: MatRef<'_, D::Mem>,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let (tokens, hidden, top_k) = (rows.rows(), rows.cols(), self.spec.router.top_k);
        let Some((inputs, _)) = &mut e.weighted else { return Err(Error::internal("no room for inputs")) };
        for choice in 0..top_k {
            let weights = e.weights.shaped(tokens, top_k)?.columns(choice..choice + 1)?;
            // The slots of a token lie side by side.
            let out = inputs.shaped_mut(tokens, top_k * hidden)?;
            let out = out.columns(choice * hidden..(choice + 1) * hidden)?;
            x.run(Combine::chain(rows, weights, false, out))?;
        }
        Ok(())
    }

    /// Leaves what every slot's expert gives in `e.out`, a rank's part of it in `e.nodes`.
    fn chosen(
        &self,
        x: &mut Exec<'_, D>,
        block: &BlockSpec,
        rows: MatRef<'_, D::Mem>,
        (up, down): (&Projection<D>, &Projection<D>),
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let (router, inner) = (self.spec.router, self.spec.inner);
        let (act, clamp) = (block.mlp.act, block.mlp.clamp);
        let (slots, hidden) = (rows.rows() * router.top_k, rows.cols());
        let groups = Groups {
            experts: e.experts.view().slice(0..slots)?,
            groups: e.groups.view().slice(0..router.experts + 1 + slots)?,
            count: router.experts,
        };
        let first = self.share.experts().start;
        let rows = match &e.weighted {
            Some((inputs, _)) if self.spec.input_weighted => inputs.shaped(slots, hidden)?,
            _ => rows,
        };
        if block.mlp.gated {
            x.run(up.experts(rows, (groups, first), e.up.shaped_mut(slots, 2 * inner)?))?;
            let gate_up = e.up.shaped(slots, 2 * inner)?;
            x.run(Gate { gate_up, act, clamp, out: e.inner.shaped_mut(slots, inner)? })?;
        } else {
            x.run(up.experts(rows, (groups, first), e.inner.shaped_mut(slots, inner)?))?;
            x.run(Activate { x: e.inner.shaped_mut(slots, inner)?, act })?;
        }
        let out = match (&mut e.nodes, self.parts) {
            (Some(nodes), true) => nodes.shaped_mut(slots, hidden)?,
            _ => e.out.shaped_mut(slots, hidden)?,
        };
        x.run(down.experts(e.inner.shaped(slots, inner)?, (groups, first), out))
    }

    /// Adds the dense part, which is in `partial`, to the experts' sum.
    fn join(
        &self,
        x: &mut Exec<'_, D>,
        tokens: usize,
        input: Input,
        s: &mut Scratch<D::Mem>,
        e: &mut ExpertScratch<D::Mem>,
    ) -> Result<()> {
        let hidden = s.residual.cols();
        let (experts, score) = match self.spec.join {
            Join::Add | Join::Mean | Join::NextBlock => {
                if let Some(apart) = &self.apart {
                    return apart.join(x, tokens, e.sum.shaped(tokens, hidden)?, s);
                }
                let (acc, sum) = (s.partial.view_mut(tokens)?, e.sum.shaped(tokens, hidden)?);
                x.run(Add { acc, x: sum })?;
                if self.spec.join == Join::Mean {
                    x.run(Scale { x: s.partial.view_mut(tokens)?, factor: 0.5, cap: None })?;
                }
                return Ok(());
            }
            Join::Gated => (1, RouterScore::Sigmoid),
            Join::Mixed => (2, RouterScore::Softmax),
        };
        let Some(join) = &self.join else { return Err(Error::internal("no weight for the dense part")) };
        let router = Router::new(experts, experts, score);
        let rows = input.read(&s.residual, &s.normed, tokens)?;
        x.run(join.linear(rows, e.logits.shaped_mut(tokens, experts)?))?;
        e.route(x, router, None, tokens, true)?;
        let weights = e.join_weights.shaped(tokens, experts)?;
        // The slots' buffer is free again: it holds the weighed sum.
        let dense = s.partial.view(tokens)?;
        let sum = match self.spec.join {
            Join::Mixed => {
                let (y, sum) = (e.sum.shaped(tokens, hidden)?, &mut e.out);
                let (first, second) = (weights.columns(0..1)?, weights.columns(1..2)?);
                x.run(Combine::chain(y, first, false, sum.shaped_mut(tokens, hidden)?))?;
                x.run(Combine::chain(dense, second, true, sum.shaped_mut(tokens, hidden)?))?;
                sum
            }
            _ => {
                x.run(Combine::chain(dense, weights, true, e.sum.shaped_mut(tokens, hidden)?))?;
                &mut e.sum
            }
        };
        x.run(Convert { x: sum.shaped(tokens, hidden)?, bias: None, out: s.partial.view_mut(tokens)? })
    }
}

/// Where the experts' sum goes: apart while the dense part waits in `partial` to be joined, or until the next
/// block's end.
fn place_of_sum<'s, M: DeviceMem>(
    (join, dense): (Join, bool),
    tokens: usize,
    (partial, sum, shortcut): (&'s mut Mat<M>, &'s mut Mat<M>, &'s mut Option<ShortcutScratch<M>>),
) -> Result<MatMut<'s, M>> {
    match (join, dense, shortcut) {
        (Join::NextBlock, _, Some(own)) => own.sum.view_mut(tokens),
        (Join::NextBlock, _, None) => Err(Error::internal("no room for a sum that joins a block later")),
        (_, true, _) => sum.shaped_mut(tokens, partial.cols()),
        (_, false, _) => partial.view_mut(tokens),
    }
}

impl<D: Device> Projection<D> {
    /// Every slot's matmul with its expert's part of the weight, which begins with that of expert `first`.
    fn experts<'a>(
        &'a self,
        x: MatRef<'a, D::Mem>,
        (groups, first): (Groups<'a, D>, usize),
        out: MatMut<'a, D::Mem>,
    ) -> ExpertLinear<'a, D> {
        ExpertLinear { x, weight: &self.weight, bias: self.bias.as_ref(), groups, first, out }
    }
}
