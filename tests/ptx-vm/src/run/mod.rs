//! The machine at work: blocks, warps, their order, and what is shared between them.
//!
//! * [`grid`] holds what all blocks share: device memory with its shadow, the flags that order blocks, the
//!   counters.
//! * [`cluster`] holds what the blocks of a cluster share: their shared memories, barriers, asynchronous
//!   copies.
//! * [`warp`] is 32 lanes with their registers and divergent groups; [`step`] executes one instruction.
//! * [`parallel`] spreads independent blocks over threads.
//! * [`schedule`] decides who runs next, when asynchronous work lands, and when nothing can go on.

pub(crate) mod cluster;
pub(crate) mod flight;
pub(crate) mod grid;
pub(crate) mod parallel;
pub(crate) mod schedule;
pub(crate) mod step;
pub(crate) mod warp;

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
}

impl Stop {
    #[cold]
    pub(crate) fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        Stop(Box::new(Reason { kind, detail: detail.into(), lane: None }))
    }

    #[cold]
    pub(crate) fn at(mut self, lane: u32) -> Self {
        self.0.lane.get_or_insert(lane);
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
