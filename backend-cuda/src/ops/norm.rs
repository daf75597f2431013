//! Norms: of rows, behind a residual sum, of heads, of groups of columns; rows by their own moments.

use super::names::elem;
use super::{Terms, int8};
use crate::quantized::QuantizedOutput;
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::numerics::Mode;
use engraft_core::ops::{GaussianTopk, GroupNorm, MatchRms, NormOp, NormOpKind, NormWeights, Signature};
use engraft_core::params::NormKind;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::{MatView, norm as kernels};

/// Whether a norm keeps the contract's order.
fn is_strict(terms: Terms) -> bool {
    terms.mode == Mode::Reference
}

/// Which kernel.
pub(super) fn kernel(terms: Terms, op: NormOpKind, signature: &Signature) -> Kernel {
    let width = match op {
        NormOpKind::Norm | NormOpKind::AddNorm => signature.outer,
        NormOpKind::HeadNorm => signature.inner,
        NormOpKind::GroupNorm => return Kernel::Entry(kernels::GroupNorm::entry(elem(signature.x))),
        NormOpKind::GaussianTopk | NormOpKind::MatchRms => {
            let (elem, like) = (elem(signature.x), op == NormOpKind::MatchRms);
            return Kernel::Entry(kernels::Rescale::entry(elem, like, is_strict(terms)));
        }
    };
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    Kernel::Entry(kernels::Norm::entry(elem(signature.x), width, is_strict(terms)))
}

pub(super) fn run(stream: &mut CudaStream, op: NormOp<'_, Cuda>) -> Result<()> {
    match op {
        NormOp::Norm(op) => {
            let width = op.x.cols();
            parts(stream, Parts { x: op.x, add: None, width, norm: op.norm, out: op.out.as_ref() })
        }
        NormOp::AddNorm(op) => {
            let (x, width) = (op.residual.as_ref(), op.residual.cols());
            parts(stream, Parts { x, add: Some(op.x), width, norm: op.norm, out: op.out.as_ref() })
        }
        NormOp::HeadNorm(op) => {
            let x = op.x.as_ref();
            parts(stream, Parts { x, add: None, width: op.width, norm: op.norm, out: x })
        }
        NormOp::GroupNorm(op) => groups(stream, op),
        NormOp::GaussianTopk(GaussianTopk { x, deviations }) => rescaled(stream, x, None, deviations),
        NormOp::MatchRms(MatchRms { x, like, floor }) => rescaled(stream, x, Some(like), floor),
    }
}

/// Norms of parts of rows: `out = norm(x)`, behind `x += add`.
struct Parts<'a> {
    x: MatRef<'a, CudaMem>,
    add: Option<MatRef<'a, CudaMem>>,
    /// Columns of a part.
    width: usize,
    norm: NormWeights<'a, Cuda>,
    out: MatRef<'a, CudaMem>,
}

fn parts(stream: &mut CudaStream, of: Parts<'_>) -> Result<()> {
    let Parts { x, add, width, norm, out } = of;
    let codes = match width == x.cols() {
        true => int8::room_behind_a_norm(stream, x)?,
        false => Codes::NONE,
    };
    let p = kernels::Norm {
        x: stream.matrix(x)?,
        add: add.map_or(Ok(MatView::NONE), |add| stream.matrix(add))?,
        out: stream.matrix(out)?,
        weight: stream.vector(norm.weight)?,
        bias: stream.vector(norm.bias)?,
        width: word(width)?,
        parts: word(x.cols() / width.max(1))?,
        eps: norm.eps,
        layer: u32::from(norm.kind == NormKind::Layer),
        plus_one: u32::from(norm.plus_one),
        elem: elem(x.dtype()),
        strict: u32::from(is_strict(stream.gpu().terms())),
        reserved: 0,
        codes,
    };
    stream.launch(&p.launch(), &p)?;
    if codes != Codes::NONE {
        stream.remember(QuantizedOutput { of: p.out, _mem: out.mem().share(), elem: p.elem, codes });
    }
    Ok(())
}

fn groups(stream: &mut CudaStream, op: GroupNorm<'_, Cuda>) -> Result<()> {
    let GroupNorm { x, groups, norm, out } = op;
    let p = kernels::GroupNorm {
        x: stream.matrix(x)?,
        out: stream.matrix(out.as_ref())?,
        weight: stream.vector(norm.weight)?,
        bias: stream.vector(norm.bias)?,
        width: word(x.cols() / groups.max(1))?,
        groups: word(groups)?,
        eps: norm.eps,
        layer: u32::from(norm.kind == NormKind::Layer),
        plus_one: u32::from(norm.plus_one),
        elem: elem(x.dtype()),
    };
    stream.launch(&p.launch(), &p)
}

/// Rows by their own moments.
fn rescaled(
    stream: &mut CudaStream,
    x: MatMut<'_, CudaMem>,
    like: Option<MatRef<'_, CudaMem>>,
    value: f32,
) -> Result<()> {
    let width = like.map_or(x.cols(), |like| like.cols());
    let p = kernels::Rescale {
        x: stream.matrix(x.as_ref())?,
        like: like.map_or(Ok(MatView::NONE), |like| stream.matrix(like))?,
        width: word(width)?,
        parts: word(x.cols() / width.max(1))?,
        value,
        elem: elem(x.dtype()),
        strict: u32::from(is_strict(stream.gpu().terms())),
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}
