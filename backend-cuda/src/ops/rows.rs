//! Rows and words moved about.

use super::{buffer, elem, matrix};
use crate::weight::word;
use crate::{CudaMem, CudaStream};
use engraft_core::Result;
use engraft_core::mem::{BufMut, BufRef, MatMut, MatRef};
use engraft_kernels::params::rows as kernel;

pub(super) fn gather(
    stream: &mut CudaStream,
    x: MatRef<'_, CudaMem>,
    rows: BufRef<'_, CudaMem, u32>,
    out: MatMut<'_, CudaMem>,
) -> Result<()> {
    let (x_at, out, rows) = (matrix(x)?, matrix(out.as_ref())?, buffer(rows)?);
    let p = kernel::Gather { x: x_at, out, rows, elem: elem(x.dtype), reserved: 0 };
    stream.run(&p.launch(), &p)
}

pub(super) fn patch(
    stream: &mut CudaStream,
    pairs: BufRef<'_, CudaMem, u32>,
    dst: BufMut<'_, CudaMem, u32>,
) -> Result<()> {
    let p = kernel::Patch {
        pairs: buffer(pairs)?,
        dst: buffer(dst.as_ref())?,
        count: word(pairs.len / 2)?,
        len: word(dst.len)?,
    };
    stream.run(&p.launch(), &p)
}

pub(super) fn mark_seen(
    stream: &mut CudaStream,
    ids: BufRef<'_, CudaMem, u32>,
    slot: usize,
    words: usize,
    seen: BufMut<'_, CudaMem, u32>,
) -> Result<()> {
    let row = seen.slice(slot * words..(slot + 1) * words)?;
    let p = kernel::Seen {
        ids: buffer(ids)?,
        seen: buffer(row.as_ref())?,
        count: word(ids.len)?,
        words: word(words)?,
    };
    stream.run(&p.launch(), &p)
}
