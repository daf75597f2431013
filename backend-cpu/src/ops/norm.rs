//! Norms.

use crate::kernels::norm::{Norm, norm as kernel};
use crate::mem::Rows;
use crate::{CpuMem, CpuStream, CpuWeight};
use engraft_core::Result;
use engraft_core::backend::NormCall;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::NormKind;
use std::sync::Arc;

/// A norm that keeps its weights alive.
#[derive(Clone)]
struct Held {
    kind: NormKind,
    eps: f32,
    plus_one: bool,
    weight: Option<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
}

impl Held {
    fn new(call: NormCall<'_, CpuWeight>) -> Result<Self> {
        Ok(Self {
            kind: call.kind,
            eps: call.eps,
            plus_one: call.plus_one,
            weight: call.weight.map(CpuWeight::vector).transpose()?,
            bias: call.bias.map(CpuWeight::vector).transpose()?,
        })
    }

    fn view(&self) -> Norm<'_> {
        Norm {
            kind: self.kind,
            eps: self.eps,
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            plus_one: self.plus_one,
        }
    }
}

pub(super) fn norm(
    stream: &mut CpuStream,
    x: MatRef<'_, CpuMem>,
    call: NormCall<'_, CpuWeight>,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (x, held, out) = (Rows::from(x), Held::new(call)?, Rows::from(out));
    // Without a sum to store, the kernel only reads x.
    stream.run(move |cpu| kernel(cpu.machine(), x.write(), None, x.cols, held.view(), out.write()))
}

pub(super) fn head_norm(
    stream: &mut CpuStream,
    x: MatMut<'_, CpuMem>,
    width: usize,
    call: NormCall<'_, CpuWeight>,
) -> Result<()> {
    let (x, held) = (Rows::from(x), Held::new(call)?);
    stream.run(move |cpu| kernel(cpu.machine(), x.write(), None, width, held.view(), x.write()))
}

pub(super) fn add_norm(
    stream: &mut CpuStream,
    residual: MatMut<'_, CpuMem>,
    x: MatRef<'_, CpuMem>,
    call: NormCall<'_, CpuWeight>,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (residual, x) = (Rows::from(residual), Rows::from(x));
    let (held, out) = (Held::new(call)?, Rows::from(out));
    stream.run(move |cpu| {
        let width = residual.cols;
        kernel(cpu.machine(), residual.write(), Some(x.read()), width, held.view(), out.write())
    })
}
