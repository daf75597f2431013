//! From logits to tokens.

use crate::command::{Call, buffer, elem, groups, matrix, word};
use crate::{WgpuMem, WgpuStream};
use engraft_core::backend::SampleCall;
use engraft_core::mem::{BufMut, Float, MatRef};
use engraft_core::{Error, Result};
use engraft_shaders::{Elem, Kernel, Sample};

/// Bins of the search count weights in parts of 10 bits: more tokens than this could overflow them.
const MOST_TOKENS: usize = 1 << 22;

pub(super) fn argmax(
    stream: &mut WgpuStream,
    x: MatRef<'_, WgpuMem>,
    out: BufMut<'_, WgpuMem, u32>,
) -> Result<()> {
    if x.rows == 0 {
        return Ok(());
    }
    let limits = stream.gpu().limits;
    let (from, to) = (matrix(&limits, x, "logits")?, buffer(&limits, out.as_ref(), "tokens")?);
    let words = [word(x.rows)?, word(x.cols)?, from.offset, word(x.pitch)?, to.offset];
    let kernel = Kernel::Sample(Sample::Argmax, elem(x.dtype));
    stream.run(&Call {
        kernel,
        slots: &[from.slot, to.slot],
        words: &words,
        grid: groups(&limits, x.rows, 1),
    })
}

pub(super) fn sample(
    stream: &mut WgpuStream,
    logits: MatRef<'_, WgpuMem>,
    call: SampleCall<'_, WgpuMem>,
    out: BufMut<'_, WgpuMem, u32>,
) -> Result<()> {
    if logits.dtype != Float::F32 {
        return Err(Error::internal(format!("{} logits sampled", logits.dtype)));
    }
    if logits.cols > MOST_TOKENS {
        return Err(Error::Unsupported {
            op: format!("sampling from {} tokens", logits.cols),
            backend: "wgpu".into(),
            reason: format!("at most {MOST_TOKENS} are possible"),
        });
    }
    if logits.rows == 0 {
        return Ok(());
    }
    let limits = stream.gpu().limits;
    let (from, to) = (matrix(&limits, logits, "logits")?, buffer(&limits, out.as_ref(), "tokens")?);
    let table = buffer(&limits, call.table, "sampling parameters")?;
    let slots = buffer(&limits, call.slots, "sampling slots")?;
    let positions = buffer(&limits, call.positions, "positions")?;
    let seen = buffer(&limits, call.seen.as_ref(), "seen tokens")?;
    // Elements of the table are rows of 12 words.
    let row_words = size_of::<engraft_core::sample::SampleRow>() / 4;
    let words = [
        word(logits.rows)?,
        word(logits.cols)?,
        from.offset,
        word(logits.pitch)?,
        to.offset,
        table.offset * row_words as u32,
        word(call.table.len)?,
        slots.offset,
        positions.offset,
        seen.offset,
        word(call.seen_words)?,
    ];
    let bound = [from.slot, table.slot, slots.slot, positions.slot, seen.slot, to.slot];
    let kernel = Kernel::Sample(Sample::Draw, Elem::F32);
    let grid = groups(&limits, logits.rows, 1);
    stream.run(&Call { kernel, slots: &bound, words: &words, grid })
}
