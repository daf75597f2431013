//! The machine at work: blocks, warps, their order, and what is shared between them.
//!
//! * [`grid`] holds what all blocks share: device memory with its shadow, the flags that order blocks, the
//!   counters.
//! * `heap` is what kernels allocate and free.
//! * [`cluster`] holds what the blocks of a cluster share: their shared memories, barriers, asynchronous
//!   copies.
//! * [`notes`] holds the faults behind which a launch goes on.
//! * [`warp`] is 32 lanes with their registers and divergent groups; [`step`] executes one instruction.
//! * [`parallel`] spreads independent blocks over threads.
//! * [`company`] holds what launches share that are under way at once; [`aside`] is a launch that waits for
//!   another.
//! * [`schedule`] decides who runs next, when asynchronous work lands, and when nothing can go on; [`dice`]
//!   is its chance.

pub(crate) mod aside;
pub(crate) mod cluster;
pub(crate) mod company;
pub(crate) mod dice;
pub(crate) mod flight;
pub(crate) mod grid;
mod heap;
pub(crate) mod notes;
pub(crate) mod parallel;
pub(crate) mod schedule;
pub(crate) mod step;
pub(crate) mod warp;
pub(crate) mod workspace;

use crate::FaultKind;

pub(crate) use cluster::Cluster;
pub(crate) use grid::Grid;
pub(crate) use warp::Warp;

/// Why an instruction cannot be executed; becomes a [`Fault`](crate::Fault) where kernel, line and thread are
/// known.
///
/// In a box, so that the results of checks that pass are small.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Box<Reason>);

/// What a [`Stop`] says.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    pub(crate) kind: FaultKind,
    pub(crate) detail: String,
    /// The lane to blame, when it is one.
    pub(crate) lane: Option<u32>,
    /// The earlier instruction of a race, as an index into the program's lines.
    pub(crate) other: Option<u32>,
    /// Where in memory it happened, for what can be seen again from the other side.
    pub(crate) spot: Option<Spot>,
    /// Both parties of a race write.
    pub(crate) both_write: bool,
}

/// Some bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Cluster and rank of the block whose shared memory it is; none for global memory.
    pub(crate) shared: Option<(u32, u8)>,
    /// The first byte.
    pub(crate) start: u64,
    /// Their number.
    pub(crate) bytes: u64,
}

impl Spot {
    /// Whether the two have a byte in common.
    pub(crate) fn joins(&self, other: &Spot) -> bool {
        self.shared == other.shared
            && self.start < other.start + other.bytes
            && other.start < self.start + self.bytes
    }
}

impl Stop {
    #[cold]
    pub(crate) fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        let (lane, other, spot, both_write) = (None, None, None, false);
        Stop(Box::new(Reason { kind, detail: detail.into(), lane, other, spot, both_write }))
    }

    #[cold]
    pub(crate) fn at(mut self, lane: u32) -> Self {
        self.0.lane.get_or_insert(lane);
        self
    }

    /// In these bytes.
    #[cold]
    pub(crate) fn of(mut self, spot: Spot) -> Self {
        self.0.spot = Some(spot);
        self
    }

    /// A race with this instruction.
    #[cold]
    pub(crate) fn with(mut self, other: Option<u32>, both_write: bool) -> Self {
        (self.0.other, self.0.both_write) = (other, both_write);
        self
    }

    /// With other words.
    pub(crate) fn saying(mut self, detail: String) -> Self {
        self.0.detail = detail;
        self
    }

    pub(crate) fn reason(&self) -> &Reason {
        &self.0
    }
}

/// Result of work that a kernel's mistake can end.
pub(crate) type Done<T = ()> = Result<T, Stop>;

/// What happens after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// On to the next one.
    Next,
    /// The lanes of the mask go to the index, the others on.
    Branch(u32, u32),
    /// The lanes of the mask go to the index, the others execute this instruction again.
    Peel(u32, u32),
    /// The lanes of the mask end.
    Exit(u32),
    /// Lanes are missing: the group waits for them before this instruction.
    Missing,
    /// The group goes on later, others first (a failed poll, a sleep).
    Yield,
    /// The warp waits for others, after this instruction.
    Wait,
}

/// Everything one warp can reach while it runs.
pub(crate) struct Turn<'a, 'g> {
    pub(crate) grid: &'a mut Grid<'g>,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) warp: &'a mut Warp,
}

/// The lanes of a mask in ascending order.
pub(crate) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}
