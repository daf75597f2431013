//! Experts: routing, their matmuls, their sum.

use super::Terms;
use super::names::{elem, unsupported};
use super::select::{Experts, experts};
use crate::order::Order;
use crate::weight::{bounds_of, word};
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::mem::{Weight, WeightUse};
use engraft_core::ops::{Chosen, Combine, ExpertLinear, MoeOp, MoeOpKind, Route, Signature};
use engraft_core::params::{GroupRank, RouterScore};
use engraft_core::{Error, Result};
use engraft_kernels::params::{gemm, grouped, moe as kernels};

/// Which kernel.
pub(super) fn kernel(
    terms: Terms,
    op: MoeOpKind,
    signature: &Signature,
) -> std::result::Result<Kernel, String> {
    Ok(match op {
        MoeOpKind::Route => {
            let entries = &[kernels::Route::ENTRY, kernels::Group::ENTRY];
            Kernel::Several { name: kernels::Route::ENTRY, entries }
        }
        MoeOpKind::ExpertLinear => experts(terms, signature)?.kernel(signature),
        MoeOpKind::Combine => Kernel::Entry(kernels::Combine::entry(elem(signature.x))),
    })
}

pub(super) fn run(stream: &mut CudaStream, op: MoeOp<'_, Cuda>, signature: &Signature) -> Result<()> {
    match op {
        MoeOp::Route(op) => route(stream, op),
        MoeOp::ExpertLinear(op) => expert_linear(stream, op, signature),
        MoeOp::Combine(op) => combine(stream, op),
    }
}

fn combine(stream: &mut CudaStream, op: Combine<'_, Cuda>) -> Result<()> {
    let (experts, own, leaves) = match op.chosen {
        Some(Chosen { experts, share }) => {
            let own = share.leaves().fold(0, |own, leaf| own | 1 << leaf);
            (stream.buffer(experts)?, own, share.bounds())
        }
        None => (0, 1, Default::default()),
    };
    let p = kernels::Combine {
        y: stream.matrix(op.y)?,
        weights: stream.matrix(op.weights)?,
        out: stream.matrix_mut(&op.out)?,
        experts,
        leaves: bounds_of(leaves)?,
        own,
        elem: elem(op.y.dtype()),
        elem_out: elem(op.out.dtype()),
        add: u32::from(op.add),
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}

fn route(stream: &mut CudaStream, op: Route<'_, Cuda>) -> Result<()> {
    let (router, slots) = (op.router, word(op.experts.len())?);
    let (experts, groups) = (stream.buffer_mut(&op.experts)?, stream.buffer_mut(&op.groups)?);
    let p = kernels::Route {
        logits: stream.matrix(op.logits)?,
        weights: stream.matrix_mut(&op.weights)?,
        experts,
        top_k: word(router.top_k)?,
        sigmoid: u32::from(router.score == RouterScore::Sigmoid),
        renormalise: u32::from(router.renormalise),
        scale: router.scale,
        bias: stream.vector(op.choice_bias)?,
        by_score: u32::from(router.is_by_score()),
        groups: word(router.groups.map_or(0, |groups| groups.count))?,
        open_groups: word(router.groups.map_or(0, |groups| groups.chosen))?,
        best_two: u32::from(router.groups.is_some_and(|groups| groups.rank == GroupRank::BestTwo)),
        one_by_one: u32::from(router.near.is_some()),
        near: router.near.unwrap_or(0.0),
    };
    stream.launch(&p.launch(), &p)?;
    let p = kernels::Group { experts, groups, count: word(router.experts)?, slots };
    stream.launch(&p.launch(), &p)
}

fn expert_linear(stream: &mut CudaStream, op: ExpertLinear<'_, Cuda>, signature: &Signature) -> Result<()> {
    let w = op.weight.rows()?;
    let own = match op.weight.info().used_for {
        WeightUse::Experts { count, .. } | WeightUse::ExpertsShare { count, .. } => count,
        _ => return Err(Error::internal("a weight that is not of experts")),
    };
    let (x, out, bias) = (stream.matrix(op.x)?, stream.matrix_mut(&op.out)?, stream.vector(op.bias)?);
    let groups = stream.buffer(op.groups.groups)?;
    let (count, first, elem, elem_out) =
        (word(op.groups.count)?, word(op.first)?, elem(op.x.dtype()), elem(op.out.dtype()));
    match experts(stream.gpu().terms(), signature).map_err(|reason| unsupported(signature, reason))? {
        Experts::Strict(format) => {
            let (weight, leaves, own) = (w.view(stream.gpu())?, w.leaves, word(own)?);
            let p = kernels::ExpertLinear {
                x,
                weight,
                out,
                bias,
                groups,
                leaves,
                count,
                first,
                own,
                elem,
                elem_out,
            };
            stream.launch(&p.launch(format), &p)
        }
        Experts::Tensor(layout) => {
            let layout = layout.in_parts(own).map_err(Error::internal)?;
            let (weight, scales) = w.packed(stream.gpu(), Order::Tensor(layout))?;
            let mut gemm = gemm::Gemm::new(&layout, w.sum, elem, elem_out, gemm::Then::Nothing);
            (gemm.x, gemm.out, gemm.weight, gemm.scales, gemm.bias) = (x, out, weight, scales, bias);
            let p = grouped::Grouped { gemm, groups, count, first, own: word(own)?, reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
    }
}
