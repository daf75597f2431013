//! Memory that sampled blocks run in: operands of real sizes that hold zeros, each with what it is to the
//! caches.
//!
//! Large operands take address space alone: the machine's memory is made by the system as it is touched, and
//! a sampled block touches its own part.

use ptx_vm::Memory;

/// What a launch was asked for that this memory cannot hold.
pub type Outcome<T> = Result<T, String>;

/// One operand of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// First address.
    pub address: u64,
    /// Bytes of address space.
    pub bytes: u64,
    /// Bytes of it that a step moves at least once: of keys and values those of all sequences, which share
    /// pages here.
    pub live: u64,
    /// Whether it comes from device memory: a weight, keys and values, or more than the L2 cache keeps
    /// between launches.
    pub cold: bool,
}

/// Operands up to this size are filled with zeros; larger ones are zero until written.
const FILLED: u64 = 16 << 20;
/// Most address space of all operands.
const CAPACITY: u64 = 1 << 40;

/// The memory and its operands.
pub struct Arena {
    /// What kernels see.
    pub memory: Memory,
    /// All operands, in the order in which they were made.
    pub operands: Vec<Operand>,
    /// Bytes above which an activation does not stay in the L2 cache.
    warm: u64,
}

impl Arena {
    /// Nothing yet; activations of more than `warm` bytes are read from device memory.
    pub fn new(warm: u64) -> Self {
        let mut memory = Memory::new();
        memory.set_capacity(0, CAPACITY);
        Self { memory, operands: Vec::new(), warm }
    }

    fn put(&mut self, bytes: u64, live: u64, cold: bool) -> Outcome<u64> {
        let address = self.memory.allocate(0, bytes).map_err(|e| e.to_string())?;
        if bytes <= FILLED {
            self.memory.write(address, &vec![0; bytes as usize]).map_err(|e| e.to_string())?;
        }
        self.operands.push(Operand { address, bytes, live, cold });
        Ok(address)
    }

    /// A weight: read from device memory.
    ///
    /// # Errors
    /// No room.
    pub fn weight(&mut self, bytes: u64) -> Outcome<u64> {
        self.put(bytes, bytes, true)
    }

    /// Keys or values in `bytes` of pages that stand for `live` bytes of all sequences.
    ///
    /// # Errors
    /// No room.
    pub fn pages(&mut self, bytes: u64, live: u64) -> Outcome<u64> {
        self.put(bytes, live, true)
    }

    /// An activation, which the launch before has just written.
    ///
    /// # Errors
    /// No room.
    pub fn activation(&mut self, bytes: u64) -> Outcome<u64> {
        self.put(bytes, bytes, bytes > self.warm)
    }

    /// Words of a table: numbers of pages, positions, bounds.
    ///
    /// # Errors
    /// No room.
    pub fn words(&mut self, words: &[u32]) -> Outcome<u64> {
        let address = self.put(words.len() as u64 * 4, words.len() as u64 * 4, false)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(address, &bytes).map_err(|e| e.to_string())?;
        Ok(address)
    }
}
