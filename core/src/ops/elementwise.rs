//! Element by element: sums, activations, gates, modulation, scaling, conversion.

use super::check::Check;
use super::stem::stem;
use super::{Rules, Signature, rules};
use crate::Result;
use crate::mem::{BufRef, Device, MatMut, MatRef};
use crate::params::{Act, Clamp};

/// `acc += x`: both `[rows, cols]` of one element type.
pub struct Add<'a, D: Device> {
    /// `[rows, cols]`.
    pub acc: MatMut<'a, D::Mem>,
    /// `[rows, cols]`.
    pub x: MatRef<'a, D::Mem>,
}

/// `x = act(x)` in place.
pub struct Activate<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// The function.
    pub act: Act,
}

/// `x = xielu(x)` in place, of `constants = [p, n, b, e]`: `p x^2 + b x` for `x > 0`, else
/// `n (e^m - 1 - x) + b x` with `m = min(x, e)`; NaN stays NaN.
pub struct Xielu<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// `[4]`.
    pub constants: &'a D::Weight,
}

/// `out = act(g) * u` of `gate_up = [g | u]`: gate_up `[rows, 2 inner]`, out `[rows, inner]`; act(g) is
/// rounded to f32 only. With a clamp `out = (clamp(u, -limit, limit) + shift) * (g' * sigmoid(slope * g'))`,
/// `g' = min(g, limit)`: NaN stays NaN.
pub struct Gate<'a, D: Device> {
    /// `[rows, 2 inner]`.
    pub gate_up: MatRef<'a, D::Mem>,
    /// Of the gate; no matter with a clamp.
    pub act: Act,
    /// In the place of `act(g) * u`.
    pub clamp: Option<Clamp>,
    /// `[rows, inner]`.
    pub out: MatMut<'a, D::Mem>,
}

/// `x[r] = factor * x[r] + shift[rows[r]]` in place, element by element: `factor` is `scale[rows[r]]`, or
/// `1 + scale[rows[r]]` rounded to f32 where `plus_one` says so; without a shift `x[r] = factor * x[r]`. A
/// row number beyond `scale` leaves its row as it is. Adaptive norms and gated residuals of diffusion
/// transformers (arXiv 2212.09748), where all rows of an item share a row of `scale`.
pub struct Modulate<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// `[any, cols]`.
    pub scale: MatRef<'a, D::Mem>,
    /// As large as `scale`.
    pub shift: Option<MatRef<'a, D::Mem>>,
    /// `[rows]`.
    pub rows: BufRef<'a, D::Mem, u32>,
    /// Whether 1 is added to the scale.
    pub plus_one: bool,
}

/// `x = max(min(x, limit), -limit)` in place; NaN stays NaN.
pub struct Limit<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// Largest size; above 0.
    pub limit: f32,
}

/// `y = factor * x`, then `cap * tanh(y / cap)` where a cap is given, in place; one rounding at the end.
pub struct Scale<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatMut<'a, D::Mem>,
    /// The factor.
    pub factor: f32,
    /// The cap.
    pub cap: Option<f32>,
}

/// `out = x`, or `out = x + bias` where one is given, rounded to `out`'s element type: both `[rows, cols]`.
pub struct Convert<'a, D: Device> {
    /// `[rows, cols]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[cols]`.
    pub bias: Option<&'a D::Weight>,
    /// `[rows, cols]`.
    pub out: MatMut<'a, D::Mem>,
}

stem!(
    Elementwise,
    ElementwiseOp,
    ElementwiseOpKind: Add = "add",
    Activate = "activate",
    Xielu = "xielu",
    Gate = "gate",
    Modulate = "modulate",
    Limit = "limit",
    Scale = "scale",
    Convert = "convert",
);

impl<'a, D: Device> Rules<'a, D> for Add<'a, D> {
    rules!(ElementwiseOpKind::Add: acc, x);

    fn check(&self, check: &Check) -> Result<()> {
        check.alike(self.acc.layout(), self.x.layout())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Activate<'a, D> {
    rules!(ElementwiseOpKind::Activate: x; act);

    /// A view that exists is all it needs.
    fn check(&self, _: &Check) -> Result<()> {
        Ok(())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Xielu<'a, D> {
    rules!(ElementwiseOpKind::Xielu: x, constants);

    fn check(&self, check: &Check) -> Result<()> {
        check.vector("length of the constants", self.constants, 4)
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Gate<'a, D> {
    rules!(ElementwiseOpKind::Gate: gate_up, out; act, clamp);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("rows", self.out.rows(), self.gate_up.rows())?;
        check.factors("columns of gate and up", self.gate_up.cols(), &[2, self.out.cols()])?;
        check_limit(check, self.clamp.map_or(1.0, |clamp| clamp.limit))?;
        check.dtype("element type", self.out.dtype(), self.gate_up.dtype())
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.out.dtype(), self.gate_up.cols(), self.out.cols())
    }
}

impl<'a, D: Device> Rules<'a, D> for Modulate<'a, D> {
    rules!(ElementwiseOpKind::Modulate: x, scale, shift, rows; plus_one);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("row numbers", self.rows.len(), self.x.rows())?;
        check.same("columns of the scale", self.scale.cols(), self.x.cols())?;
        check.dtype("element type of the scale", self.scale.dtype(), self.x.dtype())?;
        match self.shift {
            Some(shift) => check.alike(self.scale.layout(), shift.layout()),
            None => Ok(()),
        }
    }

    fn signature(&self) -> Signature {
        Signature { bias: self.shift.is_some(), ..Signature::of_rows(self.kind(), self.x.layout()) }
    }
}

/// Refuses a limit that nothing is within.
fn check_limit(check: &Check, limit: f32) -> Result<()> {
    check.same("limits that are above 0", usize::from(limit > 0.0 && limit.is_finite()), 1)
}

impl<'a, D: Device> Rules<'a, D> for Limit<'a, D> {
    rules!(ElementwiseOpKind::Limit: x; limit);

    fn check(&self, check: &Check) -> Result<()> {
        check_limit(check, self.limit)
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Scale<'a, D> {
    rules!(ElementwiseOpKind::Scale: x; factor, cap);

    /// A view that exists is all it needs.
    fn check(&self, _: &Check) -> Result<()> {
        Ok(())
    }

    fn signature(&self) -> Signature {
        Signature::of_rows(self.kind(), self.x.layout())
    }
}

impl<'a, D: Device> Rules<'a, D> for Convert<'a, D> {
    rules!(ElementwiseOpKind::Convert: x, bias, out);

    fn check(&self, check: &Check) -> Result<()> {
        check.same("rows", self.out.rows(), self.x.rows())?;
        check.same("columns", self.out.cols(), self.x.cols())?;
        match self.bias {
            Some(bias) => check.vector("length of the bias", bias, self.x.cols()),
            None => Ok(()),
        }
    }

    fn signature(&self) -> Signature {
        let plain = Signature::of_rows(self.kind(), self.x.layout());
        Signature { out: self.out.dtype(), bias: self.bias.is_some(), ..plain }
    }
}
