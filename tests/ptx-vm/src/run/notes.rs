//! Faults behind which a launch goes on, and what becomes of them.
//!
//! A race, a read of unwritten bytes, a load or store at a bad address spoils data but not the machine: it is
//! noted, and the access takes place as far as it can. What is noted is turned into a [`Fault`] when the
//! instruction has ended, told once per place, and ends the launch when there are as many as were asked for.
//!
//! A read of unwritten bytes is a riddle until somebody writes them. If that is a party without order towards
//! the reader, the two are a race that this schedule has shown from its other side: the fault becomes one,
//! with both instructions. So the launch goes on for a while behind such a read, even when one fault is all
//! that is wanted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::schedule::Plan;
use super::{Cluster, Grid, Spot, Stop, Warp};
use crate::fault::Instruction;
use crate::memory::clock::Clock;
use crate::memory::global::{Freed, GlobalShadow};
use crate::memory::shadow::Seen;
use crate::{Fault, FaultKind, Memory, Touched};

/// Warp instructions for which the launch goes on behind a read of unwritten bytes, to see who writes them.
const PATIENCE: u64 = 2_000_000;
/// Faults noted, whether distinct or not, after which a launch ends.
const FLOOD: u64 = 20_000;

/// Kind, instruction, line of the other party.
type Key = (FaultKind, u32, String, u32);

/// The distinct faults of a launch.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    faults: Vec<Fault>,
    /// Of each fault.
    spots: Vec<Option<Spot>>,
    seen: HashSet<Key>,
    /// All that were noted.
    noted: u64,
    /// Instructions executed when the first one was noted.
    first_at: u64,
}

fn key(fault: &Fault) -> Key {
    (fault.kind, fault.line, fault.text.clone(), fault.other.as_ref().map_or(0, |o| o.line))
}

impl Notes {
    /// Nothing was wrong.
    pub(crate) fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Adds a fault if it is a new one.
    pub(crate) fn add(&mut self, fault: Fault, stop: &Stop, instructions: u64) {
        let reason = stop.reason();
        self.noted += 1;
        if self.faults.is_empty() {
            self.first_at = instructions;
        }
        if matches!(fault.kind, FaultKind::SharedRace | FaultKind::GlobalRace)
            && self.solves(&fault, reason.spot)
        {
            return;
        }
        if self.seen.insert(key(&fault)) {
            self.faults.push(fault);
            self.spots.push(reason.spot);
        }
    }

    /// A race whose earlier party read what was unwritten then: that read is this race.
    fn solves(&mut self, race: &Fault, spot: Option<Spot>) -> bool {
        let (Some(spot), Some(other)) = (spot, &race.other) else { return false };
        let open = |(fault, at): (&Fault, &Option<Spot>)| {
            fault.kind == FaultKind::Uninitialised
                && fault.line == other.line
                && at.is_some_and(|at| at.joins(&spot))
        };
        let Some(at) = self.faults.iter().zip(&self.spots).position(open) else { return false };
        let [bx, by, bz] = race.block;
        let [tx, ty, tz] = race.thread;
        let missing = if race.kind == FaultKind::SharedRace { "a barrier" } else { "a barrier or a flag" };
        let fault = &mut self.faults[at];
        fault.kind = race.kind;
        let detail = format!(
            "{} then; block ({bx},{by},{bz}), thread ({tx},{ty},{tz}) writes there later, and nothing orders the two: {missing} \
             between the write and this read is missing",
            fault.detail
        );
        fault.detail = detail.into();
        let (line, text, source) = (race.line, race.text.as_str().into(), race.source.clone());
        fault.other = Some(Box::new(Instruction { line, text, source }));
        let key = key(fault);
        self.seen.insert(key);
        true
    }

    /// Whether the launch ends now.
    pub(crate) fn enough(&self, wanted: usize, instructions: u64) -> bool {
        if self.faults.is_empty() {
            return false;
        }
        let open = self.faults.iter().all(|f| f.kind == FaultKind::Uninitialised);
        let patient = open && instructions.saturating_sub(self.first_at) < PATIENCE;
        self.noted >= FLOOD || self.faults.len() >= wanted.max(1) && !patient
    }

    /// All of them, with the one that ended the launch, if one did.
    pub(crate) fn take(mut self, last: Option<Fault>) -> Vec<Fault> {
        if let Some(last) = last
            && self.seen.insert(key(&last))
        {
            self.faults.push(last);
        }
        self.faults
    }
}

/// The fault of a lane at an instruction, by its index among the program's lines.
pub(crate) fn fault(
    grid: &Grid<'_>,
    cluster: &Cluster,
    warp: &Warp,
    line: u32,
    lane: u32,
    stop: &Stop,
) -> Fault {
    let reason = stop.reason();
    let lane = reason.lane.unwrap_or(lane).min(31);
    let [x, y, _] = grid.launch.block;
    let t = u32::from(warp.index) * 32 + lane;
    let lines = &grid.program.lines;
    let Instruction { line, text, source } = lines.get(line as usize).cloned().unwrap_or_default();
    Fault {
        kind: reason.kind,
        kernel: grid.kernel.into(),
        line,
        text: text.to_string(),
        block: cluster.blocks[usize::from(warp.rank)].coordinates,
        thread: [t % x, t / x % y, t / (x * y)],
        detail: reason.detail.as_str().into(),
        source,
        other: reason.other.and_then(|at| lines.get(at as usize)).cloned().map(Box::new),
    }
}

/// Puts the blame on another instruction.
pub(crate) fn stand_at(fault: &mut Fault, at: &Instruction) {
    (fault.line, fault.text, fault.source) = (at.line, at.text.to_string(), at.source.clone());
}

/// Turns what an instruction has noted into faults of the launch; the last of them when they are enough.
pub(crate) fn collect(
    grid: &mut Grid<'_>,
    cluster: &mut Cluster,
    warp: &Warp,
    line: u32,
    lane: u32,
) -> Option<Stop> {
    let mut stops = std::mem::take(&mut grid.noted);
    stops.append(&mut cluster.noted);
    let now = grid.instructions + warp.count;
    for stop in &stops {
        let fault = fault(grid, cluster, warp, line, lane, stop);
        grid.notes.add(fault, stop, now);
        if grid.notes.enough(grid.options.faults, now) {
            return Some(stop.clone());
        }
    }
    None
}

/// The same for work that is not an instruction's: the fault that ends the launch.
pub(crate) fn report(
    grid: &mut Grid<'_>,
    cluster: &mut Cluster,
    warp: &Warp,
    line: u32,
) -> Result<(), Fault> {
    match collect(grid, cluster, warp, line, 0) {
        Some(stop) => Err(fault(grid, cluster, warp, line, 0, &stop)),
        None => Ok(()),
    }
}

/// What the blocks of a grid have read and written, if somebody wants to know: neighbouring words with one
/// history together.
pub(crate) fn touched(
    plan: &Plan<'_>,
    memory: &Memory,
    shadow: &mut GlobalShadow,
    released: &Clock,
) -> Vec<Touched> {
    let mut all: Vec<(Touched, Option<u32>)> = Vec::new();
    if !plan.options.track_accesses {
        return Vec::new();
    }
    shadow.touched(released, |allocation, offsets, seen| {
        let Seen { write, strong, late, by } = seen;
        let base = memory.at(allocation).base;
        let range = base + offsets.start as u64..base + offsets.end as u64;
        match all.last_mut() {
            Some((last, line))
                if last.range.end == range.start
                    && (last.write, last.strong, last.late, *line) == (write, strong, late, by) =>
            {
                last.range.end = range.end;
            }
            _ => all.push((Touched { range, write, strong, late, by: None }, by)),
        }
    });
    for Freed { range, line, by: (cluster, warp, count) } in std::mem::take(&mut shadow.freed) {
        let late = !released.knows(cluster, warp, count);
        all.push((Touched { range, write: true, strong: false, late, by: None }, Some(line)));
    }
    all.sort_by_key(|(touched, _)| touched.range.start);
    // A few instructions stand for many ranges.
    let mut known: BTreeMap<u32, Option<Arc<Instruction>>> = BTreeMap::new();
    let mut by = |at: u32| {
        known.entry(at).or_insert_with(|| plan.program.lines.get(at as usize).cloned().map(Arc::new)).clone()
    };
    all.into_iter().map(|(touched, line)| Touched { by: line.and_then(&mut by), ..touched }).collect()
}
