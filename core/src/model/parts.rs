//! What blocks, embedding and head are made of, and what a step gives them.

use super::Exec;
use crate::kv::PagedKv;
use crate::mem::{Device, DeviceMem, Mat, MatMut, MatRef, StepView, Table, Weight};
use crate::ops::{Convert, Linear, NormWeights};
use crate::policy::NormSpec;
use crate::{Error, Result};

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

/// A projection whose sums the ranks of a group share: each has some of its inputs.
pub struct RowParallel<D: Device> {
    /// `[n, k]` of this rank's inputs; none where it has none.
    pub weight: Option<D::Weight>,
    /// `[n]`, added once.
    pub bias: Option<D::Weight>,
}

impl<D: Device> RowParallel<D> {
    /// `out = x w^T + bias`, summed over all ranks: x `[rows, k]` (none where this rank has no input), out
    /// `[rows, n]`. `nodes`, `[rows, n]` f32, holds what this rank adds; none where there are no others.
    ///
    /// # Errors
    /// As [`Exec::run`]; what the group raises.
    pub fn run(
        &self,
        x: &mut Exec<'_, D>,
        input: Option<MatRef<'_, D::Mem>>,
        nodes: Option<MatMut<'_, D::Mem>>,
        out: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        let Some(mut nodes) = nodes else {
            let (Some(weight), Some(input)) = (&self.weight, input) else {
                return Err(Error::internal("a matmul without a weight on the only rank"));
            };
            return x.run(Linear::new(input, weight, self.bias.as_ref(), out));
        };
        let adds = self.node(x, input, nodes.reborrow())?;
        x.all_reduce(nodes.reborrow(), adds)?;
        self.finish(x, nodes.as_ref(), out)
    }

    /// Leaves what this rank adds in `node`, `[rows, n]` f32; whether it adds anything.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub(super) fn node(
        &self,
        x: &mut Exec<'_, D>,
        input: Option<MatRef<'_, D::Mem>>,
        node: MatMut<'_, D::Mem>,
    ) -> Result<bool> {
        let (Some(weight), Some(input)) = (&self.weight, input) else { return Ok(false) };
        x.run(Linear::new(input, weight, None, node)).map(|()| true)
    }

    /// `out = sum + bias`, rounded once: the sum of all ranks' nodes.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub(super) fn finish(
        &self,
        x: &mut Exec<'_, D>,
        sum: MatRef<'_, D::Mem>,
        out: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        x.run(Convert { x: sum, bias: self.bias.as_ref(), out })
    }
}

/// Projections of one input whose outputs lie side by side: q | k | v, gate | up. One weight, unless the
/// checkpoint stores its rows in several formats.
pub struct Fused<D: Device>(Vec<Projection<D>>);

impl<D: Device> Fused<D> {
    /// Those that follow each other in the output.
    pub fn new(parts: Vec<Projection<D>>) -> Self {
        Self(parts)
    }

    /// In the order of their outputs.
    pub fn parts(&self) -> &[Projection<D>] {
        &self.0
    }

    /// The one that has all outputs; none where there are several.
    pub fn whole(&self) -> Option<&Projection<D>> {
        match &self.0[..] {
            [whole] => Some(whole),
            _ => None,
        }
    }

    /// `out = x w^T + bias`: x `[rows, k]`, out `[rows, n]`.
    ///
    /// # Errors
    /// As [`Exec::run`].
    pub fn run(
        &self,
        x: &mut Exec<'_, D>,
        input: MatRef<'_, D::Mem>,
        mut out: MatMut<'_, D::Mem>,
    ) -> Result<()> {
        let mut first = 0;
        for part in &self.0 {
            let behind = first + part.outputs();
            x.run(part.linear(input, out.reborrow().columns(first..behind)?))?;
            first = behind;
        }
        Ok(())
    }
}

/// Where a rank leaves what it adds to a sum `[tokens, hidden]`; none where there are no others.
pub(super) fn of_rank<M: DeviceMem>(
    nodes: &mut Option<Mat<M>>,
    tokens: usize,
    hidden: usize,
) -> Result<Option<MatMut<'_, M>>> {
    nodes.as_mut().map(|nodes| nodes.shaped_mut(tokens, hidden)).transpose()
}

/// A norm with its operands.
pub struct Norm<D: Device> {
    /// Which norm.
    pub spec: NormSpec,
    /// `[1, cols]`; none multiplies by one.
    pub weight: Option<D::Weight>,
    /// `[1, cols]`.
    pub bias: Option<D::Weight>,
}

impl<D: Device> Norm<D> {
    /// What ops take.
    pub fn weights(&self) -> NormWeights<'_, D> {
        NormWeights {
            kind: self.spec.kind,
            eps: self.spec.eps,
            weight: self.weight.as_ref(),
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
