//! What the blocks of a cluster share: shared memory with its shadow, barriers, asynchronous copies in
//! flight.

use std::collections::HashMap;

use super::flight::Flight;
use super::{Done, Spot, Stop};
use crate::code::SHARED_START;
use crate::memory::clock::{Clock, Fenced};
use crate::memory::shadow::{Cell, Conflict, How, LINE, Line, Parts, Party, Readers, word_bytes};
use crate::ops::mbarrier::State;
use crate::{FaultKind, Options};

/// A `bar.sync` barrier.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockBarrier {
    /// Warps (of the block) that have arrived, and those of them that wait.
    pub(crate) arrived: u32,
    pub(crate) waiting: u32,
    /// Threads expected, when the instruction said so.
    pub(crate) expected: Option<u32>,
    pub(crate) clock: Clock,
    /// A waiter has waited for the earlier grid.
    pub(crate) dependency_done: bool,
    /// Threads whose predicate was true, and threads counted, for `bar.red`.
    pub(crate) votes: (u32, u32),
}

/// One block.
pub(crate) struct Block {
    pub(crate) coordinates: [u32; 3],
    pub(crate) shared: Vec<u8>,
    pub(crate) lines: Vec<Line>,
    pub(crate) barriers: Vec<BlockBarrier>,
    /// Warps that have not ended, as a mask.
    pub(crate) live: u32,
    /// Barriers with arrivals, as a mask.
    pub(crate) barriers_used: u32,
}

impl Block {
    /// The line that starts at a byte, if it lies in the memory of a block that lives.
    #[inline(always)]
    fn whole_line(&mut self, start: usize) -> Option<&mut Line> {
        let inside = start.is_multiple_of(LINE) && self.live != 0 && start < self.shared.len() / LINE * LINE;
        if inside { self.lines.get_mut(start / LINE) } else { None }
    }
}

/// `barrier.cluster`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterBarrier {
    /// Warps (of the cluster) that have arrived in this phase.
    pub(crate) arrived: Vec<bool>,
    pub(crate) phase: u32,
    pub(crate) gathering: Clock,
    /// What the last complete phase released.
    pub(crate) released: Clock,
}

/// A cluster of blocks (one block when the launch has no clusters).
pub(crate) struct Cluster {
    /// Its number in the grid.
    pub(crate) id: u32,
    pub(crate) blocks: Vec<Block>,
    pub(crate) readers: Readers,
    pub(crate) parts: Parts,
    pub(crate) mbarriers: HashMap<(u8, u32), State>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) barrier: ClusterBarrier,
    /// The clock of the engine that carries out asynchronous copies; it counts as one more warp.
    pub(crate) engine: Clock,
    pub(crate) engine_warp: u16,
    /// Grows with everything that can let somebody else go on.
    pub(crate) progress: u64,
    /// Released at shared addresses by strong accesses.
    pub(crate) flags: HashMap<(u8, u32), Clock>,
    /// Faults of the instruction being executed behind which it goes on.
    pub(crate) noted: Vec<Stop>,
}

/// A place in the shared memory of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SharedPlace {
    pub(crate) rank: u8,
    /// Offset in the window.
    pub(crate) offset: u32,
}

/// The index of a place in the shared memory of its block; too large for what lies below.
#[inline(always)]
fn index(at: SharedPlace) -> usize {
    at.offset.wrapping_sub(SHARED_START) as usize
}

impl Cluster {
    /// Resolves an offset of the shared window: of the own block, or of the block whose rank stands in the
    /// top bits.
    #[inline(always)]
    pub(crate) fn place(&self, own: u8, address: u64) -> Done<SharedPlace> {
        let rank = address >> crate::code::SHARED_BITS;
        let offset = (address & ((1 << crate::code::SHARED_BITS) - 1)) as u32;
        match rank {
            0 => Ok(SharedPlace { rank: own, offset }),
            n if n <= self.blocks.len() as u64 => Ok(SharedPlace { rank: (n - 1) as u8, offset }),
            _ => Err(Stop::new(FaultKind::OutOfBounds, format!("{address:#x} is no shared address"))),
        }
    }

    /// Bounds and life of a range of shared memory; the index of its first byte.
    #[inline]
    pub(crate) fn bounds(&self, at: SharedPlace, bytes: usize) -> Done<usize> {
        let block = &self.blocks[usize::from(at.rank)];
        let start = index(at);
        if at.offset < SHARED_START || start + bytes > block.shared.len() {
            let size = block.shared.len();
            let detail = format!(
                "{bytes} bytes at shared offset {} of a block with {size} bytes ({}..{})",
                at.offset,
                SHARED_START,
                SHARED_START as usize + size
            );
            return Err(Stop::new(FaultKind::OutOfBounds, detail));
        }
        if block.live == 0 {
            return Err(Stop::new(
                FaultKind::OutOfBounds,
                format!("shared memory of block {} of the cluster, which has ended", at.rank),
            ));
        }
        Ok(start)
    }

    /// All checks of one access; the index of its first byte.
    #[inline]
    pub(crate) fn access(
        &mut self,
        at: SharedPlace,
        bytes: usize,
        how: How,
        me: &Party<'_>,
        options: &Options,
    ) -> Done<usize> {
        self.access_and_mark(at, bytes, how, Mark::None, me, options)
    }

    /// Plain reads of one line each from one block's memory, with all checks: the rows of a matrix, with
    /// nothing left to choose. How many were read before one that is no whole line or breaks a rule; that one
    /// is as if it had not been tried.
    #[inline(always)]
    pub(crate) fn read_lines<const ROWS: usize>(
        &mut self,
        rank: u8,
        offsets: &[u32; ROWS],
        out: &mut [[u8; LINE]; ROWS],
        me: &Party<'_>,
        options: &Options,
    ) -> usize {
        let block = &mut self.blocks[usize::from(rank)];
        for (row, (&offset, out)) in offsets.iter().zip(out).enumerate() {
            let start = index(SharedPlace { rank, offset });
            let Some(line) = block.whole_line(start) else { return row };
            let [cell] = line.all(&mut self.parts) else { return row };
            if visit(cell, 15, How::READ, Mark::None, me, options, &mut self.readers).is_err() {
                return row;
            }
            let Some(bytes) = block.shared[start..].first_chunk() else { return row };
            *out = *bytes;
        }
        ROWS
    }

    /// A copy that will write one line, or writes it now, with all checks; the index of its first byte.
    #[inline(always)]
    pub(crate) fn copy_line(
        &mut self,
        at: SharedPlace,
        mark: Mark,
        me: &Party<'_>,
        options: &Options,
    ) -> Done<usize> {
        let start = index(at);
        if let Some(line) = self.blocks[usize::from(at.rank)].whole_line(start)
            && let [cell] = line.all(&mut self.parts)
            && visit(cell, 15, How::WRITE, mark, me, options, &mut self.readers).is_ok()
        {
            return Ok(start);
        }
        self.access_and_mark(at, LINE, How::WRITE, mark, me, options)
    }

    /// The same, for an access that begins or ends an asynchronous one.
    #[inline]
    pub(crate) fn access_and_mark(
        &mut self,
        at: SharedPlace,
        bytes: usize,
        how: How,
        mark: Mark,
        me: &Party<'_>,
        options: &Options,
    ) -> Done<usize> {
        let start = self.bounds(at, bytes)?;
        if bytes == LINE && start.is_multiple_of(LINE) {
            let line = &mut self.blocks[usize::from(at.rank)].lines[start / LINE];
            if let [cell] = line.all(&mut self.parts) {
                return match visit(cell, 15, how, mark, me, options, &mut self.readers) {
                    Ok(()) => Ok(start),
                    Err(what) => Ok(self.note(what, at, start, bytes, how, mark, me)),
                };
            }
        }
        self.access_words(at, start, bytes, how, mark, me, options)
    }

    /// The checks of an access that is not one whole line.
    #[allow(clippy::too_many_arguments)] // Reason: the arguments of the access and where it starts.
    fn access_words(
        &mut self,
        at: SharedPlace,
        start: usize,
        bytes: usize,
        how: How,
        mark: Mark,
        me: &Party<'_>,
        options: &Options,
    ) -> Done<usize> {
        let (mut byte, end) = (start, start + bytes);
        while byte < end {
            let whole = byte.is_multiple_of(LINE) && end - byte >= LINE;
            let line = &mut self.blocks[usize::from(at.rank)].lines[byte / LINE];
            let (stop, mask) = if whole { (byte + LINE, 15) } else { word_bytes(byte, end) };
            let cells = if whole {
                line.all(&mut self.parts)
            } else {
                std::slice::from_mut(line.word(byte % LINE / 4, &mut self.parts, &mut self.readers))
            };
            let mut seen: Result<(), (Found, usize)> = Ok(());
            for (i, cell) in cells.iter_mut().enumerate() {
                if let Err(what) = visit(cell, mask, how, mark, me, options, &mut self.readers) {
                    seen = Err((what, byte + 4 * i));
                    break;
                }
            }
            if let Err((what, byte)) = seen {
                let stop = self.explain(what, at, byte, bytes, how, me);
                return Ok(self.go_on(stop, at, start, bytes, how, mark, me));
            }
            if whole {
                line.join(&mut self.parts);
            }
            byte = stop;
        }
        Ok(start)
    }

    /// Notes what was found at the start of an access, and has it take place.
    #[cold]
    #[allow(clippy::too_many_arguments)] // Reason: the arguments of the access and what was found.
    fn note(
        &mut self,
        what: Found,
        at: SharedPlace,
        start: usize,
        bytes: usize,
        how: How,
        mark: Mark,
        me: &Party<'_>,
    ) -> usize {
        let stop = self.explain(what, at, start, bytes, how, me);
        self.go_on(stop, at, start, bytes, how, mark, me)
    }

    /// Notes a fault, and the access as if it had been right, so that it is told once.
    #[cold]
    #[allow(clippy::too_many_arguments)] // Reason: as above.
    fn go_on(
        &mut self,
        stop: Stop,
        at: SharedPlace,
        start: usize,
        bytes: usize,
        how: How,
        mark: Mark,
        me: &Party<'_>,
    ) -> usize {
        self.noted.push(stop);
        let (mut byte, end) = (start, start + bytes);
        while byte < end {
            let (stop, mask) = word_bytes(byte, end);
            let line = &mut self.blocks[usize::from(at.rank)].lines[byte / LINE];
            let cell = line.word(byte % LINE / 4, &mut self.parts, &mut self.readers);
            cell.renew(&mut self.readers, mask, how, me);
            cell.init |= if how.write { mask } else { 0 };
            match mark {
                Mark::WriteBegins => cell.flight |= mask,
                Mark::WriteEnds => cell.flight &= !mask,
                Mark::ReadBegins => cell.flight |= mask << 4,
                Mark::None => {}
            }
            byte = stop;
        }
        start
    }

    /// The fault for what was found at a byte of an access.
    #[cold]
    fn explain(
        &self,
        what: Found,
        at: SharedPlace,
        byte: usize,
        bytes: usize,
        how: How,
        me: &Party<'_>,
    ) -> Stop {
        let (start, shared) = (at.offset.into(), Some((self.id, at.rank)));
        let stop = self.explained(what, at, byte, bytes, how).of(Spot { shared, start, bytes: bytes as u64 });
        if me.lane < 32 { stop.at(me.lane.into()) } else { stop }
    }

    fn explained(&self, what: Found, at: SharedPlace, byte: usize, bytes: usize, how: How) -> Stop {
        let offset = at.offset;
        let verb = |write| if write { "write" } else { "read" };
        match what {
            Found::Flight { writes } => {
                let other = if writes { "writes" } else { "reads" };
                let detail = format!(
                    "{} at shared offset {offset}, which an asynchronous operation still {other}",
                    verb(how.write)
                );
                Stop::new(FaultKind::MissingWait, detail)
            }
            Found::Barrier => {
                let word = byte / 4 * 4 + SHARED_START as usize;
                Stop::new(
                    FaultKind::Barrier,
                    format!("plain write over the mbarrier at shared offset {word}"),
                )
            }
            Found::Unwritten => {
                let detail = format!("shared offset {offset} ({bytes} bytes) was never written");
                Stop::new(FaultKind::Uninitialised, detail)
            }
            Found::Race(c) => {
                let lane = c.lane.map(|l| format!(" lane {l}")).unwrap_or_default();
                let other = match c.warp {
                    w if w == self.engine_warp => "an asynchronous copy".into(),
                    w if w > self.engine_warp => "a wgmma".into(),
                    w => format!("warp {w}{lane}"),
                };
                let detail = format!(
                    "{} at shared offset {offset} is not ordered after the {} by {other}",
                    verb(how.write),
                    verb(c.write)
                );
                Stop::new(FaultKind::SharedRace, detail).with(c.line, how.write && c.write)
            }
            Found::Hidden(warp) => {
                let detail = format!(
                    "an asynchronous read at shared offset {offset} of what warp {warp} wrote by plain stores or copies, without \
                     `fence.proxy.async` between them"
                );
                Stop::new(FaultKind::MissingFence, detail)
            }
        }
    }

    /// Marks bytes as being written (`true`) or read by an asynchronous operation, or clears the mark.
    pub(crate) fn mark_flight(&mut self, at: SharedPlace, bytes: usize, write: bool, on: bool) {
        let block = &mut self.blocks[usize::from(at.rank)];
        let mut byte = index(at);
        let end = (byte + bytes).min(block.shared.len());
        let shift = if write { 0 } else { 4 };
        let mark = |cell: &mut Cell, mask: u8| {
            let mask = mask << shift;
            cell.flight = if on { cell.flight | mask } else { cell.flight & !mask };
        };
        while byte < end {
            let line = &mut block.lines[byte / LINE];
            if byte.is_multiple_of(LINE) && end - byte >= LINE {
                line.all(&mut self.parts).iter_mut().for_each(|cell| mark(cell, 15));
                line.join(&mut self.parts);
                byte += LINE;
                continue;
            }
            let (stop, mask) = word_bytes(byte, end);
            mark(line.word(byte % LINE / 4, &mut self.parts, &mut self.readers), mask);
            byte = stop;
        }
    }

    /// The shadow of one word.
    pub(crate) fn word(&mut self, rank: u8, byte: usize) -> &mut Cell {
        let line = &mut self.blocks[usize::from(rank)].lines[byte / LINE];
        line.word(byte % LINE / 4, &mut self.parts, &mut self.readers)
    }

    /// The bytes of a range that passed its checks.
    #[inline]
    pub(crate) fn bytes(&mut self, rank: u8, start: usize, len: usize) -> &mut [u8] {
        &mut self.blocks[usize::from(rank)].shared[start..start + len]
    }
}

/// What an access says of the asynchronous operation it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    None,
    /// Checked as a write now; the bytes will be written later.
    WriteBegins,
    /// The bytes are written now.
    WriteEnds,
    /// Checked as a read now; the bytes will be read later.
    ReadBegins,
}

/// What an access to a word finds.
enum Found {
    Flight {
        /// The asynchronous operation writes.
        writes: bool,
    },
    Barrier,
    Unwritten,
    Race(Conflict),
    /// The asynchronous proxy does not see what this warp wrote.
    Hidden(u16),
}

/// Checks an access to some bytes of a word (or of each word of a line) and notes it.
#[inline(always)]
fn visit(
    cell: &mut Cell,
    mask: u8,
    how: How,
    mark: Mark,
    me: &Party<'_>,
    options: &Options,
    readers: &mut Readers,
) -> Result<(), Found> {
    if mark == Mark::WriteEnds {
        cell.flight &= !mask;
        // Nothing else could touch these bytes since the copy was checked at its issue.
        if cell.is_still(mask, me) {
            cell.init |= mask;
            return Ok(());
        }
    }
    let taken = if how.write { (cell.flight | cell.flight >> 4) & 15 } else { cell.flight & 15 };
    if taken & mask != 0 {
        return Err(Found::Flight { writes: cell.flight & 15 & mask != 0 });
    }
    if how.write {
        if cell.init >> 4 & mask != 0 && !how.strong {
            return Err(Found::Barrier);
        }
    } else if options.uninitialised && !cell.init & mask != 0 {
        return Err(Found::Unwritten);
    }
    if options.shared_races
        && let Some(conflict) = cell.touch(readers, mask, how, me)
    {
        return Err(Found::Race(conflict));
    }
    if options.shared_races
        && mark == Mark::ReadBegins
        && let Some(warp) = cell.hidden_write(Fenced::Shared, mask, me)
    {
        return Err(Found::Hidden(warp));
    }
    // After the race check, so that a race is called a race.
    if how.write {
        cell.init |= mask;
    }
    match mark {
        Mark::WriteBegins => cell.flight |= mask,
        Mark::ReadBegins => cell.flight |= mask << 4,
        Mark::None | Mark::WriteEnds => {}
    }
    Ok(())
}
