//! Norms: of rows, behind a sum with the residual stream, of heads, of groups of columns.

use super::check::Check;
use super::stem::stem;
use super::{Add, Rules, Run, Signature, groups, rules, send};
use crate::Result;
use crate::mem::{Device, MatMut, MatRef, copied};
use crate::params;

/// A norm with its weights.
pub struct NormWeights<'a, D: Device> {
    /// Which norm.
    pub kind: params::NormKind,
    /// Added to the mean square or variance.
    pub eps: f32,
    /// `[width]`; none multiplies by one.
    pub weight: Option<&'a D::Weight>,
    /// `[width]`; most RMS norms have none.
    pub bias: Option<&'a D::Weight>,
    /// Multiply by `1 + weight`, rounded to f32 first (Gemma).
    pub plus_one: bool,
}

copied!([D: Device] NormWeights<'_, D>);

impl<'a, D: Device> NormWeights<'a, D> {
    /// Weights for parts of `width` values.
    pub(super) fn check(&self, check: &Check, width: usize) -> Result<()> {
        for (what, vector) in [("length of the norm", self.weight), ("length of the norm's bias", self.bias)]
        {
            vector.map_or(Ok(()), |vector| check.vector(what, vector, width))?;
        }
        Ok(())
    }
}

groups!(NormWeights<'a, D> { weight: "norm", bias: "norm's bias" });

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

/// Norm of every group of `cols / groups` columns over all rows at once (arXiv 1803.08494), mean and variance
/// over the `rows * cols / groups` values of the group: x, out `[rows, cols]`. The order of sums is its own:
/// see docs/numerics.md, 1.
pub struct GroupNorm<'a, D: Device> {
    /// `[rows, cols]`: a sequence, or the pixels of an image.
    pub x: MatRef<'a, D::Mem>,
    /// How many groups the columns have.
    pub groups: usize,
    /// Of `cols` values.
    pub norm: NormWeights<'a, D>,
    /// `[rows, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

/// `x = max(x - (mean + deviations * std), 0)` row by row in place, of the mean and the standard deviation of
/// the row's own `cols` values: x `[rows, cols]`. NaN stays NaN. Gemma 3n's sparse activations: of values as
/// a Gaussian has them, a known share is left.
pub struct GaussianTopk<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// Standard deviations from the mean to what is taken off.
    pub deviations: f32,
}

/// `x = x * (rms(like) / sqrt(max(mean(x^2), floor)))` for every part of `width` columns in place, `rms` the
/// root of the mean square of a row: x `[rows, parts * width]`, like `[rows, width]`.
pub struct MatchRms<'a, D: Device> {
    /// `[rows, parts * width]`.
    pub x: MatMut<'a, D::Mem>,
    /// `[rows, width]`.
    pub like: MatRef<'a, D::Mem>,
    /// Least mean square of a part that it is divided by; above 0.
    pub floor: f32,
}

stem!(
    Norm,
    NormOp,
    NormOpKind: Norm = "norm",
    AddNorm = "add_norm": fused,
    HeadNorm = "head_norm",
    GroupNorm = "group_norm",
    GaussianTopk = "gaussian_topk",
    MatchRms = "match_rms",
);

impl<'a, D: Device> Rules<'a, D> for Norm<'a, D> {
    rules!(NormOpKind::Norm: norm, x, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.alike(self.x.layout(), self.out.layout())?;
        self.norm.check(check, self.x.cols())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for AddNorm<'a, D> {
    rules!(NormOpKind::AddNorm: norm, residual, x, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.alike(self.residual.layout(), self.x.layout())?;
        check.alike(self.residual.layout(), self.out.layout())?;
        self.norm.check(check, self.x.cols())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }

    /// `residual += x; out = norm(residual)`.
    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let AddNorm { mut residual, x, norm, out } = self;
        send(to, Add { acc: residual.reborrow(), x })?;
        send(to, Norm { x: residual.as_ref(), norm, out })
    }
}

impl<'a, D: Device> Rules<'a, D> for HeadNorm<'a, D> {
    rules!(NormOpKind::HeadNorm: norm, x, width);

    fn check(&self, check: &Check) -> Result<()> {
        check.at_least("width of a part", self.width, 1)?;
        check.same("columns beyond whole parts", self.x.cols() % self.width, 0)?;
        self.norm.check(check, self.width)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.width, self.x.cols())
    }
}

impl<'a, D: Device> Rules<'a, D> for GroupNorm<'a, D> {
    rules!(NormOpKind::GroupNorm: norm, x, groups, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.alike(self.x.layout(), self.out.layout())?;
        check.at_least("groups", self.groups, 1)?;
        check.same("columns beyond whole groups", self.x.cols() % self.groups, 0)?;
        self.norm.check(check, self.x.cols())
    }

    fn signature(&self) -> Signature {
        let columns = self.x.cols();
        Signature::new(self.kind(), self.x.dtype(), columns / self.groups.max(1), columns)
    }
}

impl<'a, D: Device> Rules<'a, D> for GaussianTopk<'a, D> {
    rules!(NormOpKind::GaussianTopk: x; deviations);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("deviations that are numbers", usize::from(self.deviations.is_finite()), 1)
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for MatchRms<'a, D> {
    rules!(NormOpKind::MatchRms: x, like; floor);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("rows", self.like.rows(), self.x.rows())?;
        check.at_least("width of a part", self.like.cols(), 1)?;
        check.same("columns beyond whole parts", self.x.cols() % self.like.cols(), 0)?;
        check.same("floors that are above 0", usize::from(self.floor > 0.0 && self.floor.is_finite()), 1)?;
        check.dtype("element type", self.like.dtype(), self.x.dtype())
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.x.dtype(), self.like.cols(), self.x.cols())
    }
}
