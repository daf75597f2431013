//! An index of keys.

use super::names::{elem, unsupported};
use crate::weight::word;
use crate::{Cuda, CudaMem, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::mem::Table;
use engraft_core::ops::{IndexOp, IndexOpKind, Sequences, Signature};
use engraft_kernels::params::index as kernels;

/// Which kernel.
///
/// # Errors
/// Why there is none.
pub(super) fn kernel(op: IndexOpKind, signature: &Signature) -> std::result::Result<Kernel, String> {
    match op {
        IndexOpKind::IndexScores => {
            let most = kernels::MOST_SHARED;
            let words = u32::try_from(signature.outer).ok().zip(u32::try_from(signature.inner).ok());
            match words.map(|(heads, width)| kernels::Scores::shared(heads, width)) {
                Some(bytes) if bytes <= most => Ok(Kernel::Entry(kernels::Scores::ENTRY)),
                _ => Err(format!("queries of an index of up to {most} bytes in f32, heads in groups of 8")),
            }
        }
        IndexOpKind::IndexChoose => Ok(Kernel::Entry(kernels::Choose::ENTRY)),
    }
}

fn lists(
    stream: &CudaStream,
    (seqs, table): (Sequences<'_, CudaMem>, Table<'_, CudaMem>),
    [page_size, first, count]: [usize; 3],
) -> Result<kernels::Lists> {
    Ok(kernels::Lists {
        bounds: stream.buffer(seqs.bounds)?,
        table_rows: stream.buffer(seqs.table_rows)?,
        kv_lens: stream.buffer(seqs.kv_lens)?,
        table: stream.buffer(table.pages)?,
        seqs: word(seqs.kv_lens.len())?,
        rows: word(table.pages.len() / table.stride.max(1))?,
        stride: word(table.stride)?,
        page_size: word(page_size)?,
        first: word(first)?,
        count: word(count)?,
    })
}

pub(super) fn run(stream: &mut CudaStream, op: IndexOp<'_, Cuda>, signature: &Signature) -> Result<()> {
    match op {
        IndexOp::IndexScores(op) => {
            kernel(IndexOpKind::IndexScores, signature).map_err(|reason| unsupported(signature, reason))?;
            let p = kernels::Scores {
                q: stream.matrix(op.q)?,
                factors: stream.matrix(op.factors)?,
                low: stream.matrix(op.low)?,
                high: stream.matrix(op.high)?,
                out: stream.matrix_mut(&op.out)?,
                lists: lists(stream, (op.seqs, op.table), [op.page_size, op.first, op.count])?,
                heads: word(op.heads)?,
                scale: op.scale,
                elem: elem(op.q.dtype()),
                kv_elem: elem(op.low.dtype()),
            };
            stream.launch(&p.launch(), &p)
        }
        IndexOp::IndexChoose(op) => {
            let p = kernels::Choose {
                scores: stream.matrix(op.scores)?,
                lists: lists(stream, (op.seqs, op.table), [op.page_size, op.first, op.count])?,
                chosen: stream.buffer_mut(&op.chosen)?,
                counts: stream.buffer_mut(&op.counts)?,
            };
            stream.launch(&p.launch(), &p)
        }
    }
}
