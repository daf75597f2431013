//! An access as the shadow sees it: who, how, and with whom it races.

use super::clock::Clock;
use super::flag::Scope;

/// Several lanes of one warp, as far as a cell remembers.
pub(super) const SEVERAL: u8 = 32;
/// All lanes at once, in a collective that the warp executes together.
pub(crate) const TOGETHER: u8 = 33;
/// An instruction too far behind in its kernel to be remembered.
pub(super) const FAR: u16 = u16::MAX;

/// Who accesses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Party<'a> {
    pub(crate) cluster: u32,
    pub(crate) warp: u16,
    pub(crate) lane: u8,
    /// The instruction, as an index into the program's lines.
    pub(crate) line: u32,
    pub(crate) clock: &'a Clock,
}

/// How it accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) write: bool,
    pub(crate) strong: bool,
    /// Of a strong access.
    pub(crate) scope: Scope,
}

impl How {
    pub(crate) const READ: How = How { write: false, strong: false, scope: Scope::System };
    pub(crate) const WRITE: How = How { write: true, ..How::READ };
    pub(crate) const ATOMIC: How = How { strong: true, ..How::WRITE };

    /// The marks of a write in a cell.
    #[inline(always)]
    pub(super) fn write_marks(self) -> u8 {
        if self.strong { 1 | (self.scope as u8) << 3 } else { 0 }
    }

    /// Those of a first read.
    #[inline(always)]
    pub(super) fn read_marks(self) -> u8 {
        if self.strong { 2 | (self.scope as u8) << 5 } else { 0 }
    }
}

/// What a launch has done with a word, as far as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Written (and perhaps read as well).
    pub(crate) write: bool,
    /// By strong accesses alone.
    pub(crate) strong: bool,
    /// After everything that the launch released to others.
    pub(crate) late: bool,
    /// The instruction.
    pub(crate) by: Option<u32>,
}

/// The other party of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The earlier access was a write.
    pub(crate) write: bool,
    pub(crate) cluster: u32,
    pub(crate) warp: u16,
    /// The lane, when it is known.
    pub(crate) lane: Option<u8>,
    /// Its instruction, when it is known, as an index into the program's lines.
    pub(crate) line: Option<u32>,
}

impl Conflict {
    pub(super) fn new(write: bool, cluster: u32, who: u16, line: u16) -> Self {
        let lane = (who & 63) as u8;
        let line = (line != FAR).then_some(u32::from(line));
        Conflict { write, cluster, warp: who >> 6, lane: (lane < SEVERAL).then_some(lane), line }
    }
}

impl Party<'_> {
    #[inline(always)]
    pub(super) fn line(&self) -> u16 {
        self.line.min(FAR.into()) as u16
    }

    #[inline(always)]
    pub(super) fn who(&self) -> u16 {
        self.warp << 6 | u16::from(self.lane)
    }

    /// Whether an earlier access is ordered before this one.
    #[inline(always)]
    pub(super) fn after(&self, cluster: u32, who: u16, count: u32) -> bool {
        let warp = who >> 6;
        if cluster == self.cluster && warp == self.warp {
            let lane = (who & 63) as u8;
            return lane == self.lane || lane == TOGETHER || count < self.clock.now(warp);
        }
        self.clock.knows(cluster, warp, count)
    }
}
