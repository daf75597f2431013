//! From logits to tokens.

use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream};
use engraft_core::backend::SampleCall;
use engraft_core::mem::{BufMut, Float, MatRef};
use engraft_core::{Error, Result};
use engraft_kernels::params::sample as kernel;

pub(super) fn argmax(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    out: BufMut<'_, CudaMem, u32>,
) -> Result<()> {
    let (x_at, out) = (matrix(x)?, buffer(out.as_ref())?);
    let p = kernel::Argmax { x: x_at, out, elem: elem(x.dtype), reserved: 0 };
    stream.run(&p.launch(), &p)
}

pub(super) fn sample(
    stream: &mut CudaStream,
    logits: MatRef<'_, CudaMem>,
    call: SampleCall<'_, CudaMem>,
    out: BufMut<'_, CudaMem, u32>,
) -> Result<()> {
    if logits.dtype != Float::F32 {
        return Err(Error::internal(format!("{} logits sampled", logits.dtype)));
    }
    let seen = call.seen.as_ref();
    let p = kernel::Sample {
        logits: matrix(logits)?,
        table: buffer(call.table)?,
        slots: buffer(call.slots)?,
        positions: buffer(call.positions)?,
        seen: buffer(seen)?,
        out: buffer(out.as_ref())?,
        table_rows: word(call.table.len)?,
        seen_rows: word(seen.len / call.seen_words.max(1))?,
        seen_words: word(call.seen_words)?,
        reserved: 0,
    };
    stream.run(&p.launch(), &p)
}
