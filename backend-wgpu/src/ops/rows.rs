//! Words and rows moved.

use super::FLAT;
use crate::command::{Call, buffer, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef};
use engraft_shaders::{Elem, Kernel, Rows};

pub(super) fn gather(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    rows: BufRef<'_, WgpuMem, u32>,
    out: MatMut<'_, WgpuMem>,
) -> Result<()> {
    let (limits, out) = (stream.gpu().limits, out.as_ref());
    if out.rows * out.cols == 0 {
        return Ok(());
    }
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let rows = buffer(&limits, rows, "row numbers")?;
    let words = [
        word(out.rows)?,
        word(out.cols)?,
        word(x.rows)?,
        from.offset,
        word(x.pitch)?,
        rows.offset,
        to.offset,
        word(out.pitch)?,
    ];
    let kernel = Kernel::Rows(Rows::Gather, elem(x.dtype));
    let grid = groups(&limits, out.rows * out.cols, FLAT);
    stream.run(&Call { kernel, slots: &[from.slot, rows.slot, to.slot], words: &words, grid })
}

pub(super) fn patch(
    stream: &mut WgpuStream,
    pairs: BufRef<'_, WgpuMem, u32>,
    table: BufMut<'_, WgpuMem, u32>,
) -> Result<()> {
    let (limits, count) = (stream.gpu().limits, pairs.len / 2);
    if count == 0 {
        return Ok(());
    }
    let (from, to) = (buffer(&limits, pairs, "changes")?, buffer(&limits, table.as_ref(), "a table")?);
    let words = [word(count)?, from.offset, to.offset, word(table.len)?];
    let kernel = Kernel::Rows(Rows::Patch, Elem::F32);
    let grid = groups(&limits, count, 64);
    stream.run(&Call { kernel, slots: &[from.slot, to.slot], words: &words, grid })
}

pub(super) fn mark_seen(
    stream: &mut WgpuStream,
    ids: BufRef<'_, WgpuMem, u32>,
    slot: usize,
    words: usize,
    seen: BufMut<'_, WgpuMem, u32>,
) -> Result<()> {
    let limits = stream.gpu().limits;
    let row = seen.slice(slot * words..(slot + 1) * words)?;
    let (from, to) = (buffer(&limits, ids, "token ids")?, buffer(&limits, row.as_ref(), "seen tokens")?);
    let words = [word(ids.len)?, from.offset, to.offset, word(words)?];
    let kernel = Kernel::Rows(Rows::MarkSeen, Elem::F32);
    stream.run(&Call { kernel, slots: &[from.slot, to.slot], words: &words, grid: [1, 1, 1] })
}
