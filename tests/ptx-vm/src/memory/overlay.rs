//! What one thread has written and read while blocks of a launch run side by side.
//!
//! The threads see the memory as it was when they started, each with its own writes on top. When all are
//! done, the overlays are compared: if none touched what another wrote, the writes go into the memory, and
//! the outcome is that of any order. If one did, the overlays are thrown away; nothing has happened. So
//! no order of threads ever shows in a result.

use super::Memory;

/// Bytes of a page.
const PAGE: usize = 1024;
/// Words of a set of its bytes.
const WORDS: usize = PAGE / 64;

/// A page that was touched.
#[derive(Debug)]
struct Page {
    /// The bytes, once one was written.
    data: Option<Box<[u8; PAGE]>>,
    written: [u64; WORDS],
    read: [u64; WORDS],
}

/// The pages of all allocations.
#[derive(Debug)]
pub(crate) struct Overlay {
    pages: Vec<Vec<Option<Box<Page>>>>,
}

/// Walks over `start .. start + count` as `(page, range in the page)`.
fn pieces(start: usize, count: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let end = start + count;
    (start / PAGE..end.div_ceil(PAGE))
        .map(move |page| (page, start.max(page * PAGE) % PAGE..(end - page * PAGE).min(PAGE)))
}

/// Adds a range of bytes to a set.
#[inline(always)]
fn add(set: &mut [u64; WORDS], range: &std::ops::Range<usize>) {
    let (mut at, end) = (range.start, range.end);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        set[at / 64] |= (!0u64 >> (64 - n)) << (at % 64);
        at += n;
    }
}

impl Overlay {
    /// Nothing touched, over so many allocations.
    pub(crate) fn new(allocations: usize) -> Self {
        Overlay { pages: (0..allocations).map(|_| Vec::new()).collect() }
    }

    #[inline(always)]
    fn page(&mut self, allocation: usize, at: usize) -> &mut Page {
        let pages = &mut self.pages[allocation];
        if pages.len() <= at {
            pages.resize_with(at + 1, || None);
        }
        pages[at].get_or_insert_with(|| Box::new(Page { data: None, written: [0; WORDS], read: [0; WORDS] }))
    }

    /// Reads bytes of an allocation.
    #[inline]
    pub(crate) fn read(&mut self, base: &Memory, allocation: usize, offset: usize, out: &mut [u8]) {
        let mut done = 0;
        for (at, range) in pieces(offset, out.len()) {
            let page = self.page(allocation, at);
            add(&mut page.read, &range);
            let out = &mut out[done..done + range.len()];
            done += range.len();
            match &page.data {
                Some(data) => out.copy_from_slice(&data[range]),
                None => {
                    let from = at * PAGE + range.start;
                    out.copy_from_slice(&base.at(allocation).data()[from..from + range.len()]);
                }
            }
        }
    }

    /// Writes bytes of an allocation.
    #[inline]
    pub(crate) fn write(&mut self, base: &Memory, allocation: usize, offset: usize, from: &[u8]) {
        let mut done = 0;
        for (at, range) in pieces(offset, from.len()) {
            let page = self.page(allocation, at);
            add(&mut page.written, &range);
            let data = page.data.get_or_insert_with(|| {
                let old = base.at(allocation).data();
                let old = &old[at * PAGE..old.len().min((at + 1) * PAGE)];
                let mut data = Box::new([0; PAGE]);
                data[..old.len()].copy_from_slice(old);
                data
            });
            let count = range.len();
            data[range].copy_from_slice(&from[done..done + count]);
            done += count;
        }
    }

    /// The first byte of a range that neither the memory nor this overlay has written.
    pub(crate) fn first_missing(
        &self,
        base: &Memory,
        allocation: usize,
        offset: usize,
        count: usize,
    ) -> Option<usize> {
        base.at(allocation).written().first_missing(offset, count)?;
        let written = |i: usize| {
            let page = self.pages[allocation].get(i / PAGE).and_then(Option::as_ref);
            base.at(allocation).written().get(i)
                || page.is_some_and(|p| p.written[i % PAGE / 64] >> (i % 64) & 1 != 0)
        };
        (offset..offset + count).find(|&i| !written(i))
    }

    /// Whether one of the two has touched what the other has written.
    pub(crate) fn clashes(&self, other: &Overlay) -> bool {
        self.pages.iter().zip(&other.pages).any(|(mine, theirs)| {
            mine.iter().zip(theirs).any(|pair| {
                let (Some(a), Some(b)) = pair else { return false };
                (0..WORDS)
                    .any(|i| a.written[i] & (b.written[i] | b.read[i]) != 0 || b.written[i] & a.read[i] != 0)
            })
        })
    }

    /// Puts the writes into the memory.
    pub(crate) fn settle(&self, memory: &mut Memory) {
        for (allocation, pages) in self.pages.iter().enumerate() {
            for (at, page) in pages.iter().enumerate() {
                let Some((page, data)) = page.as_ref().and_then(|p| Some((p, p.data.as_ref()?))) else {
                    continue;
                };
                let (bytes, written) = memory.at_mut(allocation).parts_mut();
                for (word, &set) in page.written.iter().enumerate() {
                    let mut set = set;
                    while set != 0 {
                        let first = set.trailing_zeros() as usize;
                        let count = (!(set >> first)).trailing_zeros().min(64 - first as u32) as usize;
                        let inside = word * 64 + first;
                        let to = at * PAGE + inside;
                        bytes[to..to + count].copy_from_slice(&data[inside..inside + count]);
                        written.set(to, count);
                        set &= !((!0u64 >> (64 - count)) << first);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_seen_by_their_writer_and_settle_byte_by_byte() {
        let mut memory = Memory::new();
        let a = memory.allocate(0, 3000).unwrap();
        memory.write(a, &[7; 2000]).unwrap();
        let (mut x, mut y) = (Overlay::new(1), Overlay::new(1));
        x.write(&memory, 0, 1020, &[1; 10]);
        y.write(&memory, 0, 1030, &[2; 970]);
        y.write(&memory, 0, 2990, &[3; 10]);
        let mut seen = [0; 14];
        x.read(&memory, 0, 1018, &mut seen);
        assert_eq!(seen, [7, 7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7]);
        assert!(x.clashes(&y) && y.clashes(&x), "x has read two bytes that y has written");
        assert_eq!(y.first_missing(&memory, 0, 2980, 20), Some(2980));
        assert_eq!(y.first_missing(&memory, 0, 2990, 10), None);
        let mut x = Overlay::new(1);
        x.write(&memory, 0, 1020, &[1; 10]);
        assert!(!x.clashes(&y) && !y.clashes(&x), "neighbours in a page, and no byte in common");
        x.settle(&mut memory);
        y.settle(&mut memory);
        let mut all = vec![0; 3000];
        memory.read(a, &mut all).unwrap();
        let want = |i: usize| match i {
            1020..1030 => 1,
            1030..2000 => 2,
            2990..3000 => 3,
            0..2000 => 7,
            _ => 0xff,
        };
        assert!(all.iter().enumerate().all(|(i, &b)| b == want(i)));
        let missing = memory.at(0).written().first_missing(0, 3000);
        assert_eq!(missing, Some(2000));
        let mut z = Overlay::new(1);
        z.write(&memory, 0, 1029, &[9]);
        assert!(z.clashes(&x) && !z.clashes(&y));
    }
}
