//! Device memory: the allocations of all virtual devices in one address space.
//!
//! Addresses are handed out in ascending order and never twice, with a gap between neighbours, so an access
//! after the end of an allocation or after its release can be distinguished from every other access, whatever
//! came later. Each byte has one bit that says whether anything has written it: host writes, fills, copies
//! and stores of kernels set it.
//!
//! Host memory can take part at its own address ([`Memory::map_host`]), as pinned memory does on a real
//! device. What is *not* here: the shadow that finds races (it lives as long as a launch) and shared memory
//! (as long as a block).

mod access;
mod bits;
pub(crate) mod clock;
pub(crate) mod flag;
pub(crate) mod global;
pub(crate) mod heap;
pub(crate) mod overlay;
mod printed;
pub(crate) mod shadow;
pub(crate) mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use crate::Error;
pub(crate) use bits::Bits;
pub use traffic::{Moved, SECTOR, Traffic};

/// The first device address.
pub const DEVICE_BASE: u64 = 0x3000_0000_0000;
/// The distance between the end of an allocation and the next.
const GAP: u64 = 512;
/// The alignment of allocations.
const ALIGN: u64 = 256;
/// New allocations up to this size are filled with [`POISON`]; larger ones are zero until written.
const POISON_LIMIT: u64 = 16 << 20;
/// What unwritten bytes hold: a NaN in every floating-point format.
const POISON: u8 = 0xFF;
/// How many released allocations are remembered by name; older ones are plain out of bounds.
const REMEMBERED: usize = 4096;
/// What a device holds when nothing else is said.
const CAPACITY: u64 = 8 << 30;

enum Bytes {
    Owned(Vec<u8>),
    Host { pointer: *mut u8, bytes: usize },
}

// SAFETY: whoever maps host memory promises (see `Memory::map_host`) that it is reachable and unaliased from
// whichever thread uses the `Memory`.
unsafe impl Send for Bytes {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Owned(v) => v,
            // SAFETY: `map_host`'s caller promised a valid range for as long as it is mapped.
            Bytes::Host { pointer, bytes } => unsafe { std::slice::from_raw_parts(*pointer, *bytes) },
        }
    }

    fn get_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Owned(v) => v,
            // SAFETY: as in `get`; `&mut self` gives exclusive access through this memory.
            Bytes::Host { pointer, bytes } => unsafe { std::slice::from_raw_parts_mut(*pointer, *bytes) },
        }
    }
}

/// A live allocation.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) device: Option<u32>,
    pub(crate) constant: bool,
    data: Bytes,
    written: Bits,
}

impl Allocation {
    pub(crate) fn data(&self) -> &[u8] {
        self.data.get()
    }

    pub(crate) fn written(&self) -> &Bits {
        &self.written
    }

    /// Data and written bits at once.
    pub(crate) fn parts_mut(&mut self) -> (&mut [u8], &mut Bits) {
        (self.data.get_mut(), &mut self.written)
    }
}

/// Where an address lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The first address of the allocation.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The virtual device, or none for mapped host memory.
    pub device: Option<u32>,
}

/// The memory of all virtual devices.
pub struct Memory {
    /// Ascending by base, disjoint.
    allocations: Vec<Allocation>,
    /// Released ranges: base -> bytes.
    released: BTreeMap<u64, u64>,
    next: u64,
    capacity: BTreeMap<u32, u64>,
    used: BTreeMap<u32, u64>,
    peers: BTreeSet<(u32, u32)>,
    traffic: traffic::Counters,
    printed: printed::Printed,
    /// What kernels have allocated themselves.
    heaps: heap::Heaps,
    /// Counts changes of the list of allocations.
    generation: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty memory; every device has 8 GiB until [`Memory::set_capacity`] says otherwise.
    pub fn new() -> Self {
        Memory {
            allocations: Vec::new(),
            released: BTreeMap::new(),
            next: DEVICE_BASE,
            capacity: BTreeMap::new(),
            used: BTreeMap::new(),
            peers: BTreeSet::new(),
            traffic: traffic::Counters::default(),
            printed: printed::Printed::default(),
            heaps: heap::Heaps::default(),
            generation: 0,
        }
    }

    /// Sets a device's memory in bytes.
    pub fn set_capacity(&mut self, device: u32, bytes: u64) {
        self.capacity.insert(device, bytes);
    }

    /// A device's memory in bytes.
    pub fn capacity(&self, device: u32) -> u64 {
        self.capacity.get(&device).copied().unwrap_or(CAPACITY)
    }

    /// Bytes allocated on a device.
    pub fn used(&self, device: u32) -> u64 {
        self.used.get(&device).copied().unwrap_or(0)
    }

    /// Allocates unwritten memory, aligned to 256 bytes. Zero bytes give an address that must not be touched.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn allocate(&mut self, device: u32, bytes: u64) -> Result<u64, Error> {
        self.allocate_behind(device, bytes, 0)
    }

    /// The same, so many bytes behind a multiple of 256.
    fn allocate_behind(&mut self, device: u32, bytes: u64, behind: u64) -> Result<u64, Error> {
        let (capacity, used) = (self.capacity(device), self.used(device));
        let left = capacity.saturating_sub(used);
        if bytes > left {
            return Err(Error::OutOfMemory { device, bytes, left, capacity });
        }
        let base = self.next + behind;
        self.next = (base + bytes + GAP).next_multiple_of(ALIGN);
        let fill = if bytes <= POISON_LIMIT { POISON } else { 0 };
        let data = Bytes::Owned(vec![fill; bytes as usize]);
        let written = Bits::new(bytes as usize);
        self.insert(Allocation { base, bytes, device: Some(device), constant: false, data, written });
        *self.used.entry(device).or_default() += bytes;
        Ok(base)
    }

    fn insert(&mut self, allocation: Allocation) {
        let at = self.allocations.partition_point(|a| a.base < allocation.base);
        self.allocations.insert(at, allocation);
        self.generation += 1;
    }

    /// Forbids kernels to write an allocation (constant memory).
    pub(crate) fn set_constant(&mut self, base: u64) {
        if let Some(a) = self.allocations.iter_mut().find(|a| a.base == base) {
            a.constant = true;
        }
    }

    /// Releases an allocation by its first address. Its addresses are never used again.
    ///
    /// # Errors
    /// [`Error::Address`] when no live allocation of a device starts there, or a kernel's `malloc` gave it.
    pub fn free(&mut self, address: u64) -> Result<(), Error> {
        let at = self.index(address).filter(|_| !self.is_block(address));
        let Some((at, device)) = at.and_then(|at| Some((at, self.allocations[at].device?))) else {
            return Err(Error::Address { address, bytes: 0, detail: self.about(address) });
        };
        let gone = self.allocations.remove(at);
        self.generation += 1;
        if let Some(used) = self.used.get_mut(&device) {
            *used -= gone.bytes;
        }
        self.released.insert(gone.base, gone.bytes);
        if self.released.len() > REMEMBERED {
            self.released.pop_first();
        }
        Ok(())
    }

    /// Makes host memory part of the address space, at its own address; its bytes count as written.
    ///
    /// # Safety
    /// `pointer .. pointer + bytes` must stay valid, and must not be read or written by others while a method
    /// of this memory or a launch runs, until [`Memory::unmap_host`].
    ///
    /// # Errors
    /// [`Error::Argument`] when the range overlaps another one.
    pub unsafe fn map_host(&mut self, pointer: *mut u8, bytes: usize) -> Result<u64, Error> {
        let base = pointer as u64;
        let end = base + bytes as u64;
        if self.allocations.iter().any(|a| a.base < end && base < a.base + a.bytes) || end > u64::MAX - GAP {
            return Err(Error::Argument(format!("host range {base:#x} ({bytes} bytes) is mapped already")));
        }
        let mut written = Bits::new(bytes);
        written.set(0, bytes);
        self.released.remove(&base);
        let data = Bytes::Host { pointer, bytes };
        self.insert(Allocation { base, bytes: bytes as u64, device: None, constant: false, data, written });
        Ok(base)
    }

    /// Takes host memory out of the address space.
    ///
    /// # Errors
    /// [`Error::Address`] when no mapped range starts there.
    pub fn unmap_host(&mut self, address: u64) -> Result<(), Error> {
        match self.allocations.binary_search_by_key(&address, |a| a.base) {
            Ok(at) if self.allocations[at].device.is_none() => {
                self.allocations.remove(at);
                self.generation += 1;
                Ok(())
            }
            _ => Err(Error::Address { address, bytes: 0, detail: self.about(address) }),
        }
    }

    /// Lets kernels of `from` touch memory of `to`.
    pub fn enable_peer(&mut self, from: u32, to: u32) {
        self.peers.insert((from, to));
    }

    /// Takes that permission back.
    pub fn disable_peer(&mut self, from: u32, to: u32) {
        self.peers.remove(&(from, to));
    }

    /// Whether kernels of `from` may touch memory of `to`.
    pub fn peer(&self, from: u32, to: u32) -> bool {
        from == to || self.peers.contains(&(from, to))
    }

    /// The live allocation that holds an address.
    pub fn place(&self, address: u64) -> Option<Place> {
        let at = self.find(address, 1).or_else(|| self.find(address, 0))?;
        let a = &self.allocations[at];
        Some(Place { base: a.base, bytes: a.bytes, device: a.device })
    }

    /// Index of the allocation that holds `bytes` bytes at `address`.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<usize> {
        let at = self.allocations.partition_point(|a| a.base <= address).checked_sub(1)?;
        let a = &self.allocations[at];
        (address - a.base <= a.bytes && bytes <= a.bytes - (address - a.base)).then_some(at)
    }

    pub(crate) fn at(&self, index: usize) -> &Allocation {
        &self.allocations[index]
    }

    pub(crate) fn at_mut(&mut self, index: usize) -> &mut Allocation {
        &mut self.allocations[index]
    }

    pub(crate) fn count(&self) -> usize {
        self.allocations.len()
    }

    /// Another number whenever an allocation has come or gone.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The first addresses of all allocations, ascending.
    pub(crate) fn bases(&self) -> Vec<u64> {
        self.allocations.iter().map(|a| a.base).collect()
    }

    /// Whether the address lies in a released allocation.
    pub(crate) fn is_released(&self, address: u64) -> bool {
        self.released_at(address).is_some()
    }

    /// The first address of the released allocation that holds an address.
    fn released_at(&self, address: u64) -> Option<u64> {
        let (base, bytes) = self.released.range(..=address).next_back()?;
        (address < base + bytes).then_some(*base)
    }

    /// What there is to say of an address that is no good.
    pub(crate) fn about(&self, address: u64) -> String {
        if let Some(base) = self.released_at(address) {
            return format!("; it lies in an allocation that has been freed{}", self.heaps.end(base));
        }
        let at = self.allocations.partition_point(|a| a.base <= address);
        match at.checked_sub(1).map(|at| &self.allocations[at]) {
            Some(a) if address - a.base < a.bytes + (1 << 20) => format!(
                "; the nearest allocation below has {} bytes at {:#x}{}, so this is {} bytes behind its start",
                a.bytes,
                a.base,
                self.heaps.origin(a.base),
                address - a.base
            ),
            _ => String::new(),
        }
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(usize, std::ops::Range<usize>), Error> {
        let bad = |detail| Error::Address { address, bytes, detail };
        let at = self.find(address, bytes).ok_or_else(|| bad(self.about(address)))?;
        let base = self.allocations[at].base;
        if self.is_block(base) {
            let from = self.heaps.origin(base);
            return Err(bad(format!("; the host cannot reach a block{from}")));
        }
        let start = (address - base) as usize;
        Ok((at, start..start + bytes as usize))
    }

    /// Copies device memory to the host (unwritten bytes too).
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Error> {
        let (at, range) = self.range(address, to.len() as u64)?;
        to.copy_from_slice(&self.allocations[at].data()[range]);
        Ok(())
    }

    /// Copies host memory to the device.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Error> {
        let (at, range) = self.range(address, from.len() as u64)?;
        let (data, written) = self.allocations[at].parts_mut();
        written.set(range.start, range.len());
        data[range].copy_from_slice(from);
        Ok(())
    }

    /// Fills device memory with a repeated pattern; `bytes` is a multiple of its length.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Argument`] for an empty pattern or a length that is no multiple of it.
    pub fn fill(&mut self, address: u64, bytes: u64, pattern: &[u8]) -> Result<(), Error> {
        if pattern.is_empty() || !bytes.is_multiple_of(pattern.len() as u64) {
            return Err(Error::Argument(format!(
                "{bytes} bytes cannot be filled with a pattern of {}",
                pattern.len()
            )));
        }
        let (at, range) = self.range(address, bytes)?;
        let (data, written) = self.allocations[at].parts_mut();
        written.set(range.start, range.len());
        match pattern {
            [byte] => data[range].fill(*byte),
            _ => data[range].chunks_exact_mut(pattern.len()).for_each(|c| c.copy_from_slice(pattern)),
        }
        Ok(())
    }

    /// Copies within the address space, also between devices; unwritten bytes stay unwritten at the
    /// destination.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), Error> {
        let (source, range) = self.range(from, bytes)?;
        let (target, into) = self.range(to, bytes)?;
        let data = self.allocations[source].data()[range.clone()].to_vec();
        let bits: Vec<bool> = range.map(|i| self.allocations[source].written.get(i)).collect();
        let (out, written) = self.allocations[target].parts_mut();
        out[into.clone()].copy_from_slice(&data);
        if bits.iter().all(|&b| b) {
            written.set(into.start, into.len());
        } else {
            into.zip(bits).for_each(|(i, b)| written.put(i, b));
        }
        Ok(())
    }

    /// What kernels moved from and to a range, since the beginning or [`Memory::clear_traffic`], at the grain
    /// of 32 bytes; it is counted in launches with [`Options::count_traffic`](crate::Options::count_traffic).
    pub fn traffic(&self, address: u64, bytes: u64) -> Traffic {
        self.traffic.range(address, bytes)
    }

    /// Starts counting anew.
    pub fn clear_traffic(&mut self) {
        self.traffic = traffic::Counters::default();
    }

    /// Adds what a launch has counted.
    pub(crate) fn add_traffic(&mut self, counted: &traffic::Counters) {
        self.traffic.add(counted);
    }

    /// Declares bytes as written, whatever they hold.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn mark_written(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        let (at, range) = self.range(address, bytes)?;
        self.allocations[at].written.set(range.start, range.len());
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_released_addresses_never_come_back() {
        let mut m = Memory::new();
        let a = m.allocate(0, 100).unwrap();
        let b = m.allocate(1, 8).unwrap();
        assert!(b >= a + 100 + GAP && b.is_multiple_of(ALIGN));
        m.write(a + 4, &[1, 2, 3]).unwrap();
        let mut got = [0; 5];
        m.read(a + 3, &mut got).unwrap();
        assert_eq!(got, [POISON, 1, 2, 3, POISON]);
        m.copy(b, a + 3, 5).unwrap();
        m.read(b, &mut got).unwrap();
        assert_eq!(got, [POISON, 1, 2, 3, POISON]);
        let at = m.find(b, 8).unwrap();
        assert_eq!(
            (0..8).map(|i| m.at(at).written().get(i)).collect::<Vec<_>>(),
            [false, true, true, true, false, false, false, false]
        );
        assert!(m.write(a + 98, &[0; 3]).is_err());
        assert_eq!(m.used(0), 100);
        m.free(a).unwrap();
        assert!(m.is_released(a + 99) && !m.is_released(a + 100));
        assert!(m.free(a).is_err() && m.read(a, &mut got).is_err());
        assert!(m.allocate(0, 100).unwrap() > b);
        m.fill(b, 8, &[7, 8]).unwrap();
        assert!(m.fill(b, 3, &[7, 8]).is_err());
    }

    #[test]
    fn capacity_and_peers() {
        let mut m = Memory::new();
        m.set_capacity(0, 64);
        m.allocate(0, 60).unwrap();
        assert_eq!(m.allocate(0, 5), Err(Error::OutOfMemory { device: 0, bytes: 5, left: 4, capacity: 64 }));
        assert!(m.peer(1, 1) && !m.peer(1, 0));
        m.enable_peer(1, 0);
        assert!(m.peer(1, 0) && !m.peer(0, 1));
        m.disable_peer(1, 0);
        assert!(!m.peer(1, 0));
    }
}
