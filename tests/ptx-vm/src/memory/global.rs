//! The shadow of global memory: pages of lines, made when they are first touched.

use std::ops::Range;

use super::Memory;
use super::clock::{Clock, Fenced};
use super::shadow::{Cell, Conflict, How, LINE, Line, Parts, Party, Readers, Seen, word_bytes};

/// Lines of a page of the global shadow: one bit each in a word.
const PAGE: usize = 64;

/// A page of lines, made when first touched.
#[derive(Debug, Clone, Default)]
pub(super) struct Page {
    /// Lines that only a write can change: clusters without order have read all of them, and nothing has
    /// written. A further read finds nothing and leaves nothing, so that it need not look at the line.
    pub(super) settled: u64,
    lines: Option<Box<[Line; PAGE]>>,
}

/// A block of the heap that the launch has freed.
#[derive(Debug, Clone)]
pub(crate) struct Freed {
    pub(crate) range: Range<u64>,
    /// Line index of the call.
    pub(crate) line: u32,
    /// Who freed it: the cluster, the warp of it, and the warp's count.
    pub(crate) by: (u32, u16, u32),
}

/// The shadow of global memory.
#[derive(Debug, Default, Clone)]
pub(crate) struct GlobalShadow {
    /// Per allocation of the memory.
    pub(super) pages: Vec<Vec<Page>>,
    pub(crate) readers: Readers,
    parts: Parts,
    /// The allocations that the pages belong to, and the memory's generation then: a launch that waits may
    /// find others when it goes on.
    bases: Vec<u64>,
    generation: u64,
    /// Their shadows are gone with them.
    pub(crate) freed: Vec<Freed>,
}

impl GlobalShadow {
    pub(crate) fn new(allocations: usize, ordered_clusters: bool) -> Self {
        GlobalShadow {
            pages: vec![Vec::new(); allocations],
            readers: Readers::new(ordered_clusters),
            ..GlobalShadow::default()
        }
    }

    /// Before the launch waits: which allocations the pages belong to.
    pub(crate) fn leave(&mut self, memory: &Memory) {
        (self.bases, self.generation) = (memory.bases(), memory.generation());
    }

    /// When it goes on: allocations may have come and gone.
    pub(crate) fn fit(&mut self, memory: &Memory) {
        if self.generation == memory.generation() {
            return;
        }
        let bases = memory.bases();
        let mut pages = vec![Vec::new(); bases.len()];
        for (base, old) in self.bases.iter().zip(&mut self.pages) {
            if let Ok(at) = bases.binary_search(base) {
                pages[at] = std::mem::take(old);
            }
        }
        self.pages = pages;
        self.leave(memory);
    }

    /// The launch itself has allocated: the place among all allocations.
    pub(crate) fn came(&mut self, at: usize) {
        self.pages.insert(at, Vec::new());
    }

    /// The launch itself has freed an allocation.
    pub(crate) fn went(&mut self, at: usize) {
        self.pages.remove(at);
    }

    /// Notes an access to `bytes` bytes at `offset` of an allocation.
    #[inline(always)]
    pub(crate) fn touch(
        &mut self,
        allocation: usize,
        offset: usize,
        bytes: usize,
        how: How,
        me: &Party<'_>,
    ) -> Option<Conflict> {
        let line = offset / LINE;
        if !how.write
            && offset % LINE + bytes <= LINE
            && let Some(page) = self.pages[allocation].get(line / PAGE)
            && page.settled >> (line % PAGE) & 1 != 0
        {
            return None;
        }
        self.note(allocation, offset, bytes, how, me)
    }

    /// Notes an access that has been reported, so that it is not reported again.
    #[cold]
    pub(crate) fn renew(&mut self, allocation: usize, offset: usize, bytes: usize, how: How, me: &Party<'_>) {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let (index, (stop, mask)) = (at / LINE, word_bytes(at, end));
            let pages = &mut self.pages[allocation];
            if pages.len() <= index / PAGE {
                pages.resize(index / PAGE + 1, Page::default());
            }
            let page = &mut pages[index / PAGE];
            page.settled &= !(1 << (index % PAGE));
            let lines = page.lines.get_or_insert_with(|| Box::new([Line::default(); PAGE]));
            let cell = lines[index % PAGE].word(at % LINE / 4, &mut self.parts, &mut self.readers);
            cell.renew(&mut self.readers, mask, how, me);
            at = stop;
        }
    }

    /// Shows what has been done with each word, or with a line whose words have one history, ascending:
    /// allocation, offsets and the access. `released` is what the launch has released to others.
    pub(crate) fn touched(&mut self, released: &Clock, mut see: impl FnMut(usize, Range<usize>, Seen)) {
        let GlobalShadow { pages, parts, readers, .. } = self;
        for (allocation, pages) in pages.iter_mut().enumerate() {
            for (at, page) in pages.iter_mut().enumerate() {
                let Some(lines) = &mut page.lines else { continue };
                for (line, cells) in lines.iter_mut().enumerate() {
                    let offset = (at * PAGE + line) * LINE;
                    let cells = cells.all(parts);
                    let bytes = if cells.len() == 1 { LINE } else { 4 };
                    let mut range = offset..offset + bytes;
                    for cell in cells {
                        let [write, read] = cell.touched(readers, released);
                        if let Some(seen) = write {
                            see(allocation, range.clone(), seen);
                        }
                        if let Some(seen) = read {
                            see(allocation, range.clone(), seen);
                        }
                        range = range.end..range.end + bytes;
                    }
                }
            }
        }
    }

    /// The warp whose write to some of these bytes the asynchronous proxy may not see.
    pub(crate) fn hidden_write(
        &mut self,
        allocation: usize,
        offset: usize,
        bytes: usize,
        me: &Party<'_>,
    ) -> Option<u16> {
        self.written(allocation, offset, bytes, |cell, mask| cell.hidden_write(Fenced::Global, mask, me))
    }

    /// The asynchronous proxy has just written these bytes.
    pub(crate) fn wrote_async(&mut self, allocation: usize, offset: usize, bytes: usize) {
        let _: Option<()> = self.written(allocation, offset, bytes, |cell, _| {
            cell.wrote_async();
            None
        });
    }

    /// Shows the words of a range that has been touched, with masks of their bytes, until there is an answer.
    fn written<T>(
        &mut self,
        allocation: usize,
        offset: usize,
        bytes: usize,
        mut see: impl FnMut(&mut Cell, u8) -> Option<T>,
    ) -> Option<T> {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let (index, (stop, mask)) = (at / LINE, word_bytes(at, end));
            let lines = self.pages[allocation].get_mut(index / PAGE).and_then(|page| page.lines.as_mut());
            if let Some(lines) = lines {
                let cells = lines[index % PAGE].all(&mut self.parts);
                let word = if cells.len() == 1 { 0 } else { at % LINE / 4 };
                if let Some(answer) = see(&mut cells[word], mask) {
                    return Some(answer);
                }
            }
            at = stop;
        }
        None
    }

    #[inline(never)]
    fn note(
        &mut self,
        allocation: usize,
        offset: usize,
        bytes: usize,
        how: How,
        me: &Party<'_>,
    ) -> Option<Conflict> {
        let pages = &mut self.pages[allocation];
        let last = (offset + bytes) / LINE / PAGE;
        if pages.len() <= last {
            pages.resize(last + 1, Page::default());
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let index = at / LINE;
            let (page, bit) = (&mut pages[index / PAGE], 1 << (index % PAGE));
            if how.write {
                page.settled &= !bit;
            }
            let lines = page.lines.get_or_insert_with(|| Box::new([Line::default(); PAGE]));
            let line = &mut lines[index % PAGE];
            if at.is_multiple_of(LINE) && end - at >= LINE {
                for cell in line.all(&mut self.parts) {
                    if let Some(conflict) = cell.touch(&mut self.readers, 15, how, me) {
                        return Some(conflict);
                    }
                }
                line.join(&mut self.parts);
                if line.apart == 0 && line.one.is_settled() {
                    page.settled |= bit;
                }
                at += LINE;
                continue;
            }
            let (stop, mask) = word_bytes(at, end);
            let cell = line.word(at % LINE / 4, &mut self.parts, &mut self.readers);
            if let Some(conflict) = cell.touch(&mut self.readers, mask, how, me) {
                return Some(conflict);
            }
            at = stop;
        }
        None
    }
}
