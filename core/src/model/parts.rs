//! What blocks, embedding and head are made of, and what a step gives them.

use crate::kv::PagedKv;
use crate::mem::{Device, MatMut, MatRef, StepView, Table, Weight};
use crate::ops::{Linear, NormWeights};
use crate::policy::NormSpec;

/// A weight with its bias.
pub struct Projection<D: Device> {
    /// `[n, k]`.
    pub weight: D::Weight,
    /// `[n]`.
    pub bias: Option<D::Weight>,
}

impl<D: Device> Projection<D> {
    /// `out = x w^T + bias`: x `[rows, k]`, out `[rows, n]`.
    pub fn linear<'a>(&'a self, x: MatRef<'a, D::Mem>, out: MatMut<'a, D::Mem>) -> Linear<'a, D> {
        Linear::new(x, &self.weight, self.bias.as_ref(), out)
    }

    /// Columns that it gives.
    pub fn outputs(&self) -> usize {
        self.weight.info().rows
    }
}

/// A norm with its operands.
pub struct Norm<D: Device> {
    /// Which norm.
    pub spec: NormSpec,
    /// `[1, cols]`.
    pub weight: D::Weight,
    /// `[1, cols]`.
    pub bias: Option<D::Weight>,
}

impl<D: Device> Norm<D> {
    /// What ops take.
    pub fn weights(&self) -> NormWeights<'_, D> {
        NormWeights {
            kind: self.spec.kind,
            eps: self.spec.eps,
            weight: Some(&self.weight),
            bias: self.bias.as_ref(),
            plus_one: self.spec.plus_one,
        }
    }
}

/// Device data that a step reads besides operands, and the pages that it writes.
pub struct StepInputs<'a, D: Device> {
    /// Ids, positions, bounds, ...
    pub view: StepView<'a, D::Mem>,
    /// The slabs; empty for encoders.
    pub kv: &'a mut PagedKv<D::Mem>,
    /// Pages of sequences.
    pub table: Table<'a, D::Mem>,
    /// Attention schedule.
    pub plan: &'a D::AttnPlan,
}
