//! Rows and words moved.

use super::names::elem;
use crate::weight::word;
use crate::{Cuda, CudaStream, Kernel};
use engraft_core::Result;
use engraft_core::ops::{RowsOp, RowsOpKind, Signature};
use engraft_kernels::params::rows as kernels;

/// Which kernel.
pub(super) fn kernel(op: RowsOpKind, signature: &Signature) -> Kernel {
    match op {
        RowsOpKind::GatherRows => {
            Kernel::Several { name: "rows_gather_*", entries: kernels::Gather::entries(elem(signature.x)) }
        }
        RowsOpKind::Scatter => Kernel::Entry(kernels::Scatter::ENTRY),
        RowsOpKind::MarkSeen => Kernel::Entry(kernels::Seen::ENTRY),
        RowsOpKind::FeedTokens => Kernel::Entry(kernels::Feed::ENTRY),
    }
}

pub(super) fn run(stream: &mut CudaStream, op: RowsOp<'_, Cuda>) -> Result<()> {
    match op {
        RowsOp::GatherRows(op) => {
            let (x, out) = (stream.matrix(op.x)?, stream.matrix_mut(&op.out)?);
            let (rows, elem) = (stream.buffer(op.rows)?, elem(op.x.dtype()));
            let p = kernels::Gather { x, out, rows, elem, reserved: 0 };
            stream.launch(&p.launch(), &p)
        }
        RowsOp::Scatter(op) => {
            let (pairs, dst) = (stream.buffer(op.pairs)?, stream.buffer_mut(&op.dst)?);
            let (count, len) = (word(op.pairs.len() / 2)?, word(op.dst.len())?);
            let p = kernels::Scatter { pairs, dst, count, len };
            stream.launch(&p.launch(), &p)
        }
        RowsOp::MarkSeen(op) => {
            let (ids, count, words) = (stream.buffer(op.ids)?, word(op.ids.len())?, word(op.words)?);
            let bounds = op.bounds();
            let seen = stream.buffer_mut(&op.seen.slice(bounds)?)?;
            let p = kernels::Seen { ids, seen, count, words };
            stream.launch(&p.launch(), &p)
        }
        RowsOp::FeedTokens(op) => {
            let (ids, feeds, last) =
                (stream.buffer(op.ids)?, stream.buffer(op.feeds)?, stream.buffer(op.last)?);
            let (count, rows) = (word(op.feeds.len())?, word(op.last.len())?);
            let p = kernels::Feed { ids, feeds, last, out: stream.buffer_mut(&op.out)?, count, rows };
            stream.launch(&p.launch(), &p)
        }
    }
}
