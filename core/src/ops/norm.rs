//! Norms: of rows, behind a sum with the residual stream, of heads.

use super::check::Check;
use super::stem::stem;
use super::{Add, OpKind, Operand, Operands, Rules, Run, Signature, send};
use crate::Result;
use crate::mem::{Device, MatMut, MatRef};
use crate::params;

/// A norm with its weights.
pub struct NormWeights<'a, D: Device> {
    /// Which norm.
    pub kind: params::NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// `[width]`; none multiplies by one.
    pub weight: Option<&'a D::Weight>,
    /// `[width]`, layer norm only.
    pub bias: Option<&'a D::Weight>,
    /// Multiply by `1 + weight` (Gemma).
    pub plus_one: bool,
}

impl<D: Device> Clone for NormWeights<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for NormWeights<'_, D> {}

impl<'a, D: Device> NormWeights<'a, D> {
    /// Weights for parts of `width` values.
    pub(super) fn check(&self, check: &Check, width: usize) -> Result<()> {
        for (what, vector) in [("length of the norm", self.weight), ("length of the norm's bias", self.bias)]
        {
            vector.map_or(Ok(()), |vector| check.vector(what, vector, width))?;
        }
        Ok(())
    }

    /// Its weights, for [`Rules::operands`].
    pub(super) fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        let weight = self.weight.as_mut().map(|w| ("norm", Operand::Weight(w)));
        let bias = self.bias.as_mut().map(|w| ("norm's bias", Operand::Weight(w)));
        weight.into_iter().chain(bias).collect()
    }
}

/// `out = norm(x)` row by row: x, out `[rows, cols]`.
pub struct Norm<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatRef<'a, D::Mem>,
    /// Of `cols` values.
    pub norm: NormWeights<'a, D>,
    /// `[rows, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

/// `residual += x; out = norm(residual)`: all `[rows, cols]`. The sum is rounded to the residual's element
/// type before the norm reads it.
pub struct AddNorm<'a, D: Device> {
    /// `[rows, cols]`.
    pub residual: MatMut<'a, D::Mem>,
    /// `[rows, cols]`.
    pub x: MatRef<'a, D::Mem>,
    /// Of `cols` values.
    pub norm: NormWeights<'a, D>,
    /// `[rows, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

/// Norm of every part of `width` columns in place: x `[rows, parts * width]`.
pub struct HeadNorm<'a, D: Device> {
    /// `[rows, parts * width]`.
    pub x: MatMut<'a, D::Mem>,
    /// Columns of a part.
    pub width: usize,
    /// Of `width` values.
    pub norm: NormWeights<'a, D>,
}

stem!(Norm, NormOp, NormOpKind: Norm = "norm", AddNorm = "add_norm": fused, HeadNorm = "head_norm");

impl<'a, D: Device> Rules<'a, D> for Norm<'a, D> {
    fn kind(&self) -> OpKind {
        NormOpKind::Norm.into()
    }

    fn check(&self) -> Result<()> {
        let check = Check(NormOpKind::Norm.name());
        check.alike(self.x.layout(), self.out.layout())?;
        self.norm.check(&check, self.x.cols())
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.x.cols(), self.x.cols())
    }

    fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        let mut all = self.norm.operands();
        all.extend([("x", Operand::Mat(&mut self.x)), ("out", Operand::MatMut(&mut self.out))]);
        all
    }
}

impl<'a, D: Device> Rules<'a, D> for AddNorm<'a, D> {
    fn kind(&self) -> OpKind {
        NormOpKind::AddNorm.into()
    }

    fn check(&self) -> Result<()> {
        let check = Check(NormOpKind::AddNorm.name());
        check.alike(self.residual.layout(), self.x.layout())?;
        check.alike(self.residual.layout(), self.out.layout())?;
        self.norm.check(&check, self.x.cols())
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.x.cols(), self.x.cols())
    }

    fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        let mut all = self.norm.operands();
        all.extend([
            ("residual", Operand::MatMut(&mut self.residual)),
            ("x", Operand::Mat(&mut self.x)),
            ("out", Operand::MatMut(&mut self.out)),
        ]);
        all
    }

    /// `residual += x; out = norm(residual)`.
    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let AddNorm { mut residual, x, norm, out } = self;
        send(to, Add { acc: residual.reborrow(), x })?;
        send(to, Norm { x: residual.as_ref(), norm, out })
    }
}

impl<'a, D: Device> Rules<'a, D> for HeadNorm<'a, D> {
    fn kind(&self) -> OpKind {
        NormOpKind::HeadNorm.into()
    }

    fn check(&self) -> Result<()> {
        let check = Check(NormOpKind::HeadNorm.name());
        check.at_least("width of a part", self.width, 1)?;
        check.same("columns beyond whole parts", self.x.cols() % self.width, 0)?;
        self.norm.check(&check, self.width)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.width, self.x.cols())
    }

    fn operands<'o>(&'o mut self) -> Operands<'o, 'a, D> {
        let mut all = self.norm.operands();
        all.extend([("x", Operand::MatMut(&mut self.x)), ("width", Operand::Size(&mut self.width))]);
        all
    }
}
