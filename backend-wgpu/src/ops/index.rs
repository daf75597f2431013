//! An index of keys.

use super::attention::in_one_buffer;
use crate::budget::{of_elements, of_matmul};
use crate::command::{Call, Place, Slot, buffer, elem, groups, matrix, word};
use crate::limits::Limits;
use crate::slices::ALL_GROUPS;
use crate::{Wgpu, WgpuMem, WgpuStream};
use engraft_core::Result;
use engraft_core::mem::Table;
use engraft_core::ops::{IndexChoose, IndexOp, IndexScores, Sequences};
use engraft_shaders::{Elem, Index as Entry, Kernel};

pub(super) fn run(stream: &mut WgpuStream, op: IndexOp<'_, Wgpu>) -> Result<()> {
    match op {
        IndexOp::IndexScores(op) => scores(stream, op),
        IndexOp::IndexChoose(op) => choose(stream, op),
    }
}

/// The lists of sequences, bound as one, their pages, and the words that say where they lie.
struct Lists<'a> {
    sequences: Slot<'a>,
    pages: Place<'a>,
    words: [u32; 8],
    /// The first of the words that are the same in every step.
    fixed: [u32; 4],
}

impl<'a> Lists<'a> {
    fn new(
        limits: &Limits,
        (seqs, table): (Sequences<'a, WgpuMem>, Table<'a, WgpuMem>),
        [rows, keys]: [usize; 2],
        [page_size, first, count]: [usize; 3],
    ) -> Result<Self> {
        let Sequences { bounds, table_rows, kv_lens, .. } = seqs;
        let sequences = Slot::whole(limits, bounds.mem(), "a step")?;
        let pages = buffer(limits, table.pages, "a page table")?;
        let words = [
            word(rows)?,
            word(keys)?,
            word(kv_lens.len())?,
            word(bounds.offset())?,
            word(table_rows.offset())?,
            word(kv_lens.offset())?,
            pages.offset,
            word(first)?,
        ];
        let rows = word(table.pages.len() / table.stride.max(1))?;
        let fixed = [rows, word(table.stride)?, word(page_size)?, word(count)?];
        Ok(Self { sequences, pages, words, fixed })
    }
}

fn scores(stream: &mut WgpuStream, op: IndexScores<'_, Wgpu>) -> Result<()> {
    let IndexScores { q, factors, low, high, heads, scale, seqs, table, page_size, first, count, out } = op;
    let (gpu, out) = (stream.gpu().clone(), out.as_ref());
    let limits = gpu.limits();
    if out.rows() * out.cols() == 0 {
        return Ok(());
    }
    in_one_buffer(&gpu, "index_scores", &seqs)?;
    let size = [out.rows(), out.cols()];
    let lists = Lists::new(limits, (seqs, table), size, [page_size, first, count])?;
    let place = |m| matrix(limits, m, "activations");
    let (q_at, factors_at, to) = (place(q)?, place(factors)?, place(out)?);
    let (low_at, high_at) = (matrix(limits, low, "keys")?, matrix(limits, high, "keys")?);
    let fixed = [
        word(heads)?,
        scale.to_bits(),
        word(low.rows())?,
        word(low.cols())?,
        word(high.cols())?,
        word(q.pitch())?,
        word(factors.pitch())?,
        word(low.pitch())?,
        word(high.pitch())?,
    ];
    let fixed = gpu.fixed.get(&gpu.gpu, gpu.uploads(), &[&lists.fixed[..], &fixed[..]].concat())?;
    let places = [q_at.offset, factors_at.offset, low_at.offset, high_at.offset, to.offset];
    let words = [&lists.words[..], &places[..], &[word(out.pitch())?, ALL_GROUPS]].concat();
    let (sequences, pages) = (lists.sequences, lists.pages.slot);
    let fixed = Slot::whole(limits, &fixed, "sizes")?;
    let slots = [q_at.slot, factors_at.slot, low_at.slot, high_at.slot, sequences, pages, to.slot, fixed];
    let kernel = Kernel::Index(Entry::Scores, elem(q.dtype()), elem(low.dtype()));
    let across = groups(limits, out.cols(), 64)[0];
    let grid = [across, word(out.rows().min(limits.groups as usize))?, 1];
    let work = of_matmul(heads, out.rows() * out.cols(), low.cols() + high.cols());
    stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)
}

/// How often a row of scores is gone over at most: four digits, and what is left over.
const PASSES: usize = 6;

fn choose(stream: &mut WgpuStream, op: IndexChoose<'_, Wgpu>) -> Result<()> {
    let IndexChoose { scores, seqs, table, page_size, first, count, chosen, counts } = op;
    let gpu = stream.gpu().clone();
    let limits = gpu.limits();
    if scores.rows() == 0 {
        return Ok(());
    }
    in_one_buffer(&gpu, "index_choose", &seqs)?;
    let size = [scores.rows(), scores.cols()];
    let lists = Lists::new(limits, (seqs, table), size, [page_size, first, count])?;
    let from = matrix(limits, scores, "scores")?;
    let to = buffer(limits, chosen.as_ref(), "chosen keys")?;
    let counted = buffer(limits, counts.as_ref(), "counts of keys")?;
    let own = [from.offset, word(scores.pitch())?, to.offset, counted.offset];
    let words = [&lists.words[..], &own[..]].concat();
    let fixed = gpu.fixed.get(&gpu.gpu, gpu.uploads(), &lists.fixed)?;
    let fixed = Slot::whole(limits, &fixed, "sizes")?;
    let slots = [from.slot, lists.sequences, lists.pages.slot, to.slot, counted.slot, fixed];
    let kernel = Kernel::Index(Entry::Choose, Elem::F32, Elem::F32);
    let grid = [word(scores.rows().min(limits.groups as usize))?, 1, 1];
    let work = of_elements(scores.rows() * scores.cols(), PASSES);
    stream.call_of(&Call { kernel, slots: &slots, words: &words, grid }, work)
}
