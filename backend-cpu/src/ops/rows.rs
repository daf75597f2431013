//! Rows and words moved.

use crate::kernels::rows as kernel;
use crate::mem::{SharedMat, Words};
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::ops::{FeedTokens, GatherRows, MarkSeen, RowsOp, Scatter};
use engraft_core::sample;

pub(super) fn run(stream: &mut CpuStream, op: RowsOp<'_, Cpu>) -> Result<()> {
    match op {
        RowsOp::GatherRows(GatherRows { x, rows, out }) => {
            let (x, rows, out) = (SharedMat::from(x), Words::from(rows), SharedMat::from(out));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time.
                kernel::gather(x.read(), unsafe { rows.slice() }, out.write())
            })
        }
        RowsOp::Scatter(Scatter { pairs, dst }) => {
            let (pairs, dst) = (Words::from(pairs), Words::from(dst));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time; the two buffers are different allocations.
                let (pairs, dst) = unsafe { (pairs.slice(), dst.slice_mut()) };
                kernel::scatter(pairs, dst);
                Ok(())
            })
        }
        RowsOp::MarkSeen(op) => {
            let bounds = op.bounds();
            let MarkSeen { ids, seen, .. } = op;
            let (ids, seen) = (Words::from(ids), Words::from(seen.slice(bounds)?));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time; the two buffers are different allocations.
                let (ids, seen) = unsafe { (ids.slice(), seen.slice_mut()) };
                seen.fill(0);
                ids.iter().for_each(|id| sample::mark_seen(seen, *id));
                Ok(())
            })
        }
        RowsOp::FeedTokens(FeedTokens { feeds, last, ids }) => {
            let (feeds, last, ids) = (Words::from(feeds), Words::from(last), Words::from(ids));
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time; what is written is another allocation than what
                // is read.
                let (feeds, last, ids) = unsafe { (feeds.slice(), last.slice(), ids.slice_mut()) };
                for (id, row) in ids.iter_mut().zip(feeds) {
                    *id = last.get(*row as usize).copied().unwrap_or(*id);
                }
                Ok(())
            })
        }
    }
}
