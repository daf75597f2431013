//! Rotary embedding.

use super::FLAT;
use crate::command::{Call, buffer, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::backend::RopeView;
use engraft_core::mem::{BufRef, MatMut};
use engraft_core::ops::RopeStyle;
use engraft_shaders::Kernel;

pub(super) fn rope(
    stream: &mut WgpuStream,
    x: MatMut<'_, WgpuMem>,
    width: usize,
    positions: BufRef<'_, WgpuMem, u32>,
    rope: RopeView<'_, WgpuMem>,
) -> Result<()> {
    let (x, limits) = (x.as_ref(), stream.gpu().limits);
    let heads = x.cols / width.max(1);
    let total = x.rows * heads * rope.pairs;
    if total == 0 {
        return Ok(());
    }
    let at = matrix(&limits, x, "activations")?;
    let positions = buffer(&limits, positions, "positions")?;
    let table = buffer(&limits, rope.table, "angles")?;
    let words = [
        word(x.rows)?,
        word(heads)?,
        word(width)?,
        word(rope.pairs)?,
        at.offset,
        word(x.pitch)?,
        positions.offset,
        table.offset,
        word(rope.positions)?,
        u32::from(rope.style == RopeStyle::Interleaved),
    ];
    let slots = [at.slot, positions.slot, table.slot];
    let grid = groups(&limits, total, FLAT);
    stream.run(&Call { kernel: Kernel::Rope(elem(x.dtype)), slots: &slots, words: &words, grid })
}
