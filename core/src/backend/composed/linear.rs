//! Linear with what follows it.

use crate::Result;
use crate::backend::{Backend, PrimitiveOps};
use crate::mem::{MatMut, MatRef};
use crate::params::Act;

/// `out = x w^T + bias; out = act(out)`.
pub fn linear_act<B: Backend>(
    s: &mut B::Stream,
    x: MatRef<'_, B::Mem>,
    w: &B::Weight,
    bias: Option<&B::Weight>,
    act: Act,
    mut out: MatMut<'_, B::Mem>,
) -> Result<()> {
    s.linear(x, w, bias, out.reborrow())?;
    s.activate(out, act)
}

/// `scratch = x w^T + bias; out = act(gate) * up`.
pub fn gated_linear<B: Backend>(
    s: &mut B::Stream,
    x: MatRef<'_, B::Mem>,
    w: &B::Weight,
    bias: Option<&B::Weight>,
    act: Act,
    mut scratch: MatMut<'_, B::Mem>,
    out: MatMut<'_, B::Mem>,
) -> Result<()> {
    s.linear(x, w, bias, scratch.reborrow())?;
    s.gate(scratch.as_ref(), act, out)
}

/// `scratch = x w^T + bias; residual += scratch`.
pub fn linear_add<B: Backend>(
    s: &mut B::Stream,
    x: MatRef<'_, B::Mem>,
    w: &B::Weight,
    bias: Option<&B::Weight>,
    mut scratch: MatMut<'_, B::Mem>,
    residual: MatMut<'_, B::Mem>,
) -> Result<()> {
    s.linear(x, w, bias, scratch.reborrow())?;
    s.add(residual, scratch.as_ref())
}
