//! Residual and norm.

use crate::Result;
use crate::backend::{Backend, NormCall, PrimitiveOps};
use crate::mem::{MatMut, MatRef};

/// `residual += x; out = norm(residual)`: the sum is rounded to the residual's element type before the norm reads it.
pub fn add_norm<B: Backend>(
    s: &mut B::Stream,
    mut residual: MatMut<'_, B::Mem>,
    x: MatRef<'_, B::Mem>,
    norm: NormCall<'_, B::Weight>,
    out: MatMut<'_, B::Mem>,
) -> Result<()> {
    s.add(residual.reborrow(), x)?;
    s.norm(residual.as_ref(), norm, out)
}
