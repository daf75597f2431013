//! Sampling by the shared rule, with this backend's form of `exp`.

use crate::mem::{Rows, Words};
use crate::{CpuMem, CpuStream};
use engraft_core::Error;
use engraft_core::Result;
use engraft_core::backend::SampleCall;
use engraft_core::math::{FusedMadd, SeparateMadd, exp};
use engraft_core::mem::{BufMut, BufRef, Float, MatRef};
use engraft_core::numerics::Madd;
use engraft_core::sample::{self, Scratch};
use std::sync::Mutex;

/// Scratch that grows to the largest vocabulary seen and stays.
pub(crate) type SampleScratch = Mutex<Scratch>;

pub(super) fn mark_seen(
    stream: &mut CpuStream,
    ids: BufRef<'_, CpuMem, u32>,
    slot: usize,
    words: usize,
    seen: BufMut<'_, CpuMem, u32>,
) -> Result<()> {
    let (ids, seen) = (Words::from(ids), Words::from(seen.slice(slot * words..(slot + 1) * words)?));
    stream.run(move |_| {
        // SAFETY: the stream runs one op at a time; the two buffers are different allocations.
        let (ids, seen) = unsafe { (ids.slice(), seen.slice_mut()) };
        seen.fill(0);
        for id in ids {
            sample::mark_seen(seen, *id);
        }
        Ok(())
    })
}

pub(super) fn sample(
    stream: &mut CpuStream,
    logits: MatRef<'_, CpuMem>,
    call: SampleCall<'_, CpuMem>,
    out: BufMut<'_, CpuMem, u32>,
) -> Result<()> {
    if logits.dtype != Float::F32 {
        return Err(Error::internal(format!("{} logits sampled", logits.dtype)));
    }
    let (logits, out, table) = (Rows::from(logits), Words::from(out), Words::from(call.table));
    let (slots, positions) = (Words::from(call.slots), Words::from(call.positions));
    let (seen, words) = (Words::from(call.seen), call.seen_words);
    stream.run(move |cpu| {
        let exp = match cpu.machine().madd {
            Madd::Fused => exp::<FusedMadd>,
            Madd::Separate => exp::<SeparateMadd>,
        };
        let mut scratch = cpu.sample_scratch().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the stream runs one op at a time; outputs and inputs are different allocations.
        let (out, seen, table) = unsafe { (out.slice_mut(), seen.slice_mut(), table.slice()) };
        // SAFETY: as above.
        let (slots, positions) = unsafe { (slots.slice(), positions.slice()) };
        for (r, out) in out.iter_mut().enumerate().take(logits.rows) {
            let Some(mut row) = table.get(slots[r] as usize).copied() else {
                *out = u32::MAX;
                continue;
            };
            row.position = positions[r];
            // SAFETY: a row of f32 logits, checked above and by `Exec`.
            let values = unsafe { std::slice::from_raw_parts(logits.row(r).cast::<f32>(), logits.cols) };
            let bits = usize::try_from(row.seen_slot).ok();
            let bits = bits.and_then(|s| seen.get_mut(s * words..(s + 1) * words));
            *out = sample::sample_row(values, bits.as_deref(), &row, exp, &mut scratch);
            if let Some(bits) = bits {
                sample::mark_seen(bits, *out);
            }
        }
        Ok(())
    })
}
