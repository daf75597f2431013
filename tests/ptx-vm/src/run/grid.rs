//! What all blocks of a launch share.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::company::Common;
use super::notes::Notes;
use super::schedule::Plan;
use super::{Done, Spot, Stop};
use crate::code::Program;
use crate::matrix::Summation;
use crate::memory::clock::Clock;
use crate::memory::flag::Flag;
use crate::memory::global::GlobalShadow;
use crate::memory::overlay::Overlay;
use crate::memory::shadow::{Conflict, How, LINE, Party};
use crate::memory::traffic::Counters;
use crate::ops::data::copy_few;
use crate::{FaultKind, Launch, Memory, Options};

/// The grain of [`crate::Report::written`].
pub(crate) const WRITTEN_GRAIN: u64 = 256;

/// Device memory as the blocks of a thread see it.
pub(crate) enum Store<'g> {
    /// All blocks run on this thread.
    Own(&'g mut Memory),
    /// Other threads run other blocks: what this one writes lies on top.
    Shared { base: &'g Memory, overlay: Overlay },
}

impl Store<'_> {
    /// The allocations.
    #[inline(always)]
    pub(crate) fn get(&self) -> &Memory {
        match self {
            Store::Own(memory) => memory,
            Store::Shared { base, .. } => base,
        }
    }
}

/// Device memory and everything else that outlives a block.
pub(crate) struct Grid<'g> {
    /// The kernel's name.
    pub(crate) kernel: &'g str,
    pub(crate) program: &'g Program,
    pub(crate) launch: &'g Launch,
    pub(crate) options: &'g Options,
    pub(crate) memory: Store<'g>,
    pub(crate) shadow: GlobalShadow,
    /// What has been released at an address by strong accesses.
    pub(crate) flags: HashMap<u64, Flag>,
    /// What it shares with launches that are under way with it; none where it runs to its end at once.
    pub(crate) company: Option<Box<Common>>,
    /// The numbers of its clusters among those of all launches.
    pub(crate) own: Range<u32>,
    /// What its warps are ordered after when they start.
    pub(crate) start: Clock,
    /// What warps that have ended had learned of other launches.
    pub(crate) learned: Clock,
    /// What it has released to its device or further.
    pub(crate) released: Clock,
    pub(crate) written: BTreeSet<u64>,
    /// Bytes moved, if they are counted.
    pub(crate) traffic: Option<Box<Counters>>,
    pub(crate) instructions: u64,
    /// Executions of each instruction of the program, if they are counted.
    pub(crate) executed: Option<Box<[u64]>>,
    /// Most instructions of a warp that has ended.
    pub(crate) longest: u64,
    /// Accesses by which a warp can learn that others have moved: strong reads, atomics, polls of mbarriers.
    pub(crate) looks: u64,
    /// Those at global memory, where other launches can be seen to move.
    pub(crate) global_looks: u64,
    /// Such looks, and the progress of its cluster, when the turn of the warp began.
    pub(crate) turn: (u64, u64),
    pub(crate) warps_per_block: u32,
    /// Faults of the instruction being executed behind which it goes on.
    pub(crate) noted: Vec<Stop>,
    /// The faults of the launch.
    pub(crate) notes: Notes,
    /// How tensor-core matmuls are summed.
    pub(crate) summation: Summation,
    /// Line index of the instruction being executed, for work that outlives it.
    pub(crate) line: u32,
    /// The allocation of the last access: the next is mostly in it too.
    pub(super) hint: (u64, u64, usize),
}

/// Bytes of device memory that passed all checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) allocation: usize,
    pub(crate) offset: usize,
}

impl<'g> Grid<'g> {
    pub(crate) fn new(plan: &Plan<'g>, memory: Store<'g>) -> Self {
        let Plan { kernel, program, launch, options, target, .. } = *plan;
        let summation = match (options.tensor_core_sums, target.starts_with("sm_9")) {
            (false, _) => Summation::Plain,
            (true, true) => Summation::Hopper,
            (true, false) => Summation::Ampere,
        };
        let shadow = GlobalShadow::new(memory.get().count(), program.orders_blocks);
        Grid {
            kernel: &kernel.name,
            program,
            launch,
            options,
            memory,
            shadow,
            flags: HashMap::new(),
            company: None,
            own: 0..u32::MAX,
            start: Clock::default(),
            learned: Clock::default(),
            released: Clock::default(),
            written: BTreeSet::new(),
            traffic: options.count_traffic.then(Box::default),
            instructions: 0,
            executed: (options.count_lines || crate::reached::wanted())
                .then(|| vec![0; program.code.len()].into()),
            longest: 0,
            looks: 0,
            global_looks: 0,
            turn: (0, 0),
            noted: Vec::new(),
            notes: Notes::default(),
            line: 0,
            warps_per_block: launch.block.iter().product::<u32>().div_ceil(32),
            summation,
            hint: (1, 0, 0),
        }
    }

    /// The allocation that holds a range, checked for bounds, life and access rights.
    #[inline(always)]
    pub(crate) fn locate(&mut self, address: u64, bytes: u64, write: bool) -> Done<Found> {
        let (base, end, allocation) = self.hint;
        if address >= base && address.wrapping_add(bytes) <= end && address.wrapping_add(bytes) >= address {
            let found = Found { allocation, offset: (address - base) as usize };
            if write {
                self.writable(found, address, bytes)?;
            }
            return Ok(found);
        }
        self.search(address, bytes, write)
    }

    fn writable(&mut self, found: Found, address: u64, bytes: u64) -> Done {
        if self.memory.get().at(found.allocation).constant {
            return Err(Stop::new(
                FaultKind::ReadOnly,
                format!("a write to constant memory at {address:#x}"),
            ));
        }
        if self.options.track_writes {
            (address / WRITTEN_GRAIN..=(address + bytes - 1) / WRITTEN_GRAIN).for_each(|p| {
                self.written.insert(p);
            });
        }
        Ok(())
    }

    #[cold]
    fn search(&mut self, address: u64, bytes: u64, write: bool) -> Done<Found> {
        let memory = self.memory.get();
        let Some(at) = memory.find(address, bytes) else {
            let kind =
                if memory.is_released(address) { FaultKind::UseAfterFree } else { FaultKind::OutOfBounds };
            let verb = if write { "write" } else { "read" };
            return Err(Stop::new(
                kind,
                format!("{verb} of {bytes} bytes at global address {address:#x}{}", memory.about(address)),
            ));
        };
        let a = memory.at(at);
        if let Some(owner) = a.device
            && !memory.peer(self.launch.device, owner)
        {
            let device = self.launch.device;
            return Err(Stop::new(
                FaultKind::PeerAccess,
                format!("device {device} touches {address:#x} of device {owner} without peer access"),
            ));
        }
        self.hint = (a.base, a.base + a.bytes, at);
        let found = Found { allocation: at, offset: (address - a.base) as usize };
        if write {
            self.writable(found, address, bytes)?;
        }
        Ok(found)
    }

    /// Leaves the text of a call of `printf` behind. Kernels that print run on one thread.
    pub(crate) fn print(&mut self, text: Vec<u8>) {
        if let Store::Own(memory) = &mut self.memory {
            memory.print(text, self.options.print_bytes);
        }
    }

    /// Begins a warp instruction that moves bytes.
    #[inline(always)]
    pub(crate) fn begin_moving(&mut self) {
        if let Some(traffic) = &mut self.traffic {
            traffic.next();
        }
    }

    /// Counts bytes that one lane moves.
    #[inline(always)]
    pub(crate) fn moved(&mut self, address: u64, bytes: usize, write: bool) {
        if let Some(traffic) = &mut self.traffic {
            traffic.note(address, bytes as u64, write);
        }
    }

    /// Reads bytes that passed their checks.
    #[inline]
    pub(crate) fn load(&mut self, found: Found, out: &mut [u8]) {
        match &mut self.memory {
            Store::Own(memory) => {
                copy_few(out, &memory.at(found.allocation).data()[found.offset..found.offset + out.len()]);
            }
            Store::Shared { base, overlay } => overlay.read(base, found.allocation, found.offset, out),
        }
    }

    /// Reads 16 bytes that passed their checks.
    #[inline(always)]
    pub(crate) fn load_line(&mut self, found: Found, out: &mut [u8]) {
        if let Store::Own(memory) = &mut self.memory
            && let Some(bytes) = memory.at(found.allocation).data()[found.offset..].first_chunk::<LINE>()
            && let Some(out) = out.first_chunk_mut::<LINE>()
        {
            *out = *bytes;
            return;
        }
        self.load(found, out);
    }

    /// Writes bytes that passed their checks.
    #[inline]
    pub(crate) fn save(&mut self, found: Found, data: &[u8]) {
        match &mut self.memory {
            Store::Own(memory) => {
                let (out, written) = memory.at_mut(found.allocation).parts_mut();
                copy_few(&mut out[found.offset..found.offset + data.len()], data);
                written.set(found.offset, data.len());
            }
            Store::Shared { base, overlay } => overlay.write(base, found.allocation, found.offset, data),
        }
    }

    /// Refuses memory of an unfinished earlier grid.
    pub(crate) fn not_pending(&self, address: u64, bytes: u64) -> Done {
        let hit = self.launch.pending.iter().find(|r| address < r.end && r.start < address + bytes);
        match hit {
            None => Ok(()),
            Some(r) => Err(Stop::new(
                FaultKind::GridDependency,
                format!(
                    "{address:#x} belongs to {:#x}..{:#x}, which the earlier grid may still write: `griddepcontrol.wait` is missing",
                    r.start, r.end
                ),
            )),
        }
    }

    /// Notes a race-checked access.
    #[inline(always)]
    pub(crate) fn touch(&mut self, found: Found, bytes: usize, how: How, me: &Party<'_>) -> Done {
        if !self.options.global_races {
            return Ok(());
        }
        let mut conflict = self.shadow.touch(found.allocation, found.offset, bytes, how, me);
        if let Some(shadow) = self.company.as_mut().and_then(|common| common.shadow.as_mut()) {
            let other = shadow.touch(found.allocation, found.offset, bytes, how, me);
            conflict = conflict.or(other);
        }
        match conflict {
            None => Ok(()),
            Some(c) => {
                let stop = self.race(found, bytes, how, me, c);
                self.noted.push(stop);
                self.shadow.renew(found.allocation, found.offset, bytes, how, me);
                if let Some(shadow) = self.company.as_mut().and_then(|common| common.shadow.as_mut()) {
                    shadow.renew(found.allocation, found.offset, bytes, how, me);
                }
                Ok(())
            }
        }
    }

    /// Refuses what the asynchronous proxy may not see: plain stores of this launch without a fence behind
    /// them.
    pub(crate) fn shown_async(&mut self, found: Found, bytes: usize, me: &Party<'_>) -> Done {
        if !self.options.global_races {
            return Ok(());
        }
        match self.shadow.hidden_write(found.allocation, found.offset, bytes, me) {
            None => Ok(()),
            Some(warp) => {
                let address = self.memory.get().at(found.allocation).base + found.offset as u64;
                let detail = format!(
                    "an asynchronous read at global address {address:#x} of what warp {warp} wrote by plain stores, without \
                     `fence.proxy.async` between them"
                );
                self.noted.push(Stop::new(FaultKind::MissingFence, detail));
                Ok(())
            }
        }
    }

    /// The asynchronous proxy has just written these bytes.
    pub(crate) fn wrote_async(&mut self, found: Found, bytes: usize) {
        if self.options.global_races {
            self.shadow.wrote_async(found.allocation, found.offset, bytes);
        }
    }

    #[cold]
    fn race(&self, found: Found, bytes: usize, how: How, me: &Party<'_>, c: Conflict) -> Stop {
        let address = self.memory.get().at(found.allocation).base + found.offset as u64;
        let verb = |w| if w { "write" } else { "read" };
        let mut between = String::new();
        let other = if c.cluster == u32::MAX {
            "several blocks".into()
        } else if let Some(far) = self.stranger(c) {
            if far.device != self.launch.device {
                between = format!("between devices {} and {}: ", far.device, self.launch.device);
            }
            far.words
        } else if c.cluster == me.cluster {
            format!(
                "warp {}{} of the same block or cluster",
                c.warp,
                c.lane.map(|l| format!(" lane {l}")).unwrap_or_default()
            )
        } else {
            format!("block or cluster {}, warp {}", c.cluster - self.own.start, c.warp)
        };
        let detail = format!(
            "{between}{} of {bytes} bytes at global address {address:#x} is not ordered after the {} by {other}",
            verb(how.write),
            verb(c.write)
        );
        let spot = Spot { shared: None, start: address, bytes: bytes as u64 };
        let line = c.line.filter(|_| self.own.contains(&c.cluster));
        let stop = Stop::new(FaultKind::GlobalRace, detail).of(spot).with(line, how.write && c.write);
        if me.lane < 32 { stop.at(me.lane.into()) } else { stop }
    }

    /// Refuses bytes that nothing has written.
    #[inline(always)]
    pub(crate) fn written(&mut self, found: Found, bytes: usize, lane: u8) -> Done {
        if !self.options.uninitialised {
            return Ok(());
        }
        let missing = match &self.memory {
            Store::Own(memory) => memory.at(found.allocation).written().first_missing(found.offset, bytes),
            Store::Shared { base, overlay } => {
                overlay.first_missing(base, found.allocation, found.offset, bytes)
            }
        };
        match missing {
            None => Ok(()),
            Some(at) => {
                let stop = self.unwritten(found, at).at(lane.into());
                self.noted.push(stop);
                Ok(())
            }
        }
    }

    #[cold]
    fn unwritten(&self, found: Found, at: usize) -> Stop {
        let a = self.memory.get().at(found.allocation);
        let detail = format!(
            "global address {:#x} (byte {at} of an allocation of {} bytes) was never written",
            a.base + at as u64,
            a.bytes
        );
        let spot = Spot { shared: None, start: a.base + at as u64, bytes: 1 };
        Stop::new(FaultKind::Uninitialised, detail).of(spot)
    }
}
