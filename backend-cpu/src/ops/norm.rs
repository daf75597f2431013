//! Norms.

use crate::kernels::norm::{Norm as View, add_norm, gaussian_topk, group_norm, match_rms, norm};
use crate::mem::SharedMat;
use crate::{Cpu, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::ops::{AddNorm, GaussianTopk, GroupNorm, HeadNorm, MatchRms, Norm, NormOp, NormWeights};
use engraft_core::params::NormKind;
use std::sync::Arc;

/// A norm that keeps its weights alive.
struct Held {
    kind: NormKind,
    eps: f32,
    plus_one: bool,
    weight: Option<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
}

impl Held {
    fn new(norm: NormWeights<'_, Cpu>) -> Result<Self> {
        let NormWeights { kind, eps, weight, bias, plus_one } = norm;
        let weight = weight.map(CpuWeight::vector).transpose()?;
        Ok(Self { kind, eps, plus_one, weight, bias: bias.map(CpuWeight::vector).transpose()? })
    }

    fn view(&self) -> View<'_> {
        let (weight, bias) = (self.weight.as_deref(), self.bias.as_deref());
        View { kind: self.kind, eps: self.eps, weight, bias, plus_one: self.plus_one }
    }
}

pub(super) fn run(stream: &mut CpuStream, op: NormOp<'_, Cpu>) -> Result<()> {
    match op {
        NormOp::Norm(Norm { x, norm: weights, out }) => {
            let (x, held, out) = (SharedMat::from(x), Held::new(weights)?, SharedMat::from(out));
            stream.enqueue(move |cpu| norm(cpu.machine(), x.read(), x.cols, held.view(), out.write()))
        }
        NormOp::HeadNorm(HeadNorm { x, width, norm: weights }) => {
            let (x, held) = (SharedMat::from(x), Held::new(weights)?);
            stream.enqueue(move |cpu| norm(cpu.machine(), x.read(), width, held.view(), x.write()))
        }
        NormOp::GroupNorm(GroupNorm { x, groups, norm, out }) => {
            let (x, held, out) = (SharedMat::from(x), Held::new(norm)?, SharedMat::from(out));
            stream.enqueue(move |cpu| group_norm(cpu.machine(), x.read(), groups, held.view(), out.write()))
        }
        NormOp::GaussianTopk(GaussianTopk { x, deviations }) => {
            let x = SharedMat::from(x);
            stream.enqueue(move |cpu| gaussian_topk(cpu.machine(), x.write(), deviations))
        }
        NormOp::MatchRms(MatchRms { x, like, floor }) => {
            let (x, like) = (SharedMat::from(x), SharedMat::from(like));
            stream.enqueue(move |cpu| match_rms(cpu.machine(), x.write(), like.read(), floor))
        }
        NormOp::AddNorm(AddNorm { residual, x, norm, out }) => {
            let (residual, x) = (SharedMat::from(residual), SharedMat::from(x));
            let (held, out) = (Held::new(norm)?, SharedMat::from(out));
            stream.enqueue(move |cpu| {
                add_norm(cpu.machine(), residual.write(), x.read(), held.view(), out.write())
            })
        }
    }
}
