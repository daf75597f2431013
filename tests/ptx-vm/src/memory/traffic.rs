//! How many bytes kernels moved, and where: counters for each 32-byte sector of global memory.
//!
//! Counted are loads, stores, atomics and asynchronous copies of kernels; not what the host copies. A launch
//! counts into a [`Counters`] of its own; they are added to the memory's when it ends, so a range can be
//! asked about later, even when it has been freed (addresses are never used again). What is *not* here:
//! caches. A sector that two warps read counts twice in [`Moved::transferred`] and once in
//! [`Moved::distinct`]; what a GPU fetches from its memory lies between the two.

use std::collections::HashMap;

/// Bytes of a sector: what a GPU moves at least.
pub const SECTOR: u64 = 32;
/// Sectors of a page of counters.
const PAGE: u64 = 256;

/// Bytes moved in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// What the lanes asked for: lanes times the width of their access. 32 lanes that read one float ask for
    /// 128 bytes.
    pub requested: u64,
    /// Sectors that each warp instruction touched, 32 bytes each: the traffic of a GPU without caches.
    pub transferred: u64,
    /// Sectors touched at all, 32 bytes each: the traffic of a GPU with caches that never miss twice.
    pub distinct: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, other: Moved) {
        self.requested += other.requested;
        self.transferred += other.transferred;
        self.distinct += other.distinct;
    }
}

/// Bytes that kernels moved from and to global memory. An atomic counts in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// From memory.
    pub read: Moved,
    /// To memory.
    pub written: Moved,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.read += other.read;
        self.written += other.written;
    }
}

/// One sector in one direction.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requested: u64,
    times: u32,
    /// The last instruction that touched it.
    stamp: u32,
}

impl Count {
    fn moved(self) -> Moved {
        Moved {
            requested: self.requested,
            transferred: u64::from(self.times) * SECTOR,
            distinct: u64::from(self.times > 0) * SECTOR,
        }
    }
}

/// Reads and writes of each sector of a page.
type Page = Box<[[Count; 2]; PAGE as usize]>;

/// Counters of the sectors that were touched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pages: HashMap<u64, Page>,
    stamp: u32,
}

impl Counters {
    /// The next access belongs to another warp instruction.
    pub(crate) fn next(&mut self) {
        // After 2^32 instructions a sector might be taken for touched: once in so many is no matter.
        self.stamp = self.stamp.wrapping_add(1).max(1);
    }

    /// Notes that a lane moved `bytes` bytes at an address.
    pub(crate) fn note(&mut self, address: u64, bytes: u64, write: bool) {
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let sector = at / SECTOR;
            let stop = end.min((sector + 1) * SECTOR);
            let page = self.pages.entry(sector / PAGE).or_insert_with(empty);
            let count = &mut page[(sector % PAGE) as usize][usize::from(write)];
            count.requested += stop - at;
            if count.stamp != self.stamp {
                count.stamp = self.stamp;
                count.times = count.times.saturating_add(1);
            }
            at = stop;
        }
    }

    /// Adds other counters to these.
    pub(crate) fn add(&mut self, other: &Counters) {
        for (at, page) in &other.pages {
            let mine = self.pages.entry(*at).or_insert_with(empty);
            for (mine, other) in mine.as_flattened_mut().iter_mut().zip(page.as_flattened()) {
                mine.requested += other.requested;
                mine.times = mine.times.saturating_add(other.times);
            }
        }
    }

    /// All sectors together.
    pub(crate) fn total(&self) -> Traffic {
        self.pages.values().fold(Traffic::default(), |sum, page| self.sum(sum, &page[..]))
    }

    /// The sectors that a range touches.
    pub(crate) fn range(&self, address: u64, bytes: u64) -> Traffic {
        let (first, end) = (address / SECTOR, address.saturating_add(bytes).div_ceil(SECTOR));
        let mut sum = Traffic::default();
        for (&at, page) in &self.pages {
            let start = at * PAGE;
            if bytes > 0 && start < end && first < start + PAGE {
                let inside = first.max(start) - start..end.min(start + PAGE) - start;
                sum = self.sum(sum, &page[inside.start as usize..inside.end as usize]);
            }
        }
        sum
    }

    fn sum(&self, mut sum: Traffic, sectors: &[[Count; 2]]) -> Traffic {
        for [read, written] in sectors {
            sum += Traffic { read: read.moved(), written: written.moved() };
        }
        sum
    }
}

fn empty() -> Page {
    Box::new([[Count::default(); 2]; PAGE as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_one_instruction_share_a_sector_and_ranges_are_excluded() {
        let mut c = Counters::default();
        let base = PAGE * SECTOR - 64;
        for instruction in 0..2 {
            c.next();
            (0..32).for_each(|lane| c.note(base + lane * 4, 4, false));
            (0..32).for_each(|_| c.note(base + 8, 4, instruction == 1));
        }
        let read = Moved { requested: 2 * 128 + 128, transferred: 2 * 128, distinct: 128 };
        let written = Moved { requested: 128, transferred: 32, distinct: 32 };
        assert_eq!(c.total(), Traffic { read, written });
        assert_eq!(c.range(base, 128), c.total());
        let half = c.range(base + 64, 64).read;
        assert_eq!(half, Moved { requested: 128, transferred: 128, distinct: 64 });
        assert_eq!(c.range(base + 128, u64::MAX), Traffic::default());
        assert_eq!(c.range(base, 0), Traffic::default());
        let mut twice = c.clone();
        twice.add(&c);
        assert_eq!(twice.total().read, Moved { requested: 768, transferred: 512, distinct: 128 });
    }

    #[test]
    fn an_access_across_sectors_counts_in_both() {
        let mut c = Counters::default();
        c.next();
        c.note(SECTOR - 8, 16, true);
        assert_eq!(c.total().written, Moved { requested: 16, transferred: 64, distinct: 64 });
        assert_eq!(c.range(0, 1).written.requested, 8);
    }
}
