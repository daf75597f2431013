//! The heap that kernels allocate from: what `malloc` has given, what `free` has taken back, and where.
//!
//! Each block is an allocation of its own, so that what lies behind its end, and whether it is gone, is known
//! as of any other. A block ends where the kernel said, not at the next multiple of the heap's grain.

use std::collections::BTreeMap;

use super::{Memory, REMEMBERED};

/// What blocks are a multiple of, in size and address; the address is not one of twice as much, so that
/// nothing rests on luck.
const GRAIN: u64 = 16;

/// A device, and the number of the heap on it.
pub(crate) type HeapKey = (u32, u64);

/// A block that is in use.
struct Block {
    heap: HeapKey,
    counted: u64,
    /// The call that gave it.
    place: Box<str>,
}

/// The blocks of all heaps, by their first address.
#[derive(Default)]
pub(super) struct Heaps {
    live: BTreeMap<u64, Block>,
    /// The calls that took blocks back.
    freed: BTreeMap<u64, Box<str>>,
    used: BTreeMap<HeapKey, u64>,
}

impl Heaps {
    /// Where a block came from, for messages about its neighbourhood.
    pub(super) fn origin(&self, base: u64) -> String {
        self.live.get(&base).map(|b| format!(", which `malloc` gave at {}", b.place)).unwrap_or_default()
    }

    /// Where a block that is gone was freed.
    pub(super) fn end(&self, base: u64) -> String {
        self.freed.get(&base).map(|place| format!(" at {place}")).unwrap_or_default()
    }
}

impl Memory {
    /// Gives a kernel unwritten memory; none where the heap, which has `limit` bytes, or its device is full.
    pub(crate) fn malloc(&mut self, heap: HeapKey, bytes: u64, limit: u64, place: String) -> Option<u64> {
        let counted = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let used = self.heaps.used.get(&heap).copied().unwrap_or(0).checked_add(counted)?;
        if used > limit {
            return None;
        }
        let address = self.allocate_behind(heap.0, bytes, GRAIN).ok()?;
        self.heaps.used.insert(heap, used);
        self.heaps.live.insert(address, Block { heap, counted, place: place.into() });
        Some(address)
    }

    /// The bytes of the block that `free` may take back; else what is wrong with the pointer.
    pub(crate) fn block(&self, heap: HeapKey, address: u64) -> Result<u64, String> {
        let Heaps { live, freed, .. } = &self.heaps;
        let pointer = format!("`free` of {address:#x}");
        if let Some(place) = freed.get(&address) {
            return Err(format!("{pointer}, which was freed already at {place}"));
        }
        let at = self.find(address, 0).map(|at| self.at(at)).filter(|a| address < a.base + a.bytes.max(1));
        let owner = at.and_then(|a| live.get(&a.base));
        match (at, owner) {
            (Some(a), Some(block)) if a.base != address => Err(format!(
                "{pointer}, which is {} bytes behind the start of a block of {} bytes that `malloc` gave at {}",
                address - a.base,
                a.bytes,
                block.place
            )),
            (Some(_), Some(block)) if block.heap != heap => Err(format!(
                "{pointer}, which belongs to the heap of another context or device: `malloc` gave it at {}",
                block.place
            )),
            (Some(a), Some(_)) => Ok(a.bytes),
            (Some(_), None) => Err(format!("{pointer}, which is memory that no `malloc` of a kernel gave")),
            (None, _) => Err(format!("{pointer}, which no `malloc` gave{}", self.about(address))),
        }
    }

    /// Takes a block back; its place in the list of allocations.
    pub(crate) fn take_back(&mut self, address: u64, place: String) -> Option<usize> {
        let block = self.heaps.live.remove(&address)?;
        if let Some(used) = self.heaps.used.get_mut(&block.heap) {
            *used -= block.counted;
        }
        let at = self.index(address)?;
        // It is an allocation, and no longer one of the heap.
        let _ = self.free(address);
        self.heaps.freed.insert(address, place.into());
        if self.heaps.freed.len() > REMEMBERED {
            self.heaps.freed.pop_first();
        }
        Some(at)
    }

    /// The place of the allocation that starts at an address in the list of all.
    pub(crate) fn index(&self, base: u64) -> Option<usize> {
        self.allocations.binary_search_by_key(&base, |a| a.base).ok()
    }

    /// Whether an address lies in a block that a kernel's `malloc` gave: the host can reach none of them.
    pub fn in_heap(&self, address: u64) -> bool {
        let base = self.place(address).map(|place| place.base);
        base.is_some_and(|base| self.heaps.live.contains_key(&base))
    }

    /// Bytes in use in a heap of a device.
    pub fn heap_used(&self, device: u32, heap: u64) -> u64 {
        self.heaps.used.get(&(device, heap)).copied().unwrap_or(0)
    }

    /// Ends a heap with all blocks that are still in it; how many there were.
    pub fn drop_heap(&mut self, device: u32, heap: u64) -> usize {
        let own = |block: &&Block| block.heap == (device, heap);
        let all = self.heaps.live.iter().filter(|(_, block)| own(block)).map(|(&base, _)| base);
        let all: Vec<u64> = all.collect();
        for &base in &all {
            self.heaps.live.remove(&base);
            // It was an allocation until now.
            let _ = self.free(base);
        }
        self.heaps.used.remove(&(device, heap));
        all.len()
    }

    /// Whether the host may release an allocation or touch its bytes.
    pub(super) fn is_block(&self, base: u64) -> bool {
        self.heaps.live.contains_key(&base)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_gives_what_it_has_and_takes_back_what_it_gave() {
        let (mut m, heap) = (Memory::new(), (0, 7));
        let place = || "line 1".to_owned();
        let a = m.malloc(heap, 100, 256, place()).unwrap();
        let b = m.malloc(heap, 0, 256, place()).unwrap();
        assert!(a % GRAIN == 0 && a % (2 * GRAIN) != 0 && b > a);
        assert_eq!(m.heap_used(0, 7), 112 + 16);
        assert_eq!(m.malloc(heap, 129, 256, place()), None);
        assert_eq!(m.malloc(heap, u64::MAX, u64::MAX, place()), None);
        m.set_capacity(0, 104);
        assert_eq!(m.malloc((0, 8), 5, 256, place()), None, "the device is full");
        assert!(m.malloc((1, 7), 129, 256, place()).is_some(), "another device has a heap of its own");
        // The host has no business here.
        assert!(m.in_heap(a + 99) && !m.in_heap(a + 101));
        assert!(m.free(a).is_err() && m.write(a, &[1]).is_err() && m.mark_written(a, 4).is_err());
        assert_eq!(m.block(heap, a), Ok(100));
        assert!(m.block((0, 8), a).unwrap_err().contains("another context"));
        assert!(m.block(heap, a + 16).unwrap_err().contains("16 bytes behind the start"));
        m.take_back(a, "line 2".into()).unwrap();
        assert!(m.block(heap, a).unwrap_err().contains("freed already at line 2"));
        assert!(m.about(a + 4).contains("freed at line 2") && m.heap_used(0, 7) == 16);
        assert_eq!((m.drop_heap(0, 7), m.heap_used(0, 7), m.drop_heap(0, 7)), (1, 0, 0));
        assert!(m.is_released(a) && !m.in_heap(b));
    }
}
