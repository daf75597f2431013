//! What models of pictures have besides: convolutions, of all columns or in groups of them, attention without
//! a softmax.

use super::check::Check;
use super::stem::stem;
use super::{GatherRows, Linear, Rules, Run, Signature, SumPart, rules, send};
use crate::Result;
use crate::mem::{BufRef, Device, Float, MatLayout, MatMut, MatRef, Weight};
use crate::params::Act;

/// `out[r] = act(weight [x[rows[r taps]], ..., x[rows[r taps + taps - 1]]] + bias)`: a convolution whose
/// kernel has `taps` places, each of which reads a row of `x`. A row number beyond `x` is a row of zeros.
///
/// It gives the bits of its composition: rows are gathered into windows `[rows, taps * cols]`, as many at
/// once as `scratch` has room for, and multiplied.
pub struct Conv<'a, D: Device> {
    /// `[any, cols]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[rows * taps]`: which rows of `x` an output row reads.
    pub rows: BufRef<'a, D::Mem, u32>,
    /// Rows of `x` that an output row reads.
    pub taps: usize,
    /// `[n, taps * cols]`.
    pub weight: &'a D::Weight,
    /// `[n]`.
    pub bias: Option<&'a D::Weight>,
    /// What follows.
    pub act: Option<Act>,
    /// `[any, taps * cols]` without gaps, at least one row: for the composition.
    pub scratch: MatMut<'a, D::Mem>,
    /// `[rows, n]`.
    pub out: MatMut<'a, D::Mem>,
}

/// `out[r, c] = bias[c] + sum over taps t and i of x[rows[r taps + t], g inputs + i] * weight[t, i, c]`, `g`
/// the group of `c`: the first `outputs` columns belong to group 0, the next ones to group 1, and behind the
/// last group the first follows again. A row number beyond `x` is a row of zeros.
///
/// A convolution whose outputs read the channels of their group alone; with one column to a group it is
/// depthwise. The sum is over `taps * inputs` products, taps first.
pub struct GroupedConv<'a, D: Device> {
    /// `[any, groups * inputs]`.
    pub x: MatRef<'a, D::Mem>,
    /// `[rows * taps]`: which rows of `x` an output row reads.
    pub rows: BufRef<'a, D::Mem, u32>,
    /// Rows of `x` that an output row reads.
    pub taps: usize,
    /// Columns of `x` in a group.
    pub inputs: usize,
    /// Columns of `out` in a group.
    pub outputs: usize,
    /// `[taps * inputs * cols]`.
    pub weight: &'a D::Weight,
    /// `[cols]`.
    pub bias: Option<&'a D::Weight>,
    /// `[rows, cols]`: whole rounds of all groups.
    pub out: MatMut<'a, D::Mem>,
}

/// Attention that is linear in the rows (arXiv 2006.16236, 2410.10629), for the rows `bounds[i]..bounds[i +
/// 1]` of each item and each head: with `k' = max(k, 0)`, `q' = max(q, 0)`
///
/// ```text
/// sums = sum over the item's rows of k'^T [v, 1]       [width, width + 1]
/// out  = (q' . sums[.., ..width]) / (q' . sums[.., width] + eps)
/// ```
///
/// `sums` are f32 and never rounded to another type; those of items without rows are zeros. Rows of no item
/// keep what they hold.
pub struct LinearAttend<'a, D: Device> {
    /// `[rows, (heads - 1) * step + width]`.
    pub q: MatRef<'a, D::Mem>,
    /// As large as `q`.
    pub k: MatRef<'a, D::Mem>,
    /// As large as `q`.
    pub v: MatRef<'a, D::Mem>,
    /// `[items + 1]`.
    pub bounds: BufRef<'a, D::Mem, u32>,
    /// Most rows of one item: what launches are sized by.
    pub max_rows: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Columns from one head to the next one of `q`, `k` and `v`.
    pub step: usize,
    /// Added to what divides.
    pub eps: f32,
    /// `[items * heads * width, width + 1]` f32.
    pub sums: MatMut<'a, D::Mem>,
    /// `[rows, heads * width]`.
    pub out: MatMut<'a, D::Mem>,
}

stem!(
    Picture,
    PictureOp,
    PictureOpKind: Conv = "conv": fused,
    GroupedConv = "grouped_conv",
    LinearAttend = "linear_attend",
);

impl<'a, D: Device> Rules<'a, D> for Conv<'a, D> {
    rules!(PictureOpKind::Conv: x, rows, taps, weight, bias, scratch, out; act);

    fn check(&self, check: &Check) -> Result<()> {
        let w = self.weight.info();
        check.linear(self.weight, self.bias)?;
        check.absent("a rank's part of a sum", SumPart::of(w.used_for) != SumPart::Whole)?;
        check.at_least("rows of x that an output reads", self.taps, 1)?;
        check.factors("columns of the weight", w.cols, &[self.taps, self.x.cols()])?;
        check.same("columns of the output", self.out.cols(), w.rows)?;
        check.factors("row numbers", self.rows.len(), &[self.out.rows(), self.taps])?;
        check.dtype("element type", self.out.dtype(), self.x.dtype())?;
        check.at_least("rows of the windows", self.scratch.rows(), 1)?;
        check.same("columns of the windows", self.scratch.cols(), w.cols)?;
        check.same("columns from one window to the next", self.scratch.pitch(), w.cols)?;
        check.dtype("element type of the windows", self.scratch.dtype(), self.x.dtype())
    }

    fn signature(&self) -> Signature {
        let w = self.weight.info();
        let plain = Signature::new(self.kind(), self.x.dtype(), w.cols, w.rows);
        Signature { weight: Some(w.format), bias: self.bias.is_some(), ..plain }
    }

    fn compose(self, to: &mut dyn Run<D>) -> Result<()> {
        let Conv { x, rows, taps, weight, bias, act, mut scratch, mut out } = self;
        let (count, most) = (out.rows(), scratch.rows().max(1));
        for start in (0..count).step_by(most) {
            let part = start..(start + most).min(count);
            let windows = MatLayout { rows: part.len(), ..scratch.layout() };
            let each = MatLayout { rows: part.len() * taps, cols: x.cols(), pitch: x.cols(), ..windows };
            let read = rows.slice(part.start * taps..part.end * taps)?;
            send(to, GatherRows { x, rows: read, out: scratch.reborrow().at(each)? })?;
            let windows = scratch.reborrow().at(windows)?.into_ref();
            let linear = Linear::new(windows, weight, bias, out.reborrow().row_range(part)?);
            send(to, if let Some(act) = act { linear.act(act) } else { linear })?;
        }
        Ok(())
    }
}

impl<D: Device> GroupedConv<'_, D> {
    /// Groups of columns; a check has seen that they are whole ones.
    pub fn groups(&self) -> usize {
        self.x.cols() / self.inputs.max(1)
    }
}

impl<'a, D: Device> Rules<'a, D> for GroupedConv<'a, D> {
    rules!(PictureOpKind::GroupedConv: x, rows, taps, inputs, outputs, weight, bias, out);

    fn check(&self, check: &Check) -> Result<()> {
        let cols = self.out.cols();
        check.at_least("columns of a group that are read", self.inputs, 1)?;
        check.at_least("columns of a group", self.outputs, 1)?;
        check.same("columns beyond whole groups", self.x.cols() % self.inputs, 0)?;
        check.at_least("groups", self.groups(), 1)?;
        let round = self.groups().saturating_mul(self.outputs);
        check.same("columns beyond whole rounds of the groups", cols % round, 0)?;
        check.factors("row numbers", self.rows.len(), &[self.out.rows(), self.taps])?;
        check.dtype("element type", self.out.dtype(), self.x.dtype())?;
        let values = self.taps.saturating_mul(self.inputs).saturating_mul(cols);
        check.vector("length of the weight", self.weight, values)?;
        self.bias.map_or(Ok(()), |bias| check.vector("length of the bias", bias, cols))
    }

    fn signature(&self) -> Signature {
        let inner = self.taps.saturating_mul(self.inputs);
        let plain = Signature::new(self.kind(), self.x.dtype(), inner, self.out.cols());
        Signature { bias: self.bias.is_some(), ..plain }
    }
}

impl<'a, D: Device> LinearAttend<'a, D> {
    /// Items.
    pub fn items(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

impl<'a, D: Device> Rules<'a, D> for LinearAttend<'a, D> {
    rules!(PictureOpKind::LinearAttend: q, k, v, bounds, max_rows, heads, width, step, sums, out; eps);

    fn check(&self, check: &Check) -> Result<()> {
        for (what, size) in [("heads", self.heads), ("columns of a head", self.width)] {
            check.at_least(what, size, 1)?;
        }
        check.at_least("columns from head to head", self.step, self.width)?;
        let before = (self.heads - 1).saturating_mul(self.step);
        check.same("columns of q", self.q.cols(), before.saturating_add(self.width))?;
        check.alike(self.q.layout(), self.k.layout())?;
        check.alike(self.q.layout(), self.v.layout())?;
        check.factors("columns of the output", self.out.cols(), &[self.heads, self.width])?;
        check.same("rows of the output", self.out.rows(), self.q.rows())?;
        check.dtype("element type of the output", self.out.dtype(), self.q.dtype())?;
        check.at_least("bounds", self.bounds.len(), 1)?;
        check.factors("rows of the sums", self.sums.rows(), &[self.items(), self.heads, self.width])?;
        check.same("columns of the sums", self.sums.cols(), self.width + 1)?;
        check.dtype("element type of the sums", self.sums.dtype(), Float::F32)
    }

    fn signature(&self) -> Signature {
        Signature::new(self.kind(), self.q.dtype(), self.width, self.out.cols())
    }
}
