//! From logits to tokens.

use crate::budget::of_elements;
use crate::command::{Call, buffer, groups, matrix, word};
use crate::{Wgpu, WgpuStream};
use engraft_core::Result;
use engraft_core::ops::Sample;
use engraft_core::sample::SampleRow;
use engraft_shaders::Kernel;

/// How often a row is gone over at most: the search narrows it down digit by digit.
const PASSES: usize = 12;

pub(super) fn run(stream: &mut WgpuStream, op: Sample<'_, Wgpu>) -> Result<()> {
    let Sample { logits, table, slots, positions, seen, seen_words, out } = op;
    if logits.rows() == 0 {
        return Ok(());
    }
    let limits = *stream.gpu().limits();
    let seen = seen.as_ref();
    let (from, to) = (matrix(&limits, logits, "logits")?, buffer(&limits, out.as_ref(), "tokens")?);
    let table_at = buffer(&limits, table, "sampling parameters")?;
    let slots = buffer(&limits, slots, "sampling slots")?;
    let positions = buffer(&limits, positions, "positions")?;
    let seen_at = buffer(&limits, seen, "seen tokens")?;
    let row_words = size_of::<SampleRow>() / size_of::<u32>();
    let words = [
        word(logits.rows())?,
        word(logits.cols())?,
        from.offset,
        word(logits.pitch())?,
        to.offset,
        word(table_at.offset as usize * row_words)?,
        word(table.len())?,
        slots.offset,
        positions.offset,
        seen_at.offset,
        word(seen_words)?,
        word(seen.len() / seen_words.max(1))?,
    ];
    let bound = [from.slot, table_at.slot, slots.slot, positions.slot, seen_at.slot, to.slot];
    let grid = groups(&limits, logits.rows(), 1);
    let call = Call { kernel: Kernel::Sample, slots: &bound, words: &words, grid };
    stream.call_of(&call, of_elements(logits.rows() * logits.cols(), PASSES))
}
