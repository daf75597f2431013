//! Sampling by the shared rule, with this backend's variant of `exp`.

use crate::mem::{SharedMat, Words};
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::math::{FusedMadd, SeparateMadd, exp};
use engraft_core::numerics::Madd;
use engraft_core::ops::Sample;
use engraft_core::sample::{self, SampleRow};
use std::sync::PoisonError;

/// A sampling that keeps its memory alive.
struct Held {
    logits: SharedMat,
    table: Words<SampleRow>,
    slots: Words<u32>,
    positions: Words<u32>,
    seen: Words<u32>,
    seen_words: usize,
    out: Words<u32>,
}

pub(super) fn run(stream: &mut CpuStream, op: Sample<'_, Cpu>) -> Result<()> {
    let Sample { logits, table, slots, positions, seen, seen_words, out } = op;
    let (logits, table, out) = (SharedMat::from(logits), Words::from(table), Words::from(out));
    let (slots, positions, seen) = (Words::from(slots), Words::from(positions), Words::from(seen));
    let held = Held { logits, table, slots, positions, seen, seen_words, out };
    stream.enqueue(move |cpu| {
        held.run(cpu);
        Ok(())
    })
}

impl Held {
    fn run(&self, cpu: &Cpu) {
        let exp = match cpu.machine().madd {
            Madd::Fused => exp::<FusedMadd>,
            Madd::Separate => exp::<SeparateMadd>,
        };
        let mut scratch = cpu.sample_scratch().lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the stream runs one op at a time; outputs and inputs are different allocations.
        let (out, seen, table) = unsafe { (self.out.slice_mut(), self.seen.slice_mut(), self.table.slice()) };
        // SAFETY: as above.
        let (slots, positions) = unsafe { (self.slots.slice(), self.positions.slice()) };
        for (r, ((out, slot), position)) in out.iter_mut().zip(slots).zip(positions).enumerate() {
            let Some(mut row) = table.get(*slot as usize).copied() else {
                *out = u32::MAX;
                continue;
            };
            row.position = *position;
            // SAFETY: row `r` of f32 logits: the op's check has seen type and number of rows.
            let values =
                unsafe { std::slice::from_raw_parts(self.logits.row(r).cast::<f32>(), self.logits.cols) };
            let bits = self.bits_of(&row, seen);
            *out = sample::sample_row(values, bits.as_deref(), &row, exp, &mut scratch);
            if let Some(bits) = bits {
                sample::mark_seen(bits, *out);
            }
        }
    }

    /// The row's bits of tokens already seen; none where it names no row that exists.
    fn bits_of<'s>(&self, row: &SampleRow, seen: &'s mut [u32]) -> Option<&'s mut [u32]> {
        let start = usize::try_from(row.seen_slot).ok()?.checked_mul(self.seen_words)?;
        seen.get_mut(start..start.checked_add(self.seen_words)?)
    }
}
