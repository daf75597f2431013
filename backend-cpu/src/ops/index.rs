//! An index of keys.

use crate::kernels::index::{self as kernel, Scored, Seen};
use crate::mem::{CpuMem, SharedMat, Words};
use crate::{Cpu, CpuStream};
use engraft_core::Result;
use engraft_core::mem::Table;
use engraft_core::ops::{IndexChoose, IndexOp, IndexScores, Sequences};

/// The lists of sequences and their pages.
struct Lists {
    bounds: Words<u32>,
    table_rows: Words<u32>,
    lens: Words<u32>,
    pages: Words<u32>,
    stride: usize,
    page_size: usize,
    first: usize,
    count: usize,
}

impl Lists {
    fn new(
        (seqs, table): (Sequences<'_, CpuMem>, Table<'_, CpuMem>),
        [page_size, first, count]: [usize; 3],
    ) -> Self {
        Self {
            bounds: Words::from(seqs.bounds),
            table_rows: Words::from(seqs.table_rows),
            lens: Words::from(seqs.kv_lens),
            pages: Words::from(table.pages),
            stride: table.stride,
            page_size,
            first,
            count,
        }
    }

    /// # Safety
    /// Nothing writes them meanwhile.
    unsafe fn read(&self) -> Seen<'_> {
        let Self { stride, page_size, first, count, .. } = *self;
        // SAFETY: the caller's promise.
        let (bounds, table_rows) = unsafe { (self.bounds.slice(), self.table_rows.slice()) };
        // SAFETY: as above.
        let (lens, pages) = unsafe { (self.lens.slice(), self.pages.slice()) };
        Seen { bounds, table_rows, lens, pages, stride, page_size, first, count }
    }
}

pub(super) fn run(stream: &mut CpuStream, op: IndexOp<'_, Cpu>) -> Result<()> {
    match op {
        IndexOp::IndexScores(op) => scores(stream, op),
        IndexOp::IndexChoose(op) => choose(stream, op),
    }
}

fn scores(stream: &mut CpuStream, op: IndexScores<'_, Cpu>) -> Result<()> {
    let IndexScores { q, factors, low, high, heads, scale, seqs, table, page_size, first, count, out } = op;
    let [q, factors, low, high] = [q, factors, low, high].map(SharedMat::from);
    let (lists, out) = (Lists::new((seqs, table), [page_size, first, count]), SharedMat::from(out));
    stream.enqueue(move |cpu| {
        let keys = [low.read(), high.read()];
        let scored = Scored { q: q.read(), factors: factors.read(), keys, heads, scale };
        // SAFETY: the stream runs one op at a time.
        kernel::scores(cpu.machine(), scored, unsafe { lists.read() }, out.write())
    })
}

fn choose(stream: &mut CpuStream, op: IndexChoose<'_, Cpu>) -> Result<()> {
    let IndexChoose { scores, seqs, table, page_size, first, count, chosen, counts } = op;
    let (scores, lists) = (SharedMat::from(scores), Lists::new((seqs, table), [page_size, first, count]));
    let (chosen, counts) = (Words::from(chosen), Words::from(counts));
    stream.enqueue(move |cpu| {
        // SAFETY: the stream runs one op at a time; the outputs are different allocations than what is read.
        let (seen, chosen, counts) = unsafe { (lists.read(), chosen.slice_mut(), counts.slice_mut()) };
        kernel::choose(cpu.machine(), scores.read(), seen, (chosen, counts))
    })
}
