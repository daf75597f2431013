//! Products with their epilogues.

use crate::command::{Call, Slot, elem, matrix, word};
use crate::{AdapterKind, WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::mem::{MatMut, MatRef};
use engraft_shaders::Kernel;

/// What follows the product.
#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    /// Nothing; a gate weight gives `[gate | up]`.
    Nothing,
    /// An activation; of a gate weight `act(g) * u`.
    Activate(u32),
    /// A sum with what the output holds.
    AddTo,
}

/// Rows of a tile: more of them use a weight oftener once it is read. No bit depends on it. Drivers that run on the
/// CPU gain nothing beyond 4 and compile twice as long.
pub(super) fn tile_rows(rows: usize, software: bool) -> u32 {
    match rows {
        0..=1 => 1,
        2..=4 => 4,
        _ if software => 4,
        _ => 8,
    }
}

/// Whether rows begin at multiples of four elements.
pub(super) fn aligned(x: MatRef<'_, WgpuMem>) -> bool {
    x.offset.is_multiple_of(4) && x.pitch.is_multiple_of(4)
}

pub(super) fn linear(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    w: &WgpuWeight,
    bias: Option<&WgpuWeight>,
    then: Then,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (w, gpu) = (w.panels()?, stream.gpu().clone());
    let (limits, out) = (gpu.limits, out.as_ref());
    if out.rows * out.cols == 0 {
        return Ok(());
    }
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let bias_mem = bias.map_or_else(|| gpu.nothing(), WgpuWeight::vector)?;
    let rows = tile_rows(x.rows, gpu.adapter().kind == AdapterKind::Software);
    let kernel = Kernel::Linear {
        weight: w.packing,
        x: elem(x.dtype),
        out: elem(out.dtype),
        rows,
        gate: w.gate,
        vector: aligned(x),
        act: matches!(then, Then::Activate(_)),
    };
    let (add, act) = match then {
        Then::Nothing => (0, 0),
        Then::Activate(act) => (0, act),
        Then::AddTo => (1, 0),
    };
    for chunk in &w.chunks {
        let outputs = w.range(chunk);
        let words = [
            word(x.rows)?,
            word(w.cols)?,
            word(w.grain)?,
            from.offset,
            word(x.pitch)?,
            to.offset,
            word(out.pitch)?,
            word(outputs.start)?,
            word(outputs.end)?,
            word(w.outputs())?,
            u32::from(bias.is_some()),
            add,
            act,
            word(w.block)?,
        ];
        let scales = chunk.scales.as_ref().map_or_else(|| gpu.nothing(), Ok)?;
        let slots = [
            Slot::whole(&limits, &chunk.codes, "a weight")?,
            Slot::whole(&limits, scales, "a weight's scales")?,
            Slot::whole(&limits, bias_mem, "a bias")?,
            from.slot,
            to.slot,
        ];
        let tiles = x.rows.div_ceil(rows as usize).min(limits.groups as usize);
        let grid = [word(chunk.count)?, word(tiles)?, 1];
        stream.run(&Call { kernel, slots: &slots, words: &words, grid })?;
    }
    Ok(())
}
