//! A matmul with what follows it.

use super::check::Check;
use super::stem::kinds;
use super::{Activate, Add, Gate, Listed, OpKind, Operands, Rules, Run, Signature, SumPart, operands, send};
use crate::Result;
use crate::mem::{Device, Float, MatMut, MatRef, Weight, WeightUse};
use crate::params::Act;

/// `y = x w^T + bias`, then what `then` says: x `[rows, k]`, w `[n, k]`, bias `[n]`, out `[rows, n]`; behind
/// a gate w is `[2 inner, k]` and out `[rows, inner]`. `out` has the element type of `x`, or is f32.
///
/// A fused op gives the bits of its composition, which rounds `y` to the output's type in between, on
/// backends whose promise is the contract's order.
pub struct Linear<'a, D: Device> {
    /// `[rows, k]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[n, k]`.
    pub weight: &'a D::Weight,
    /// `[n]`.
    pub bias: Option<&'a D::Weight>,
    /// What follows.
    pub then: Then<'a, D>,
    /// `[rows, n]`, behind a gate `[rows, inner]`.
    pub out: MatMut<'a, D::Mem>,
}

/// What follows a matmul.
pub enum Then<'a, D: Device> {
    /// `out = y`.
    Nothing,
    /// `out = act(y)`.
    Act(Act),
    /// `out = act(g) * u` of `y = [g | u]`.
    Gate {
        /// Of the gate.
        act: Act,
        /// `[rows, 2 inner]`, for the composition.
        scratch: MatMut<'a, D::Mem>,
    },
    /// `out += y`.
    Add {
        /// `[rows, n]`, for the composition.
        scratch: MatMut<'a, D::Mem>,
    },
}

impl<'a, D: Device> Listed<'a, D> for Then<'a, D> {
    fn list<'o>(&'o mut self, _: &'static str, all: &mut Operands<'o, 'a, D>) {
        if let Then::Gate { scratch, .. } | Then::Add { scratch } = self {
            scratch.list("scratch", all);
        }
    }
}

kinds!(
    Linear,
    LinearOpKind: Linear = "linear",
    LinearAct = "linear_act": fused,
    GatedLinear = "gated_linear": fused,
    LinearAdd = "linear_add": fused
);

impl<'a, D: Device> Linear<'a, D> {
    /// `out = x w^T + bias`.
    pub fn new(
        x: MatRef<'a, D::Mem>,
        weight: &'a D::Weight,
        bias: Option<&'a D::Weight>,
        out: MatMut<'a, D::Mem>,
    ) -> Self {
        Self { x, weight, bias, then: Then::Nothing, out }
    }

    /// `out = act(y)`.
    pub fn act(self, act: Act) -> Self {
        Self { then: Then::Act(act), ..self }
    }

    /// `out = act(g) * u` of `y = [g | u]`.
    pub fn gate(self, act: Act, scratch: MatMut<'a, D::Mem>) -> Self {
        Self { then: Then::Gate { act, scratch }, ..self }
    }

    /// `out += y`.
    pub fn add_to(self, scratch: MatMut<'a, D::Mem>) -> Self {
        Self { then: Then::Add { scratch }, ..self }
    }
}

impl<'a, D: Device> Rules<'a, D> for Linear<'a, D> {
    fn kind(&self) -> OpKind {
        match self.then {
            Then::Nothing => LinearOpKind::Linear,
            Then::Act(_) => LinearOpKind::LinearAct,
            Then::Gate { .. } => LinearOpKind::GatedLinear,
            Then::Add { .. } => LinearOpKind::LinearAdd,
        }
        .into()
    }

    fn check(&self, check: &Check) -> Result<()> {
        let w = self.weight.info();
        check.linear(self.weight, self.bias)?;
        if let WeightUse::LinearShare { .. } = w.used_for {
            check.absent("what follows a rank's part of a sum", !matches!(self.then, Then::Nothing))?;
            check.dtype("element type of a rank's part of a sum", self.out.dtype(), Float::F32)?;
        }
        check.same("columns of x", self.x.cols(), w.cols)?;
        check.same("rows of the output", self.out.rows(), self.x.rows())?;
        check.widens(self.x.dtype(), self.out.dtype())?;
        match &self.then {
            Then::Nothing | Then::Act(_) => check.same("columns of the output", self.out.cols(), w.rows),
            Then::Add { scratch } => {
                check.same("columns of the output", self.out.cols(), w.rows)?;
                check.alike(self.out.layout(), scratch.layout())
            }
            Then::Gate { scratch, .. } => {
                check.gated(self.weight)?;
                check.same("columns of the output", self.out.cols(), w.rows / 2)?;
                check.same("columns of gate and up", scratch.cols(), w.rows)?;
                check.same("rows of gate and up", scratch.rows(), self.x.rows())?;
                check.dtype("element type of gate and up", scratch.dtype(), self.out.dtype())
            }
        }
    }

    fn signature(&self) -> Signature {
        let w = self.weight.info();
        let plain = Signature::new(self.kind(), self.x.dtype(), w.cols, w.rows);
        let (weight, part) = (Some(w.format), SumPart::of(w.used_for));
        Signature { out: self.out.dtype(), weight, bias: self.bias.is_some(), part, ..plain }
    }

    operands!(x, weight, out, bias, then);

    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let Linear { x, weight, bias, then, mut out } = self;
        let plain = |out| Linear { x, weight, bias, then: Then::Nothing, out };
        match then {
            Then::Nothing => send(to, plain(out)),
            Then::Act(act) => {
                send(to, plain(out.reborrow()))?;
                send(to, Activate { x: out, act })
            }
            Then::Gate { act, mut scratch } => {
                send(to, plain(scratch.reborrow()))?;
                send(to, Gate { gate_up: scratch.as_ref(), act, clamp: None, out })
            }
            Then::Add { mut scratch } => {
                send(to, plain(scratch.reborrow()))?;
                send(to, Add { acc: out, x: scratch.as_ref() })
            }
        }
    }
}
