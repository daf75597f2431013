//! Row look-up, alone or added.

use crate::command::{Call, FLAT, Slot, buffer, elem, groups, matrix, word};
use crate::{Wgpu, WgpuStream};
use engraft_core::Result;
use engraft_core::ops::Embed;
use engraft_shaders::Kernel;

pub(super) fn run(stream: &mut WgpuStream, op: Embed<'_, Wgpu>) -> Result<()> {
    let Embed { ids, table, add, out } = op;
    let (table, gpu) = (table.panels()?, stream.gpu().clone());
    let (limits, out) = (gpu.limits(), out.as_ref());
    let total = out.rows() * out.cols();
    if total == 0 {
        return Ok(());
    }
    let (from, to) = (buffer(limits, ids, "token ids")?, matrix(limits, out, "activations")?);
    let kernel = Kernel::Embed { weight: table.packing, out: elem(out.dtype()), add: add.is_some() };
    for chunk in &table.chunks {
        let rows = table.range(chunk);
        let words = [
            word(ids.len())?,
            word(out.cols())?,
            from.offset,
            to.offset,
            word(out.pitch())?,
            word(rows.start)?,
            word(rows.end)?,
            word(table.rows)?,
            word(table.block)?,
        ];
        let scales = chunk.scales.as_ref().unwrap_or(gpu.nothing());
        let slots = [
            Slot::whole(limits, &chunk.codes, "a weight")?,
            Slot::whole(limits, scales, "a weight's scales")?,
            from.slot,
            to.slot,
        ];
        stream.call(&Call { kernel, slots: &slots, words: &words, grid: groups(limits, total, FLAT) })?;
    }
    Ok(())
}
