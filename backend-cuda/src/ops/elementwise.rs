//! Sums, activations, gates, scaling, conversion.

use super::names::{activation, elem};
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::ops::{ElementwiseOp, ElementwiseOpKind as Kind, Signature};
use engraft_core::params::Clamp;
use engraft_kernels::params::elementwise as kernels;

/// Which kernel.
pub(super) fn kernel(op: Kind, signature: &Signature) -> Kernel {
    let (x, out) = (elem(signature.x), elem(signature.out));
    Kernel::Entry(match op {
        Kind::Add => kernels::Add::entry(x),
        Kind::Activate => kernels::Activate::entry(x),
        Kind::Xielu => kernels::Xielu::entry(x),
        Kind::Gate => kernels::Gate::entry(x),
        Kind::Modulate => kernels::Modulate::entry(x),
        Kind::Limit => kernels::Limit::entry(x),
        Kind::Scale => kernels::Scale::entry(x),
        Kind::Convert => kernels::Convert::entry(x, out),
    })
}

pub(super) fn run(stream: &mut CudaStream, op: ElementwiseOp<'_, Cuda>) -> Result<()> {
    match op {
        ElementwiseOp::Add(op) => {
            let (acc, x) = (stream.matrix_mut(&op.acc)?, stream.matrix(op.x)?);
            let p = kernels::Add { acc, x, elem: elem(op.x.dtype()), reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Activate(op) => {
            let (x, act) = (stream.matrix_mut(&op.x)?, activation(op.act)?);
            let p = kernels::Activate { x, elem: elem(op.x.dtype()), act };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Xielu(op) => {
            let (x, constants) = (stream.matrix_mut(&op.x)?, stream.vector(Some(op.constants))?);
            let p = kernels::Xielu { x, constants, elem: elem(op.x.dtype()), reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Gate(op) => {
            let (gate_up, out) = (stream.matrix(op.gate_up)?, stream.matrix_mut(&op.out)?);
            let Clamp { slope, limit, shift } =
                op.clamp.unwrap_or(Clamp { slope: 0.0, limit: 0.0, shift: 0.0 });
            let (elem, act) = (elem(op.out.dtype()), activation(op.act)?);
            let p = kernels::Gate { gate_up, out, elem, act, slope, limit, shift, reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Modulate(op) => {
            let (x, scale) = (stream.matrix_mut(&op.x)?, stream.matrix(op.scale)?);
            let shift = stream.matrix(op.shift.unwrap_or(op.scale))?;
            let (rows, elem) = (stream.buffer(op.rows)?, elem(op.x.dtype()));
            let (shifted, base) = (u32::from(op.shift.is_some()), if op.plus_one { 1.0 } else { 0.0 });
            let p = kernels::Modulate { x, scale, shift, rows, elem, shifted, base, reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Limit(op) => {
            let x = stream.matrix_mut(&op.x)?;
            let p = kernels::Limit { x, elem: elem(op.x.dtype()), limit: op.limit };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Scale(op) => {
            let p = kernels::Scale {
                x: stream.matrix_mut(&op.x)?,
                elem: elem(op.x.dtype()),
                factor: op.factor,
                capped: u32::from(op.cap.is_some()),
                cap: op.cap.unwrap_or(1.0),
            };
            stream.launch(&p.launch(), &p)
        }
        ElementwiseOp::Convert(op) => {
            let (x, out) = (stream.matrix(op.x)?, stream.matrix_mut(&op.out)?);
            let (from, to) = (elem(op.x.dtype()), elem(op.out.dtype()));
            let p = kernels::Convert { x, out, bias: stream.vector(op.bias)?, from, to };
            stream.launch(&p.launch(), &p)
        }
    }
}
