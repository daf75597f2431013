//! Norms.

use crate::command::{Call, Slot, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::backend::NormCall;
use engraft_core::mem::{MatMut, MatRef};
use engraft_core::params::NormKind;
use engraft_shaders::{Kernel, Norm};

/// Flags of `moments.wgsl`.
pub(super) fn flags(call: &NormCall<'_, WgpuWeight>) -> u32 {
    let of = |yes: bool, bit: u32| if yes { bit } else { 0 };
    let plus_one = call.plus_one && call.bias.is_none();
    of(call.kind == NormKind::Rms, 1)
        | of(call.weight.is_some(), 2)
        | of(call.bias.is_some(), 4)
        | of(plus_one, 8)
}

pub(super) fn norm(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    call: NormCall<'_, WgpuWeight>,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    run(stream, Norm::Alone, x, None, x.cols, call, out.as_ref())
}

pub(super) fn head_norm(
    stream: &mut WgpuStream,
    x: MatMut<'_, WgpuMem>,
    width: usize,
    call: NormCall<'_, WgpuWeight>,
) -> Result<()> {
    let x = x.as_ref();
    run(stream, Norm::Heads, x, None, width, call, x)
}

pub(super) fn add_norm(
    stream: &mut WgpuStream,
    residual: MatMut<'_, WgpuMem>,
    x: MatRef<'_, WgpuMem>,
    call: NormCall<'_, WgpuWeight>,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let residual = residual.as_ref();
    run(stream, Norm::Add, residual, Some(x), residual.cols, call, out.as_ref())
}

fn run(
    stream: &mut WgpuStream,
    how: Norm,
    x: MatRef<'_, WgpuMem>,
    addend: Option<MatRef<'_, WgpuMem>>,
    width: usize,
    call: NormCall<'_, WgpuWeight>,
    out: MatRef<'_, WgpuMem>,
) -> Result<()> {
    if x.rows * x.cols == 0 {
        return Ok(());
    }
    let gpu = stream.gpu().clone();
    let limits = gpu.limits;
    let vector = |w: Option<&WgpuWeight>| w.map_or_else(|| gpu.nothing().cloned(), |w| w.vector().cloned());
    let (weight, bias) = (vector(call.weight)?, vector(call.bias)?);
    let place = |m| matrix(&limits, m, "activations");
    let (from, to, other) = (place(x)?, place(out)?, addend.map(place).transpose()?);
    let parts = x.cols / width.max(1);
    let words = [
        word(x.rows)?,
        word(parts)?,
        word(width)?,
        from.offset,
        word(x.pitch)?,
        to.offset,
        word(out.pitch)?,
        other.map_or(0, |o| o.offset),
        word(addend.map_or(0, |a| a.pitch))?,
        flags(&call),
        call.eps.to_bits(),
    ];
    let (weight, bias) = (Slot::whole(&limits, &weight, "a norm")?, Slot::whole(&limits, &bias, "a norm")?);
    let grid = groups(&limits, x.rows * parts, 1);
    let kernel = Kernel::Norm(how, elem(x.dtype), gpu.select.norm());
    match (how, other) {
        (Norm::Add, Some(other)) => {
            let slots = [weight, bias, to.slot, other.slot, from.slot];
            stream.run(&Call { kernel, slots: &slots, words: &words, grid })
        }
        (Norm::Heads, _) => {
            stream.run(&Call { kernel, slots: &[weight, bias, to.slot], words: &words, grid })
        }
        _ => stream.run(&Call { kernel, slots: &[weight, bias, to.slot, from.slot], words: &words, grid }),
    }
}
