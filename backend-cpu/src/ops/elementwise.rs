//! Element by element.

use crate::kernels::{self, elementwise as kernel};
use crate::mem::{SharedMat, Words};
use crate::select::unsupported;
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::ops::{Activate, Add, Convert, ElementwiseOp, Gate, Limit, Modulate, Scale, Xielu};
use engraft_core::params::Act;

pub(super) fn run(stream: &mut CpuStream, op: ElementwiseOp<'_, Cpu>) -> Result<()> {
    match op {
        ElementwiseOp::Add(Add { acc, x }) => {
            let (acc, x) = (SharedMat::from(acc), SharedMat::from(x));
            stream.enqueue(move |cpu| kernel::add(cpu.machine(), acc.write(), x.read()))
        }
        ElementwiseOp::Activate(Activate { x, act }) => {
            let (x, act) = (SharedMat::from(x), activation(act)?);
            stream.enqueue(move |cpu| kernel::activate(cpu.machine(), x.write(), act))
        }
        ElementwiseOp::Xielu(Xielu { x, constants }) => {
            let (x, constants) = (SharedMat::from(x), constants.vector()?);
            stream.enqueue(move |cpu| kernel::xielu(cpu.machine(), x.write(), &constants))
        }
        ElementwiseOp::Gate(Gate { gate_up, act, clamp, out }) => {
            let (gate_up, act, out) = (SharedMat::from(gate_up), activation(act)?, SharedMat::from(out));
            stream.enqueue(move |cpu| kernel::gate(cpu.machine(), gate_up.read(), (act, clamp), out.write()))
        }
        ElementwiseOp::Modulate(Modulate { x, scale, shift, rows, plus_one }) => {
            let (x, scale, rows) = (SharedMat::from(x), SharedMat::from(scale), Words::from(rows));
            let shift = shift.map(SharedMat::from);
            stream.enqueue(move |cpu| {
                // SAFETY: the stream runs one op at a time.
                let rows = unsafe { rows.slice() };
                let shift = shift.as_ref().map(SharedMat::read);
                kernel::modulate(cpu.machine(), x.write(), (scale.read(), shift), (rows, plus_one))
            })
        }
        ElementwiseOp::Limit(Limit { x, limit }) => {
            let x = SharedMat::from(x);
            stream.enqueue(move |cpu| kernel::limit(cpu.machine(), x.write(), limit))
        }
        ElementwiseOp::Scale(Scale { x, factor, cap }) => {
            let x = SharedMat::from(x);
            stream.enqueue(move |cpu| kernel::scale(cpu.machine(), x.write(), factor, cap))
        }
        ElementwiseOp::Convert(Convert { x, bias, out }) => {
            let (x, out) = (SharedMat::from(x), SharedMat::from(out));
            let bias = bias.map(|bias| bias.vector()).transpose()?;
            stream.enqueue(move |cpu| kernel::convert(cpu.machine(), x.read(), bias.as_deref(), out.write()))
        }
    }
}

/// The kernel's name of an activation.
pub(super) fn activation(act: Act) -> Result<kernels::Activation> {
    use kernels::Activation as A;
    Ok(match act {
        Act::Relu => A::Relu,
        Act::ReluSquared => A::ReluSquared,
        Act::Silu => A::Silu,
        Act::Gelu => A::GeluErf,
        Act::GeluTanh => A::GeluTanh,
        Act::QuickGelu => A::QuickGelu,
        Act::Tanh => A::Tanh,
        Act::Sigmoid => A::Sigmoid,
        Act::Softplus => A::Softplus,
        other => return Err(unsupported(format!("activation {other:?}"), "no kernel")),
    })
}
