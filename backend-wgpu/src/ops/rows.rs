//! Rows and words moved: the macros of `rows.wgsl`.

use crate::command::{Call, FLAT, buffer, elem, groups, matrix, word};
use crate::{Wgpu, WgpuStream};
use engraft_core::Result;
use engraft_core::ops::{FeedTokens, GatherRows, MarkSeen, RowsOp, Scatter};
use engraft_shaders::{Elem, Kernel};

pub(super) fn run(stream: &mut WgpuStream, op: RowsOp<'_, Wgpu>) -> Result<()> {
    match op {
        RowsOp::GatherRows(op) => gather(stream, op),
        RowsOp::Scatter(op) => scatter(stream, op),
        RowsOp::MarkSeen(op) => mark_seen(stream, op),
        RowsOp::FeedTokens(op) => feed_tokens(stream, op),
    }
}

/// A kernel that moves words.
const fn of_words(name: &'static str) -> Kernel {
    Kernel::Rows(name, Elem::F32)
}

fn gather(stream: &mut WgpuStream, op: GatherRows<'_, Wgpu>) -> Result<()> {
    let GatherRows { x, rows, out } = op;
    let (limits, out) = (*stream.gpu().limits(), out.as_ref());
    if out.rows() * out.cols() == 0 {
        return Ok(());
    }
    let (from, to) = (matrix(&limits, x, "activations")?, matrix(&limits, out, "activations")?);
    let rows = buffer(&limits, rows, "row numbers")?;
    let words = [
        word(out.rows())?,
        word(out.cols())?,
        word(x.rows())?,
        from.offset,
        word(x.pitch())?,
        rows.offset,
        to.offset,
        word(out.pitch())?,
    ];
    let kernel = Kernel::Rows("gather", elem(x.dtype()));
    let grid = groups(&limits, out.rows() * out.cols(), FLAT);
    stream.call(&Call { kernel, slots: &[from.slot, rows.slot, to.slot], words: &words, grid })
}

fn scatter(stream: &mut WgpuStream, op: Scatter<'_, Wgpu>) -> Result<()> {
    let (limits, dst, count) = (*stream.gpu().limits(), op.dst.as_ref(), op.pairs.len() / 2);
    if count == 0 {
        return Ok(());
    }
    let (from, to) = (buffer(&limits, op.pairs, "changes")?, buffer(&limits, dst, "a table")?);
    let words = [word(count)?, from.offset, to.offset, word(dst.len())?];
    let grid = groups(&limits, count, 64);
    stream.call(&Call { kernel: of_words("scatter"), slots: &[from.slot, to.slot], words: &words, grid })
}

fn mark_seen(stream: &mut WgpuStream, op: MarkSeen<'_, Wgpu>) -> Result<()> {
    let (limits, row) = (*stream.gpu().limits(), op.bounds());
    let row = op.seen.as_ref().slice(row)?;
    let (from, to) = (buffer(&limits, op.ids, "token ids")?, buffer(&limits, row, "seen tokens")?);
    let words = [word(op.ids.len())?, from.offset, to.offset, word(row.len())?];
    let slots = [from.slot, to.slot];
    stream.call(&Call { kernel: of_words("mark_seen"), slots: &slots, words: &words, grid: [1, 1, 1] })
}

fn feed_tokens(stream: &mut WgpuStream, op: FeedTokens<'_, Wgpu>) -> Result<()> {
    let (limits, count) = (*stream.gpu().limits(), op.feeds.len());
    if count == 0 {
        return Ok(());
    }
    let (ids, feeds) = (buffer(&limits, op.ids, "token ids")?, buffer(&limits, op.feeds, "rows of tokens")?);
    let last = buffer(&limits, op.last, "sampled tokens")?;
    let to = buffer(&limits, op.out.as_ref(), "token ids to run")?;
    let words = [word(count)?, ids.offset, feeds.offset, last.offset, word(op.last.len())?, to.offset];
    let (slots, grid) = ([ids.slot, feeds.slot, last.slot, to.slot], groups(&limits, count, 64));
    stream.call(&Call { kernel: of_words("feed_tokens"), slots: &slots, words: &words, grid })
}
