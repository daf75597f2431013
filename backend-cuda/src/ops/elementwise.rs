//! Sums, activations, gates, scaling, conversion.

use super::{activation, elem, matrix};
use crate::{CudaMem, CudaStream};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::Act;
use engraft_kernels::params::elementwise as kernel;

pub(super) fn add(stream: &mut CudaStream, acc: MatMut<'_, CudaMem>, x: MatRef<'_, CudaMem>) -> Result<()> {
    let acc = acc.as_ref();
    let p = kernel::Add { acc: matrix(acc)?, x: matrix(x)?, elem: elem(acc.dtype), reserved: 0 };
    stream.run(&p.launch(), &p)
}

pub(super) fn activate(stream: &mut CudaStream, x: MatMut<'_, CudaMem>, act: Act) -> Result<()> {
    let x = x.as_ref();
    let p = kernel::Activate { x: matrix(x)?, elem: elem(x.dtype), act: activation(act)? };
    stream.run(&p.launch(), &p)
}

pub(super) fn gate(
    stream: &mut CudaStream,
    gate_up: MatRef<'_, CudaMem>,
    act: Act,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (gate_up, out, elem) = (matrix(gate_up)?, matrix(out.as_ref())?, elem(gate_up.dtype));
    let p = kernel::Gate { gate_up, out, elem, act: activation(act)? };
    stream.run(&p.launch(), &p)
}

pub(super) fn scale(
    stream: &mut CudaStream,
    x: MatMut<'_, CudaMem>,
    factor: f32,
    cap: Option<f32>,
) -> Result<()> {
    let x = x.as_ref();
    let p = kernel::Scale {
        x: matrix(x)?,
        elem: elem(x.dtype),
        factor,
        capped: u32::from(cap.is_some()),
        cap: cap.unwrap_or(1.0),
    };
    stream.run(&p.launch(), &p)
}

pub(super) fn convert(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let out = out.as_ref();
    let p = kernel::Convert { x: matrix(x)?, out: matrix(out)?, from: elem(x.dtype), to: elem(out.dtype) };
    stream.run(&p.launch(), &p)
}
