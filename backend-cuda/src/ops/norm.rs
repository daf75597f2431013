//! Norms: of rows, behind a residual sum, of heads.

use super::select::norm_is_strict;
use super::{Formed, elem, int8, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream, CudaWeight};
use engraft_core::Result;
use engraft_core::backend::NormCall;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::NormKind;
use engraft_kernels::params::int8::Codes;
use engraft_kernels::params::{MatView, norm as kernel};

pub(super) fn norm(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    call: NormCall<'_, CudaWeight>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    run(stream, x, None, x.cols, call, out.as_ref())
}

pub(super) fn head_norm(
    stream: &mut CudaStream,
    x: MatMut<'_, CudaMem>,
    width: usize,
    call: NormCall<'_, CudaWeight>,
) -> Result<()> {
    let x = x.as_ref();
    run(stream, x, None, width, call, x)
}

pub(super) fn add_norm(
    stream: &mut CudaStream,
    residual: MatMut<'_, CudaMem>,
    x: MatRef<'_, CudaMem>,
    call: NormCall<'_, CudaWeight>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let residual = residual.as_ref();
    run(stream, residual, Some(x), residual.cols, call, out.as_ref())
}

fn run(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    add: Option<MatRef<'_, CudaMem>>,
    width: usize,
    call: NormCall<'_, CudaWeight>,
    out: MatRef<'_, CudaMem>,
) -> Result<()> {
    let vector = |w: Option<&CudaWeight>| w.map_or(Ok(0), CudaWeight::vector);
    let strict = norm_is_strict(stream.gpu().mode());
    let codes = match width == x.cols {
        true => int8::room_behind_a_norm(stream, x)?,
        false => Codes::NONE,
    };
    let p = kernel::Norm {
        x: matrix(x)?,
        add: add.map_or(Ok(MatView::NONE), matrix)?,
        out: matrix(out)?,
        weight: vector(call.weight)?,
        bias: vector(call.bias)?,
        width: word(width)?,
        parts: word(x.cols / width.max(1))?,
        eps: call.eps,
        layer: u32::from(call.kind == NormKind::Layer),
        plus_one: u32::from(call.plus_one),
        elem: elem(x.dtype),
        strict: u32::from(strict),
        reserved: 0,
        codes,
    };
    stream.run(&p.launch(), &p)?;
    if codes != Codes::NONE {
        stream.remember(Formed { of: p.out, _mem: out.mem.clone(), elem: p.elem, codes });
    }
    Ok(())
}
