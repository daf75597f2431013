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
        RowsOp::FeedTokens(FeedTokens { ids, feeds, last, out }) => {
            let [ids, feeds, last] = [ids, feeds, last].map(Words::from);
            let out = Words::from(out);
            stream.enqueue(move |_| {
                // SAFETY: the stream runs one op at a time; what is written is another allocation than what
                // is read.
                let (ids, feeds, last) = unsafe { (ids.slice(), feeds.slice(), last.slice()) };
                // SAFETY: as above.
                let out = unsafe { out.slice_mut() };
                for (out, (id, row)) in out.iter_mut().zip(ids.iter().zip(feeds)) {
                    *out = *last.get(*row as usize).unwrap_or(id);
                }
                Ok(())
            })
        }
    }
}
