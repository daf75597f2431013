//! Row look-up, alone or added.

use super::FLAT;
use crate::command::{Call, Slot, buffer, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream, WgpuWeight};
use engraft_core::Result;
use engraft_core::mem::{BufRef, MatMut};
use engraft_shaders::Kernel;

pub(super) fn embed(
    stream: &mut WgpuStream,
    ids: BufRef<'_, WgpuMem, u32>,
    table: &WgpuWeight,
    out: MatMut<'_, WgpuMem>,
    add: bool,
) -> Result<()> {
    let (table, gpu) = (table.panels()?, stream.gpu().clone());
    let (limits, out) = (gpu.limits, out.as_ref());
    if out.rows * out.cols == 0 {
        return Ok(());
    }
    let (from, to) = (buffer(&limits, ids, "token ids")?, matrix(&limits, out, "activations")?);
    let kernel = Kernel::Embed { weight: table.packing, out: elem(out.dtype), add };
    for chunk in &table.chunks {
        let rows = table.range(chunk);
        let words = [
            word(ids.len)?,
            word(out.cols)?,
            from.offset,
            to.offset,
            word(out.pitch)?,
            word(rows.start)?,
            word(rows.end)?,
            word(table.rows)?,
            word(table.block)?,
        ];
        let scales = chunk.scales.as_ref().map_or_else(|| gpu.nothing(), Ok)?;
        let slots = [
            Slot::whole(&limits, &chunk.codes, "a weight")?,
            Slot::whole(&limits, scales, "a weight's scales")?,
            from.slot,
            to.slot,
        ];
        let grid = groups(&limits, out.rows * out.cols, FLAT);
        stream.run(&Call { kernel, slots: &slots, words: &words, grid })?;
    }
    Ok(())
}
