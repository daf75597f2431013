//! Experts: routing, their products, their sum.

use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream, CudaWeight};
use engraft_core::Result;
use engraft_core::backend::{Groups, RouteMut};
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::{Router, RouterScore};
use engraft_kernels::params::moe as kernel;

pub(super) fn route(
    stream: &mut CudaStream,
    logits: MatRef<'_, CudaMem>,
    router: &Router,
    out: RouteMut<'_, CudaMem>,
) -> Result<()> {
    let (experts, slots) = (buffer(out.experts.as_ref())?, word(out.experts.len)?);
    let p = kernel::Route {
        logits: matrix(logits)?,
        weights: matrix(out.weights.as_ref())?,
        experts,
        top_k: word(router.top_k)?,
        sigmoid: u32::from(router.score == RouterScore::Sigmoid),
        renormalise: u32::from(router.renormalise),
        scale: router.scale,
    };
    stream.run(&p.launch(), &p)?;
    let p =
        kernel::Group { experts, groups: buffer(out.groups.as_ref())?, count: word(router.experts)?, slots };
    stream.run(&p.launch(), &p)
}

pub(super) fn expert_linear(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    w: &CudaWeight,
    bias: Option<&CudaWeight>,
    groups: Groups<'_, CudaMem>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let w = w.rows()?;
    let p = kernel::ExpertLinear {
        x: matrix(x)?,
        weight: w.view(stream.gpu())?,
        out: matrix(out.as_ref())?,
        bias: bias.map_or(Ok(0), CudaWeight::vector)?,
        groups: buffer(groups.groups)?,
        count: word(groups.count)?,
        grain: word(w.grain)?,
        elem: elem(x.dtype),
        reserved: 0,
    };
    stream.run(&p.launch(w.format), &p)
}

pub(super) fn combine(
    stream: &mut CudaStream,
    y: MatRef<'_, CudaMem>,
    weights: MatRef<'_, CudaMem>,
    add: bool,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (y_at, weights, out) = (matrix(y)?, matrix(weights)?, matrix(out.as_ref())?);
    let p = kernel::Combine { y: y_at, weights, out, elem: elem(y.dtype), add: u32::from(add) };
    stream.run(&p.launch(), &p)
}
