//! Experts: routing, their matmuls, their sum.
//!
//! A *slot* is one of the `tokens * top_k` pairs of token and expert, `token * top_k + choice`.

use super::check::Check;
use super::stem::stem;
use super::{Rules, Signature, SumPart, groups, rules};
use crate::Result;
use crate::mem::{BufMut, BufRef, Device, Float, MatMut, MatRef, Weight, copied};
use crate::params::{ExpertGroups, ExpertShare, Router, RouterScore};

/// Chooses experts: the `top_k` largest logits of a row are chosen, ties go to the lowest expert, NaN counts
/// as the smallest.
///
/// With a bias for the choice or groups, those with the largest keys: `s + bias`, where `s` is the sigmoid,
/// or `e / s` over all experts as below. Groups are ranked by their largest key, or by the sum of their two
/// largest; the experts are those of the best groups alone.
///
/// Softmax: `w = e / s`, `e = exp(logit - max)`, `s` the sum over all experts in the order of
/// `docs/numerics.md` (grain 1), or over the chosen in ascending order where renormalised. Sigmoid:
/// `w = sigmoid(logit)`, divided by the sum of the chosen where renormalised (by 1 where that is 0). Then
/// times the router's scale. One after the other: see [`Router::near`]; the sum of a chosen expert's softmax
/// has the order of that over all, without what is not left or not near.
pub struct Route<'a, D: Device> {
    /// `[tokens, experts]` f32.
    pub logits: MatRef<'a, D::Mem>,
    /// How.
    pub router: Router,
    /// `[experts]`, where the router has a bias for the choice.
    pub choice_bias: Option<&'a D::Weight>,
    /// `[tokens * top_k]` the expert of every slot; ascending within a token.
    pub experts: BufMut<'a, D::Mem, u32>,
    /// `[tokens, top_k]` f32 weights of the slots.
    pub weights: MatMut<'a, D::Mem>,
    /// `[experts + 1]` then `[tokens * top_k]`: the slots of expert `e` are entries
    /// `groups[e]..groups[e + 1]` of the second part, in ascending order.
    pub groups: BufMut<'a, D::Mem, u32>,
}

/// Slots by expert, to read: see [`Route`].
pub struct Groups<'a, D: Device> {
    /// `[tokens * top_k]`.
    pub experts: BufRef<'a, D::Mem, u32>,
    /// `[count + 1]` then `[tokens * top_k]`.
    pub groups: BufRef<'a, D::Mem, u32>,
    /// Experts.
    pub count: usize,
}

copied!([D: Device] Groups<'_, D>);

groups!(Groups<'a, D> { experts: "experts", groups: "groups", count: "count" });

/// Every slot's matmul with its expert's weight: w holds `[n, k]` of every expert, one after the other
/// ([`crate::mem::WeightUse::Experts`]), bias `[experts * n]`; out `[slots, n]`; x has a row per slot or,
/// `[slots / top_k, k]`, a row per token. Rows are those of [`super::Linear`], bit for bit. Slots of experts
/// whose weights are not here keep their rows. A rank's part of sums is f32, without a bias. Groups that no
/// [`Route`] wrote give rows that mean nothing, or leave rows as they were.
pub struct ExpertLinear<'a, D: Device> {
    /// `[slots, k]` or `[tokens, k]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[experts * n, k]`.
    pub weight: &'a D::Weight,
    /// `[experts * n]`.
    pub bias: Option<&'a D::Weight>,
    /// Which slots.
    pub groups: Groups<'a, D>,
    /// The expert whose weight comes first: a rank has some of them.
    pub first: usize,
    /// `[slots, n]`.
    pub out: MatMut<'a, D::Mem>,
}

/// The experts of slots, whose results are added by leaves.
pub struct Chosen<'a, D: Device> {
    /// `[tokens * top_k]`, ascending within a token.
    pub experts: BufRef<'a, D::Mem, u32>,
    /// Those whose results are added here.
    pub share: ExpertShare,
}

copied!([D: Device] Chosen<'_, D>);

groups!(Chosen<'a, D> { experts: "experts" });

/// `out[t] = sum_j weights[t, j] * y[t * top_k + j]`; with `add`, that is added to `out[t]`.
///
/// The sum has leaves by expert number (`docs/numerics.md`): each is a chain of multiply-adds from zero in
/// ascending `j`, of the slots whose expert is in the leaf. Without `chosen` there is one chain. Slots of
/// experts that other ranks have are not read, nor are those of experts behind the share's last one; what is
/// left is this rank's node, for f32 outputs.
pub struct Combine<'a, D: Device> {
    /// `[tokens * top_k, n]`.
    pub y: MatRef<'a, D::Mem>,
    /// `[tokens, top_k]` f32.
    pub weights: MatRef<'a, D::Mem>,
    /// The slots' experts.
    pub chosen: Option<Chosen<'a, D>>,
    /// Whether `out` is added to.
    pub add: bool,
    /// `[tokens, n]`, of y's element type or f32.
    pub out: MatMut<'a, D::Mem>,
}

stem!(
    Moe,
    MoeOp,
    MoeOpKind: Route = "route",
    ExpertLinear = "expert_linear",
    Combine = "combine",
);

impl<'a, D: Device> Rules<'a, D> for Route<'a, D> {
    rules!(MoeOpKind::Route: logits, experts, weights, groups, router, choice_bias);

    fn check(&self, check: &Check) -> Result<()> {
        let (router, rows) = (self.router, self.logits.rows());
        check.same("columns of the logits", self.logits.cols(), router.experts)?;
        check.at_least("chosen experts", router.top_k, 1)?;
        check.at_least("experts", router.experts, router.top_k)?;
        check.at_least("room for chosen experts", Router::MAX_TOP_K, router.top_k)?;
        self.check_choice(check)?;
        check.factors("slots", self.experts.len(), &[rows, router.top_k])?;
        let slots = self.experts.len();
        check.same("grouped slots", self.groups.len(), router.experts.saturating_add(1 + slots))?;
        check.same("rows of the weights", self.weights.rows(), rows)?;
        check.same("columns of the weights", self.weights.cols(), router.top_k)?;
        check.dtype("element type of the logits", self.logits.dtype(), Float::F32)?;
        check.dtype("element type of the weights", self.weights.dtype(), Float::F32)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.logits.dtype(), self.router.top_k, self.router.experts)
    }
}

impl<D: Device> Route<'_, D> {
    /// Whether the choice by scores has what it needs, and kernels have room for it.
    fn check_choice(&self, check: &Check) -> Result<()> {
        let router = self.router;
        if router.is_by_score() {
            check.at_least("room for experts chosen by scores", Router::MAX_BY_SCORE, router.experts)?;
        }
        if let Some(groups) = router.groups {
            check.at_least("groups of experts", groups.count, 1)?;
            check.at_least("room for groups of experts", ExpertGroups::MAX, groups.count)?;
            check.same("experts beyond whole groups", router.experts % groups.count, 0)?;
            check.at_least("groups of experts", groups.count, groups.chosen)?;
            let open = groups.chosen.saturating_mul(router.experts / groups.count);
            check.at_least("experts of chosen groups", open, router.top_k)?;
        }
        if let Some(near) = router.near {
            let plain = router.score == RouterScore::Softmax && !router.renormalise && !router.is_by_score();
            check.same("choices one after the other by a plain softmax", usize::from(plain), 1)?;
            check.same("distances of logits from 0 on", usize::from(near >= 0.0 && near.is_finite()), 1)?;
        }
        match self.choice_bias {
            Some(bias) => {
                check.absent("bias of a choice without one", !router.choice_bias)?;
                check.vector("length of the bias of the choice", bias, router.experts)
            }
            None => check.same("biases of the choice", usize::from(router.choice_bias), 0),
        }
    }
}

impl<'a, D: Device> Rules<'a, D> for ExpertLinear<'a, D> {
    rules!(MoeOpKind::ExpertLinear: x, weight, groups, out, bias, first);

    fn check(&self, check: &Check) -> Result<()> {
        let w = self.weight.info();
        let (slots, count) = (self.out.rows(), self.groups.count);
        let own = check.experts(self.weight)?;
        check.at_least("experts", count, self.first.saturating_add(own))?;
        check.bias(self.weight, self.bias)?;
        check.same("columns of x", self.x.cols(), w.cols)?;
        check.factors("rows of all experts", w.rows, &[own, self.out.cols()])?;
        check.same("slots", self.groups.experts.len(), slots)?;
        check.same("grouped slots", self.groups.groups.len(), count.saturating_add(1 + slots))?;
        check.same("slots beyond whole tokens", slots % self.x.rows().max(1), 0)?;
        check.at_least("rows of x", self.x.rows(), usize::from(slots > 0))?;
        match w.used_for.share() {
            Some(_) => {
                check.absent("bias of a rank's part of a sum", self.bias.is_some())?;
                check.dtype("element type of a rank's part of a sum", self.out.dtype(), Float::F32)
            }
            None => check.dtype("element type", self.out.dtype(), self.x.dtype()),
        }
    }

    fn signature(&self) -> Signature {
        let w = self.weight.info();
        let plain = Signature::new(self.kind(), self.x.dtype(), w.cols, w.rows);
        let (weight, part) = (Some(w.format), SumPart::of(w.used_for));
        Signature { out: self.out.dtype(), weight, bias: self.bias.is_some(), part, ..plain }
    }
}

impl<'a, D: Device> Combine<'a, D> {
    /// One chain, whatever the experts.
    pub fn chain(
        y: MatRef<'a, D::Mem>,
        weights: MatRef<'a, D::Mem>,
        add: bool,
        out: MatMut<'a, D::Mem>,
    ) -> Self {
        Self { y, weights, chosen: None, add, out }
    }
}

impl<'a, D: Device> Rules<'a, D> for Combine<'a, D> {
    rules!(MoeOpKind::Combine: y, weights, out, chosen; add);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("rows of the weights", self.weights.rows(), self.out.rows())?;
        check.factors("slots", self.y.rows(), &[self.out.rows(), self.weights.cols()])?;
        check.same("columns", self.y.cols(), self.out.cols())?;
        if let Some(Chosen { experts, share }) = self.chosen {
            check.same("experts of slots", experts.len(), self.y.rows())?;
            check.absent("a sum that a rank's part is added to", self.add && share.is_part())?;
        }
        check.widens(self.y.dtype(), self.out.dtype())?;
        check.dtype("element type of the weights", self.weights.dtype(), Float::F32)
    }

    fn signature(&self) -> Signature {
        let plain = Signature::new(self.kind(), self.y.dtype(), self.weights.cols(), self.out.cols());
        Signature { out: self.out.dtype(), ..plain }
    }
}
