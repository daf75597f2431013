//! Element by element, and rows moved.

use super::activation;
use crate::kernels::elementwise as kernel;
use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuStream};
use engraft_core::Result;
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef};
use engraft_core::params::Act;

pub(super) fn add(stream: &mut CpuStream, acc: MatMut<'_, CpuMem>, x: MatRef<'_, CpuMem>) -> Result<()> {
    let (acc, x) = (Rows::from(acc), Rows::from(x));
    stream.run(move |cpu| kernel::add(cpu.machine(), acc.write(), x.read()))
}

pub(super) fn activate(stream: &mut CpuStream, x: MatMut<'_, CpuMem>, act: Act) -> Result<()> {
    let (x, act) = (Rows::from(x), activation(act)?);
    stream.run(move |cpu| kernel::activate(cpu.machine(), x.write(), act))
}

pub(super) fn scale(
    stream: &mut CpuStream,
    x: MatMut<'_, CpuMem>,
    factor: f32,
    cap: Option<f32>,
) -> Result<()> {
    let x = Rows::from(x);
    stream.run(move |cpu| kernel::scale(cpu.machine(), x.write(), factor, cap))
}

pub(super) fn gate(
    stream: &mut CpuStream,
    gate_up: MatRef<'_, CpuMem>,
    act: Act,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (gate_up, act, out) = (Rows::from(gate_up), activation(act)?, Rows::from(out));
    stream.run(move |cpu| kernel::gate(cpu.machine(), gate_up.read(), act, out.write()))
}

pub(super) fn convert(stream: &mut CpuStream, x: MatRef<'_, CpuMem>, out: MatMut<'_, CpuMem>) -> Result<()> {
    let (x, out) = (Rows::from(x), Rows::from(out));
    stream.run(move |cpu| kernel::convert(cpu.machine(), x.read(), out.write()))
}

pub(super) fn gather_rows(
    stream: &mut CpuStream,
    x: MatRef<'_, CpuMem>,
    rows: BufRef<'_, CpuMem, u32>,
    out: MatMut<'_, CpuMem>,
) -> Result<()> {
    let (x, rows, out) = (Rows::from(x), Words::from(rows), Rows::from(out));
    stream.run(move |_| {
        // SAFETY: the stream runs one op at a time.
        kernel::gather_rows(x.read(), unsafe { rows.slice() }, out.write());
        Ok(())
    })
}

pub(super) fn argmax(
    stream: &mut CpuStream,
    x: MatRef<'_, CpuMem>,
    out: BufMut<'_, CpuMem, u32>,
) -> Result<()> {
    let (x, out) = (Rows::from(x), Words::from(out));
    // SAFETY: the stream runs one op at a time; the output is another allocation.
    stream.run(move |cpu| kernel::argmax(cpu.machine(), x.read(), unsafe { out.slice_mut() }))
}
