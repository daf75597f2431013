//! From logits to tokens.

use crate::weight::word;
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::ops::Sample;
use engraft_kernels::params::sample as kernels;

/// Which kernel.
pub(super) fn kernel() -> Kernel {
    Kernel::Entry(kernels::Sample::ENTRY)
}

pub(super) fn run(stream: &mut CudaStream, op: Sample<'_, Cuda>) -> Result<()> {
    let p = kernels::Sample {
        logits: stream.matrix(op.logits)?,
        table: stream.buffer(op.table)?,
        slots: stream.buffer(op.slots)?,
        positions: stream.buffer(op.positions)?,
        seen: stream.buffer_mut(&op.seen)?,
        out: stream.buffer_mut(&op.out)?,
        table_rows: word(op.table.len())?,
        seen_rows: word(op.seen.len() / op.seen_words.max(1))?,
        seen_words: word(op.seen_words)?,
        reserved: 0,
    };
    stream.launch(&p.launch(), &p)
}
