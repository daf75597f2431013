//! What ops do with tags.

use super::{Null, NullMem, NullStream};
use engraft_core::mem::{BufRef, KvRef, MatLayout, MatMut, MatRef};
use engraft_core::ops::*;
use engraft_core::sample::NO_TOKEN;
use engraft_core::{Error, Result};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Words of an allocation.
#[derive(Clone)]
struct Words {
    mem: NullMem,
    range: Range<usize>,
}

impl Words {
    fn of<T>(view: BufRef<'_, NullMem, T>) -> Self {
        let size = size_of::<T>() / 4;
        let range = view.offset() * size..(view.offset() + view.len()) * size;
        Self { mem: view.mem().clone(), range }
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    /// The word at an index; none beyond the end.
    fn get(&self, at: usize) -> Option<u32> {
        (at < self.len()).then(|| self.mem.0[self.range.start + at].load(Relaxed))
    }

    /// Some of them.
    fn part(&self, range: Range<usize>) -> Self {
        let [start, end] = [range.start, range.end].map(|at| (self.range.start + at).min(self.range.end));
        Self { mem: self.mem.clone(), range: start..end }
    }

    /// Sets a bit; nothing beyond the end.
    fn mark(&self, bit: u32) {
        let at = bit as usize / 32;
        self.set(at, self.get(at).unwrap_or(0) | 1 << (bit % 32));
    }

    /// Writes a word; nothing beyond the end.
    fn set(&self, at: usize, value: u32) {
        if at < self.len() {
            self.mem.0[self.range.start + at].store(value, Relaxed);
        }
    }
}

/// A matrix, a tag per row.
#[derive(Clone)]
struct Matrix {
    mem: NullMem,
    at: MatLayout,
}

impl Matrix {
    fn of(view: MatRef<'_, NullMem>) -> Self {
        Self { mem: view.mem().clone(), at: view.layout() }
    }

    fn to(view: &MatMut<'_, NullMem>) -> Self {
        Self::of(view.as_ref())
    }

    /// The tag of a row.
    fn tag(&self, row: usize) -> u32 {
        self.mem.0[self.at.offset + row * self.at.pitch].load(Relaxed)
    }

    /// Gives a row a tag, in every column: any part of it has the tag, too.
    fn set(&self, row: usize, tag: u32) {
        let start = self.at.offset + row * self.at.pitch;
        self.mem.0[start..start + self.at.cols].iter().for_each(|word| word.store(tag, Relaxed));
    }
}

/// Two words as one; neither order nor repetition is lost.
pub(super) fn mix(a: u32, b: u32) -> u32 {
    let x = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 32) as u32
}

/// What a row samples from, but for the tokens seen.
pub(super) fn sampled_tag(tag: u32, seed: u32, subsequence: u32, position: u32) -> u32 {
    mix(mix(mix(tag, seed), subsequence), position)
}

/// The token of a tag; now and then none.
pub(super) fn token_of(tag: u32, vocab: usize) -> u32 {
    if tag.is_multiple_of(61) { NO_TOKEN } else { tag % vocab as u32 }
}

impl Run<Null> for NullStream {
    fn run(&mut self, op: Checked<'_, Null>) -> Result<()> {
        if !self.carries() {
            return self.enqueue(|| Ok(()));
        }
        if op.is_fused() {
            return op.compose(self);
        }
        match op.into_op() {
            Op::Embed(Embed { ids, add: None, out, .. }) => {
                let (ids, out, null) = (Words::of(ids), Matrix::to(&out), self.null().clone());
                self.enqueue(move || {
                    null.spend_on_tokens(out.at.rows as u64);
                    (0..out.at.rows).try_for_each(|row| {
                        let id = ids.get(row).ok_or_else(|| Error::internal("no id for a row"))?;
                        out.set(row, mix(1, id));
                        Ok(())
                    })
                })
            }
            Op::Linear(Linear { x, out, .. }) => self.pass(x, &out),
            Op::Norm(NormOp::Norm(Norm { x, out, .. })) => self.pass(x, &out),
            Op::Elementwise(op) => self.elementwise(op),
            Op::Rope(RopeOp::Rope(op)) => self.rotate(op),
            Op::Kv(KvOp::KvAppend(op)) => self.append(op),
            Op::Kv(KvOp::KvCopyPages(op)) => self.copy_pages(op),
            Op::Kv(KvOp::KvRead(op)) => self.read(op),
            Op::Attention(AttentionOp::Attend(op)) => self.attend(op),
            Op::Rows(op) => self.rows(op),
            Op::Sample(op) => self.sample(op),
            other => Err(Error::Unsupported {
                op: other.kind().name().into(),
                backend: "null".into(),
                reason: "it has no tags".into(),
            }),
        }
    }
}

impl NullStream {
    /// Every row keeps its tag.
    fn pass(&mut self, x: MatRef<'_, NullMem>, out: &MatMut<'_, NullMem>) -> Result<()> {
        let (x, out) = (Matrix::of(x), Matrix::to(out));
        self.enqueue(move || {
            (0..out.at.rows).for_each(|row| out.set(row, x.tag(row)));
            Ok(())
        })
    }

    fn elementwise(&mut self, op: ElementwiseOp<'_, Null>) -> Result<()> {
        match op {
            ElementwiseOp::Add(Add { acc, x }) => {
                let (acc, x) = (Matrix::to(&acc), Matrix::of(x));
                self.enqueue(move || {
                    (0..acc.at.rows).for_each(|row| acc.set(row, mix(acc.tag(row), x.tag(row))));
                    Ok(())
                })
            }
            ElementwiseOp::Gate(Gate { gate_up, out, .. }) => self.pass(gate_up, &out),
            ElementwiseOp::Convert(Convert { x, out, .. }) => self.pass(x, &out),
            ElementwiseOp::Activate(_)
            | ElementwiseOp::Xielu(_)
            | ElementwiseOp::Modulate(_)
            | ElementwiseOp::Limit(_)
            | ElementwiseOp::Scale(_) => Ok(()),
        }
    }

    /// A rotated row's tag has its position in it.
    fn rotate(&mut self, op: Rope<'_, Null>) -> Result<()> {
        let (x, positions) = (Matrix::to(&op.x), Words::of(op.positions));
        self.enqueue(move || {
            (0..x.at.rows).for_each(|row| x.set(row, mix(x.tag(row), positions.get(row).unwrap_or(0))));
            Ok(())
        })
    }

    fn append(&mut self, op: KvAppend<'_, Null>) -> Result<()> {
        let (k, slots, kv) = (Matrix::of(op.k), Words::of(op.slots), slots_of(op.kv.as_ref()));
        self.enqueue(move || {
            for row in 0..k.at.rows {
                // Negative: nothing is written.
                if let Some(slot) = slots.get(row).and_then(|slot| usize::try_from(slot as i32).ok()) {
                    kv.set(slot, k.tag(row));
                }
            }
            Ok(())
        })
    }

    /// The tags of a sequence's positions.
    fn read(&mut self, op: KvRead<'_, Null>) -> Result<()> {
        let (k, kv, size) = (Matrix::to(&op.k), slots_of(op.kv), op.kv.layout().page_size);
        let (pages, first) = (Words::of(op.table.pages), op.row * op.table.stride);
        self.enqueue(move || {
            for row in 0..k.at.rows {
                let page = pages.get(first + row / size);
                let slot = page.map(|page| page as usize * size + row % size);
                let tag = slot.and_then(|slot| kv.get(slot));
                k.set(row, tag.ok_or_else(|| Error::internal("a page beyond a table or a slab"))?);
            }
            Ok(())
        })
    }

    fn copy_pages(&mut self, op: KvCopyPages<'_, Null>) -> Result<()> {
        let (pairs, size) = (Words::of(op.pairs), op.kv.layout().page_size);
        let kv = slots_of(op.kv.as_ref());
        self.enqueue(move || {
            for pair in 0..pairs.len() / 2 {
                let [from, to] = [0, 1].map(|i| pairs.get(2 * pair + i).unwrap_or(0) as usize * size);
                (0..size).for_each(|i| kv.set(to + i, kv.get(from + i).unwrap_or(0)));
            }
            Ok(())
        })
    }

    /// Folds what the pages hold up to a row's own position into the row's tag.
    fn attend(&mut self, op: Attend<'_, Null>) -> Result<()> {
        let (q, out, kv, size) =
            (Matrix::of(op.q), Matrix::to(&op.out), slots_of(op.kv), op.kv.layout().page_size);
        let (pages, stride) = (Words::of(op.table.pages), op.table.stride);
        let [bounds, rows, lens] = [op.seqs.bounds, op.seqs.table_rows, op.seqs.kv_lens].map(Words::of);
        let null = self.null().clone();
        self.enqueue(move || {
            let missing = || Error::internal("attention beyond a list, a table or a slab");
            null.spend_on_keys((0..rows.len()).filter_map(|s| lens.get(s)).map(u64::from).sum());
            for s in 0..rows.len() {
                let [begin, end] = [s, s + 1].map(|i| bounds.get(i).unwrap_or(0) as usize);
                let (row, len) = (rows.get(s).unwrap_or(0) as usize, lens.get(s).unwrap_or(0) as usize);
                for t in begin..end {
                    let position = len + t - end;
                    let mut tag = q.tag(t);
                    for p in 0..=position {
                        let page = pages.get(row * stride + p / size).ok_or_else(missing)? as usize;
                        tag = mix(tag, kv.get(page * size + p % size).ok_or_else(missing)?);
                    }
                    out.set(t, tag);
                }
            }
            Ok(())
        })
    }

    fn rows(&mut self, op: RowsOp<'_, Null>) -> Result<()> {
        match op {
            RowsOp::GatherRows(GatherRows { x, rows, out }) => {
                let (x, rows, out) = (Matrix::of(x), Words::of(rows), Matrix::to(&out));
                self.enqueue(move || {
                    for r in 0..out.at.rows {
                        let from = rows.get(r).unwrap_or(0) as usize;
                        out.set(r, if from < x.at.rows { x.tag(from) } else { 0 });
                    }
                    Ok(())
                })
            }
            RowsOp::Scatter(Scatter { pairs, dst }) => {
                let (pairs, dst) = (Words::of(pairs), Words::of(dst.as_ref()));
                self.enqueue(move || {
                    for pair in 0..pairs.len() / 2 {
                        let [at, value] = [0, 1].map(|i| pairs.get(2 * pair + i).unwrap_or(0));
                        dst.set(at as usize, value);
                    }
                    Ok(())
                })
            }
            RowsOp::MarkSeen(op) => {
                let bounds = op.bounds();
                let (ids, seen) = (Words::of(op.ids), Words::of(op.seen.as_ref()).part(bounds));
                self.enqueue(move || {
                    (0..seen.len()).for_each(|at| seen.set(at, 0));
                    (0..ids.len()).filter_map(|i| ids.get(i)).for_each(|id| seen.mark(id));
                    Ok(())
                })
            }
            RowsOp::FeedTokens(FeedTokens { ids, feeds, last, out }) => {
                let [ids, feeds, last] = [ids, feeds, last].map(Words::of);
                let out = Words::of(out.as_ref());
                self.enqueue(move || {
                    for t in 0..out.len() {
                        let row = feeds.get(t).unwrap_or(u32::MAX) as usize;
                        out.set(t, last.get(row).or(ids.get(t)).unwrap_or(0));
                    }
                    Ok(())
                })
            }
        }
    }

    /// The token that a row's tag, its seed, its subsequence, its position and, with a penalty, the tokens
    /// seen make; now and then none.
    fn sample(&mut self, op: Sample<'_, Null>) -> Result<()> {
        let (logits, out) = (Matrix::of(op.logits), Words::of(op.out.as_ref()));
        let [slots, positions] = [op.slots, op.positions].map(Words::of);
        let (table, seen, words) = (Words::of(op.table), Words::of(op.seen.as_ref()), op.seen_words);
        self.enqueue(move || {
            for row in 0..out.len() {
                let slot = slots.get(row).unwrap_or(u32::MAX) as usize;
                // The words of a `SampleRow`: the seed's low half, the subsequence, the row of tokens seen.
                let entry = |word: usize| table.get(slot.saturating_mul(12).saturating_add(word));
                let [seed, subsequence] = [6, 8].map(|word| entry(word).unwrap_or(0));
                let seen_slot = entry(11).unwrap_or(u32::MAX);
                let of_row =
                    usize::try_from(seen_slot as i32).map(|at| seen.part(at * words..(at + 1) * words));
                let tag = sampled_tag(logits.tag(row), seed, subsequence, positions.get(row).unwrap_or(0));
                let bits = of_row.iter().flat_map(|bits| (0..bits.len()).filter_map(|at| bits.get(at)));
                let token = token_of(bits.fold(tag, mix), logits.at.cols);
                out.set(row, token);
                if let Some(bits) = of_row.ok().filter(|_| token != NO_TOKEN) {
                    bits.mark(token);
                }
            }
            Ok(())
        })
    }
}

/// A tag per slot: [`super::Null`]'s slabs.
fn slots_of(kv: KvRef<'_, NullMem>) -> Words {
    Words { mem: kv.k().clone(), range: 0..kv.layout().slots() }
}
