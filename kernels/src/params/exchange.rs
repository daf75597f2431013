//! Exchanges of ranks by memory that all reach: `cuda/exchange.cu`.

use crate::Launch;
use bytemuck::{Pod, Zeroable};

/// Most ranks.
pub const RANKS: usize = 8;
/// Blocks of a launch at most: few enough that all of them run at once.
pub const BLOCKS: u32 = 32;
/// Values of a block: a thread has four.
const EACH: u32 = 1024;
/// Bytes of a rank's flags.
pub const FLAG_BYTES: usize = 4 * RANKS * BLOCKS as usize;
/// Bytes of a rank's counts.
pub const COUNT_BYTES: usize = 4 * BLOCKS as usize;

/// Every entry.
pub const ENTRIES: [&str; 6] = [
    "exchange_reduce_w2",
    "exchange_reduce_w4",
    "exchange_reduce_w8",
    "exchange_shared_w4",
    "exchange_shared_w8",
    Gather::ENTRY,
];

/// For so many values: on all ranks the same.
fn launch(entry: &str, values: u32) -> Launch {
    let blocks = values.div_ceil(EACH).clamp(1, BLOCKS);
    Launch { entry: entry.into(), grid: [blocks, 1, 1], block: [256, 1, 1], shared_bytes: 0 }
}

/// A rank, and what it reaches of the others: zeros for ranks that are not there.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Peers {
    /// By rank: a buffer of two halves, 16-byte aligned.
    pub parts: [u64; RANKS],
    /// By rank: its flags, [`FLAG_BYTES`], zeros at first.
    pub flags: [u64; RANKS],
    /// This rank's counts, [`COUNT_BYTES`], zeros at first.
    pub counts: u64,
    /// A word that is set where a rank is missing.
    pub stop: u64,
    /// f32 values of a half, a multiple of 4.
    pub half: u32,
    /// This rank.
    pub rank: u32,
    /// Ranks: 2, 4 or 8.
    pub world: u32,
    /// Zero.
    pub reserved: u32,
}

/// `x = sum over ranks of x`, by the tree of ranks.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Reduce {
    /// `[count]` f32, read and written.
    pub x: u64,
    /// Values, at most a half.
    pub count: u32,
    /// 1: this rank adds zeros, whatever stands in x.
    pub adds_nothing: u32,
    /// The ranks.
    pub peers: Peers,
}

impl Reduce {
    /// Values from which on every rank sums a part of them, and reads the other sums: a second round of flags
    /// takes as long as some 0.8 MB between devices. All ranks choose by it, and so the same.
    pub const fn shared_from(world: u32) -> u32 {
        match world {
            2 => u32::MAX,
            4 => 1 << 17,
            _ => 1 << 15,
        }
    }

    /// The entry for so many ranks and values.
    pub const fn entry(world: u32, count: u32) -> &'static str {
        match (world, count < Self::shared_from(world)) {
            (2, _) => ENTRIES[0],
            (4, true) => ENTRIES[1],
            (4, false) => ENTRIES[3],
            (_, true) => ENTRIES[2],
            (_, false) => ENTRIES[4],
        }
    }

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::entry(self.peers.world, self.count), self.count)
    }
}

/// Gives every rank the columns of all: x `[rows, cols]`, of which rank `r` has written those from `first[r]`
/// on, `width[r]` of them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Gather {
    /// `[rows, cols]` f32, read and written.
    pub x: u64,
    /// Rows; as many as fit into a half by the widest rank.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// First column, by rank.
    pub first: [u32; RANKS],
    /// Columns, by rank.
    pub width: [u32; RANKS],
    /// The ranks.
    pub peers: Peers,
}

impl Gather {
    /// The entry.
    pub const ENTRY: &'static str = "exchange_gather";

    /// One launch.
    pub fn launch(&self) -> Launch {
        launch(Self::ENTRY, self.rows * self.width.into_iter().max().unwrap_or(0))
    }
}
