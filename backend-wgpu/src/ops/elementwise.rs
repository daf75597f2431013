//! Element by element.

use super::{FLAT, activation};
use crate::command::{Call, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::Act;
use engraft_shaders::{Elementwise, Kernel};

pub(super) fn add(stream: &mut WgpuStream, acc: MatMut<'_, WgpuMem>, x: MatRef<'_, WgpuMem>) -> Result<()> {
    each(stream, Elementwise::Add, x, acc.as_ref(), 0)
}

pub(super) fn activate(stream: &mut WgpuStream, x: MatMut<'_, WgpuMem>, act: Act) -> Result<()> {
    let x = x.as_ref();
    each(stream, Elementwise::Activate, x, x, activation(act)?)
}

pub(super) fn scale(
    stream: &mut WgpuStream,
    x: MatMut<'_, WgpuMem>,
    factor: f32,
    cap: Option<f32>,
) -> Result<()> {
    let x = x.as_ref();
    if x.rows * x.cols == 0 {
        return Ok(());
    }
    let limits = stream.gpu().limits;
    let at = matrix(&limits, x, "activations")?;
    let most = cap.unwrap_or(1.0);
    let words = [
        word(x.rows)?,
        word(x.cols)?,
        at.offset,
        word(x.pitch)?,
        factor.to_bits(),
        u32::from(cap.is_some()),
        most.to_bits(),
        (1.0 / most).to_bits(),
    ];
    let kernel = Kernel::Elementwise(Elementwise::Scale, elem(x.dtype), elem(x.dtype));
    let grid = groups(&limits, x.rows * x.cols, FLAT);
    stream.run(&Call { kernel, slots: &[at.slot], words: &words, grid })
}

pub(super) fn gate(
    stream: &mut WgpuStream,
    gate_up: MatRef<'_, WgpuMem>,
    act: Act,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    each(stream, Elementwise::Gate, gate_up, out.as_ref(), activation(act)?)
}

pub(super) fn convert(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    each(stream, Elementwise::Convert, x, out.as_ref(), 0)
}

fn each(
    stream: &mut WgpuStream,
    how: Elementwise,
    x: MatRef<'_, WgpuMem>,
    out: MatRef<'_, WgpuMem>,
    act: u32,
) -> Result<()> {
    if out.rows * out.cols == 0 {
        return Ok(());
    }
    let limits = stream.gpu().limits;
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let words =
        [word(out.rows)?, word(out.cols)?, from.offset, word(x.pitch)?, to.offset, word(out.pitch)?, act];
    let both = [from.slot, to.slot];
    let slots = if how == Elementwise::Activate { &both[1..] } else { &both[..] };
    let kernel = Kernel::Elementwise(how, elem(x.dtype), elem(out.dtype));
    stream.run(&Call { kernel, slots, words: &words, grid: groups(&limits, out.rows * out.cols, FLAT) })
}
