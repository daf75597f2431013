//! Who runs next, when asynchronous work lands, and when nothing can go on.
//!
//! Clusters (single blocks, mostly) run one after another; another one joins only when those in flight make
//! no progress, or from the start in a cooperative launch. A round gives each warp a turn, in the order the
//! schedule says. When a round of a cluster brings nothing forward, one asynchronous operation lands: that is
//! the latest legal moment. When there is nothing to land and no block to admit either, and every warp waits
//! or polls, the launch is deadlocked.

use std::collections::{BTreeSet, VecDeque};

use super::cluster::{Block, Cluster, ClusterBarrier};
use super::dice::Dice;
use super::flight;
use super::grid::{Store, WRITTEN_GRAIN};
use super::step::{Blame, Turned};
use super::warp::{Position, Wait, Warp};
use super::{Grid, Stop, Turn};
use super::{notes, parallel, workspace};
use crate::code::{Program, SHARED_START};
use crate::fault::Instruction;
use crate::memory::Traffic;
use crate::memory::clock::Clock;
use crate::memory::shadow::{LINE, Line, Readers};
use crate::ops::{barrier, copy, wgmma};
use crate::reached;
use crate::{Fault, FaultKind, Instance, Kernel, Launch, LineCount, Memory, Options, Report, Schedule};

/// Shared memory of a block at most, as on Hopper.
const SHARED_LIMIT: u32 = 232_448;
/// Instructions of one turn.
const SLICE: u64 = 8192;
/// Clusters in flight at once in a launch that is not cooperative.
const RESIDENT: usize = 264;
/// Rounds in which every warp waits or polls in vain, before that is called a deadlock.
const IDLE_ROUNDS: u32 = 3;
/// Instructions of warps that look at what others do, without any effect on others, before that is called a
/// spin. A warp that only computes is never one, however long it takes.
pub const QUIET: u64 = 10_000_000;

/// A cluster in flight.
struct Active {
    cluster: Cluster,
    warps: Vec<Warp>,
    order: Vec<usize>,
    /// Its own, so that its schedule does not depend on what ran before.
    dice: Dice,
}

/// A launch that has passed its first checks.
pub(crate) struct Plan<'g> {
    pub(crate) kernel: &'g Kernel,
    pub(crate) program: &'g Program,
    pub(crate) launch: &'g Launch,
    pub(crate) options: &'g Options,
    /// Addresses of the module's variables.
    pub(crate) addresses: &'g [u64],
    /// The module's target.
    pub(crate) target: &'g str,
    /// Where its definitions begin, for who asks which lines are executed.
    pub(crate) units: &'g reached::Units,
    /// The clusters in the order of the schedule.
    pub(crate) order: Vec<u32>,
    /// The address of the grid's workspace, 0 without one.
    pub(crate) workspace: u64,
    pub(crate) seed: u64,
}

/// The state of a launch.
pub(crate) struct Runner<'g> {
    pub(crate) grid: Grid<'g>,
    plan: &'g Plan<'g>,
    pub(crate) blocks: Blocks,
    warps_per_block: u32,
}

/// The blocks of a launch that have not ended.
#[derive(Default)]
pub(crate) struct Blocks {
    waiting: VecDeque<u32>,
    active: Vec<Active>,
    spare: Vec<Active>,
    /// Instructions of warps that look at what others do, since something moved.
    quiet: u64,
    /// As many of them the launch makes before it waits for another one.
    pub(crate) insists: u64,
    /// Something has moved since the launch last waited for another one.
    pub(crate) moved: bool,
}

/// A launch that cannot begin.
pub(crate) fn refuse(kernel: &str, detail: String) -> Fault {
    Fault {
        kind: FaultKind::Launch,
        kernel: kernel.into(),
        line: 0,
        text: String::new(),
        block: [0; 3],
        thread: [0; 3],
        detail: detail.into(),
        source: None,
        other: None,
    }
}

/// What can be said of a launch before it starts.
fn validate(kernel: &Kernel, program: &Program, launch: &Launch) -> Result<(), String> {
    let threads: u64 = launch.block.iter().map(|&n| u64::from(n)).product();
    let blocks: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
    let cluster: u64 = launch.cluster.iter().map(|&n| u64::from(n)).product();
    if threads == 0 || threads > 1024 || launch.block[2] > 64 {
        return Err(format!("blocks of {:?} threads: 1 to 1024 are allowed, 64 in z", launch.block));
    }
    if blocks == 0 || blocks > 1 << 31 || launch.grid[1] > 65535 || launch.grid[2] > 65535 {
        return Err(format!("a grid of {:?} blocks", launch.grid));
    }
    if let Some(max) = kernel.max_threads
        && threads > max.iter().map(|&n| u64::from(n)).product()
    {
        return Err(format!("{threads} threads per block, `.maxntid` allows {max:?}"));
    }
    if let Some(required) = kernel.required_threads.filter(|r| *r != launch.block) {
        return Err(format!("blocks of {:?} threads, `.reqntid` wants {required:?}", launch.block));
    }
    if cluster == 0 || cluster > 16 || launch.grid.iter().zip(launch.cluster).any(|(g, c)| g % c.max(1) != 0)
    {
        return Err(format!(
            "clusters of {:?} blocks do not divide the grid {:?} (16 blocks at most)",
            launch.cluster, launch.grid
        ));
    }
    if let Some(required) = kernel.required_cluster.filter(|r| *r != launch.cluster) {
        return Err(format!(
            "clusters of {:?} blocks, `.reqnctapercluster` wants {required:?}",
            launch.cluster
        ));
    }
    if launch.params.len() != program.parameter_bytes as usize {
        return Err(format!(
            "{} bytes of parameters, the kernel has {}",
            launch.params.len(),
            program.parameter_bytes
        ));
    }
    let shared = u64::from(program.dynamic_start() - SHARED_START) + u64::from(launch.dynamic_shared);
    if shared > u64::from(SHARED_LIMIT) {
        return Err(format!("{shared} bytes of shared memory per block, {SHARED_LIMIT} allowed"));
    }
    Ok(())
}

/// Looks a launch over and puts its clusters in order.
pub(crate) fn plan<'g>(
    instance: &'g Instance,
    name: &str,
    launch: &'g Launch,
    options: &'g Options,
) -> Result<Plan<'g>, Fault> {
    let module = &instance.module;
    let Some(at) = module.kernels.iter().position(|k| k.name == name) else {
        return Err(refuse(name, format!("the module has no kernel `{name}`")));
    };
    let (kernel, program) = (&module.kernels[at], &module.programs[at]);
    validate(kernel, program, launch).map_err(|what| refuse(name, what))?;
    let clusters = launch.grid.iter().zip(launch.cluster).map(|(g, c)| g / c).product::<u32>();
    let mut order: Vec<u32> = (0..clusters).collect();
    let mut seed = 1;
    match options.schedule {
        Schedule::Forward => {}
        Schedule::Reverse => order.reverse(),
        Schedule::Random(given) => {
            seed = given.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
            let mut dice = Dice(seed);
            (1..order.len()).rev().for_each(|i| order.swap(i, dice.below(i + 1)));
        }
    }
    let (addresses, target) = (&instance.addresses[..], &module.target[..]);
    let units = &module.units;
    Ok(Plan { kernel, program, launch, options, addresses, target, units, order, workspace: 0, seed })
}

/// Runs a kernel.
pub(crate) fn run(
    instance: &Instance,
    name: &str,
    launch: &Launch,
    blocks: Option<&[u32]>,
    memory: &mut Memory,
    options: &Options,
) -> Result<Report, Vec<Fault>> {
    let mut plan = plan(instance, name, launch, options).map_err(|fault| vec![fault])?;
    if let Some(blocks) = blocks {
        plan.order = chosen(&plan, blocks).map_err(|detail| vec![refuse(name, detail)])?;
    }
    if parallel::worthwhile(&plan)
        && let Some(done) = parallel::attempt(&plan, memory)
    {
        return Ok(report(&plan, memory, done));
    }
    let made = workspace::make(launch, plan.program.workspace, memory);
    plan.workspace = made.map_err(|e| vec![refuse(name, e.to_string())])?;
    let grid = Grid::new(&plan, Store::Own(memory));
    let mut runner = Runner::new(&plan, grid);
    let ended = runner.run_clusters(plan.order.iter().copied());
    let Grid { written, instructions, executed, longest, traffic, notes, mut shadow, .. } = runner.grid;
    let touched = notes::touched(&plan, memory, &mut shadow, &Clock::default());
    if plan.workspace != 0 {
        // It was allocated above, and kernels release nothing.
        let _ = memory.free(plan.workspace);
    }
    if ended.is_err() || !notes.is_empty() {
        return Err(notes.take(ended.err()));
    }
    Ok(report(&plan, memory, parallel::Done { written, instructions, executed, longest, traffic, touched }))
}

/// These clusters, in the order of the schedule.
fn chosen(plan: &Plan<'_>, blocks: &[u32]) -> Result<Vec<u32>, String> {
    let wanted: BTreeSet<u32> = blocks.iter().copied().collect();
    if wanted.len() < blocks.len() {
        return Err("a block is chosen twice".into());
    }
    match wanted.last() {
        Some(last) if *last as usize >= plan.order.len() => {
            Err(format!("block {last} is chosen; the grid has {}", plan.order.len()))
        }
        _ => Ok(plan.order.iter().copied().filter(|block| wanted.contains(block)).collect()),
    }
}

/// The executions of each source line, by the executions of the instructions that it became.
fn lines(program: &Program, executed: Option<Box<[u64]>>) -> Vec<LineCount> {
    let Some(executed) = executed else { return Vec::new() };
    let count = |i: &Instruction| LineCount { line: i.line, text: i.text.to_string(), warps: 0 };
    let mut lines: Vec<LineCount> = program.lines.iter().map(count).collect();
    for (code, warps) in program.code.iter().zip(executed) {
        lines[code.line as usize].warps += warps;
    }
    lines
}

/// The report of a launch that has ended well.
pub(crate) fn report(plan: &Plan<'_>, memory: &mut Memory, done: parallel::Done) -> Report {
    let mut written: Vec<std::ops::Range<u64>> = Vec::new();
    for page in &done.written {
        let start = page * WRITTEN_GRAIN;
        match written.last_mut() {
            Some(last) if last.end == start => last.end += WRITTEN_GRAIN,
            _ => written.push(start..start + WRITTEN_GRAIN),
        }
    }
    let per: u64 = plan.launch.cluster.iter().map(|&n| u64::from(n)).product();
    let blocks = plan.order.len() as u64 * per;
    let traffic = done.traffic.map_or(Traffic::default(), |counted| {
        memory.add_traffic(&counted);
        counted.total()
    });
    let (mut lines, longest_warp) = (lines(plan.program, done.executed), done.longest);
    if reached::wanted() {
        reached::note(plan.target, plan.units, &lines);
        lines.retain(|_| plan.options.count_lines);
    }
    let accesses = done.touched;
    Report { instructions: done.instructions, blocks, written, accesses, traffic, lines, longest_warp }
}

impl<'g> Runner<'g> {
    /// Nothing has run.
    pub(crate) fn new(plan: &'g Plan<'g>, grid: Grid<'g>) -> Self {
        Runner {
            grid,
            plan,
            blocks: Blocks::default(),
            warps_per_block: plan.launch.block.iter().product::<u32>().div_ceil(32),
        }
    }

    /// Runs clusters to their end.
    pub(crate) fn run_clusters(&mut self, clusters: impl IntoIterator<Item = u32>) -> Result<(), Fault> {
        self.begin(clusters).map(|_| ())
    }

    /// Runs clusters, as [`Runner::run_on`].
    pub(crate) fn begin(&mut self, clusters: impl IntoIterator<Item = u32>) -> Result<Option<Fault>, Fault> {
        self.blocks.waiting.extend(clusters);
        self.run_on()
    }

    /// Runs what has not ended, to its end or until all of it waits for another launch; then the words for
    /// that. Only a launch in a company waits.
    pub(crate) fn run_on(&mut self) -> Result<Option<Fault>, Fault> {
        let mut idle = 0;
        (self.blocks.moved, self.blocks.quiet) = (false, 0);
        loop {
            while !self.blocks.waiting.is_empty()
                && (self.blocks.active.is_empty() || self.grid.launch.cooperative)
            {
                self.admit();
            }
            if self.blocks.active.is_empty() {
                return Ok(None);
            }
            let (mut progress, mut spinning) = (false, false);
            let looks = self.grid.global_looks;
            for at in 0..self.blocks.active.len() {
                let (moved, spins) = self.round(at)?;
                progress |= moved;
                spinning |= spins;
            }
            self.retire()?;
            self.blocks.moved |= progress;
            if progress {
                idle = 0;
                self.blocks.quiet = 0;
            } else if !self.blocks.waiting.is_empty() && self.blocks.active.len() < RESIDENT {
                self.admit();
                idle = 0;
            } else if self.grid.company.is_some() && self.grid.global_looks > looks {
                idle += 1;
                if idle >= IDLE_ROUNDS && self.blocks.quiet >= self.blocks.insists {
                    return Ok(Some(self.stuck(FaultKind::Deadlock, "it waits for another kernel")));
                }
            } else if spinning {
                if self.blocks.quiet > QUIET {
                    return Err(self.stuck(FaultKind::Budget, "warps spin on something that never comes"));
                }
            } else {
                idle += 1;
                if idle >= IDLE_ROUNDS {
                    return Err(self.stuck(FaultKind::Deadlock, "every warp waits"));
                }
            }
            if self.grid.instructions > self.grid.options.budget {
                return Err(self.stuck(FaultKind::Budget, "the instruction budget is used up"));
            }
        }
    }

    /// Starts the next cluster.
    fn admit(&mut self) {
        let Some(id) = self.blocks.waiting.pop_front() else { return };
        let launch = self.grid.launch;
        let per = launch.cluster;
        let across: [u32; 3] = std::array::from_fn(|i| launch.grid[i] / per[i]);
        let first = [id % across[0], id / across[0] % across[1], id / (across[0] * across[1])];
        let blocks: u32 = per.iter().product();
        let shared = self.grid.program.dynamic_start() - SHARED_START + launch.dynamic_shared;
        let coordinates = |rank: u32| {
            let inside = [rank % per[0], rank / per[0] % per[1], rank / (per[0] * per[1])];
            std::array::from_fn(|i| first[i] * per[i] + inside[i])
        };
        let count = (blocks * self.warps_per_block) as usize;
        let number = self.grid.own.start + id;
        let mut zero = Clock::new(number, count + 1);
        if self.grid.company.is_some() {
            zero.join(&self.grid.start);
        }
        let mut old = self.blocks.spare.pop();
        let block = |rank: u32, old: Option<Block>| {
            let (mut bytes, mut lines) = old.map_or((Vec::new(), Vec::new()), |b| (b.shared, b.lines));
            bytes.clear();
            bytes.resize(shared as usize, 0xFF);
            lines.clear();
            lines.resize((shared as usize).div_ceil(LINE), Line::default());
            let live = if self.warps_per_block == 32 { !0 } else { (1 << self.warps_per_block) - 1 };
            Block {
                coordinates: coordinates(rank),
                shared: bytes,
                lines,
                barriers: vec![Default::default(); 16],
                live,
                barriers_used: 0,
            }
        };
        let mut old_blocks: Vec<Block> =
            old.as_mut().map(|o| std::mem::take(&mut o.cluster.blocks)).unwrap_or_default();
        let blocks: Vec<Block> = (0..blocks).map(|rank| block(rank, old_blocks.pop())).collect();
        let mut parts = old.as_mut().map(|o| std::mem::take(&mut o.cluster.parts)).unwrap_or_default();
        parts.clear();
        let mut warps = old.map(|o| o.warps).unwrap_or_default();
        warps.resize_with(count, || {
            Warp::new(self.grid.program, self.grid.options.approx == crate::Rounding::Worst)
        });
        let threads = launch.block.iter().product();
        for (i, warp) in warps.iter_mut().enumerate() {
            let rank = i as u32 / self.warps_per_block;
            warp.start(i as u16, rank as u8, (i as u32 % self.warps_per_block) as u8, threads, zero.clone());
            let position = Position {
                launch,
                block: blocks[rank as usize].coordinates,
                cluster: id,
                warps: self.warps_per_block,
                shared_bytes: shared,
                workspace: self.plan.workspace,
            };
            warp.constants(self.grid.program, self.plan.addresses, &position);
        }
        let cluster = Cluster {
            id: number,
            blocks,
            readers: Readers::new(true),
            parts,
            mbarriers: Default::default(),
            flights: Vec::new(),
            barrier: ClusterBarrier { arrived: vec![false; count], ..ClusterBarrier::default() },
            engine: zero,
            engine_warp: count as u16,
            progress: 0,
            flags: Default::default(),
            noted: Vec::new(),
        };
        let mixed = (self.plan.seed ^ u64::from(id) << 1).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
        self.blocks.active.push(Active { cluster, warps, order: (0..count).collect(), dice: Dice(mixed) });
    }

    /// One turn for every warp of a cluster: whether anything moved, and whether somebody is in a loop.
    fn round(&mut self, at: usize) -> Result<(bool, bool), Fault> {
        let a = &mut self.blocks.active[at];
        match self.grid.options.schedule {
            Schedule::Forward => {}
            Schedule::Reverse => a.order.sort_by_key(|&i| std::cmp::Reverse(i)),
            Schedule::Random(_) => {
                (1..a.order.len()).rev().for_each(|i| a.order.swap(i, a.dice.below(i + 1)))
            }
        }
        let before = a.cluster.progress;
        let mut spinning = false;
        for i in 0..a.order.len() {
            let w = a.order[i];
            if a.warps[w].done || a.warps[w].wait != Wait::Nothing {
                continue;
            }
            let slice = match self.grid.options.schedule {
                Schedule::Random(_) => 64 << a.dice.below(8),
                _ => SLICE,
            };
            let warp = &mut a.warps[w];
            let (count, looks) = (warp.count, self.grid.looks);
            let turned = Turn { grid: &mut self.grid, cluster: &mut a.cluster, warp }.run(slice);
            let ran = a.warps[w].count - count;
            let (global_looks, progress) = self.grid.turn;
            a.warps[w].judge(self.grid.global_looks > global_looks, a.cluster.progress > progress);
            self.grid.instructions += ran;
            self.blocks.quiet += if self.grid.looks > looks { ran } else { 0 };
            match turned {
                Ok(Turned::Ended) => {
                    self.grid.longest = self.grid.longest.max(a.warps[w].count);
                    self.grid.learn(&a.warps[w].clock);
                    let rank = usize::from(a.warps[w].rank);
                    a.cluster.blocks[rank].live &= !(1 << a.warps[w].index);
                    a.cluster.progress += 1;
                }
                Ok(Turned::Sliced) => {
                    spinning = true;
                    // Whoever computes has not come to wait, unless it does so between looks in vain.
                    let computes = self.grid.looks == looks && !a.warps[w].vain;
                    a.cluster.progress += u64::from(self.grid.company.is_some() && computes);
                }
                Ok(Turned::Waits | Turned::Polled) => {}
                Err(blame) => {
                    return Err(fault(&self.grid, &a.cluster, &a.warps[w], blame));
                }
            }
            let everybody = self.grid.options.barriers == crate::Barriers::NoLane;
            let settled = barrier::settle(&mut a.cluster, &mut a.warps, everybody)
                .and_then(|()| wgmma::settle(&mut self.grid, &mut a.cluster, &mut a.warps));
            if let Err((w, stop)) = settled {
                let blame = here(&a.warps[w], stop);
                return Err(fault(&self.grid, &a.cluster, &a.warps[w], blame));
            }
            if !(self.grid.noted.is_empty() && a.cluster.noted.is_empty()) {
                let line = self.grid.line;
                notes::report(&mut self.grid, &mut a.cluster, &a.warps[w], line)?;
            }
        }
        if a.cluster.progress == before {
            self.land_one(at)?;
        }
        Ok((self.blocks.active[at].cluster.progress != before, spinning))
    }

    /// Lets one asynchronous operation of a cluster happen.
    fn land_one(&mut self, at: usize) -> Result<(), Fault> {
        let a = &mut self.blocks.active[at];
        let signalling: Vec<usize> =
            (0..a.cluster.flights.len()).filter(|&i| a.cluster.flights[i].signal.is_some()).collect();
        let pick = match self.grid.options.schedule {
            _ if signalling.is_empty() => None,
            Schedule::Forward => signalling.first().copied(),
            Schedule::Reverse => signalling.last().copied(),
            Schedule::Random(_) => Some(signalling[a.dice.below(signalling.len())]),
        };
        if let Some(i) = pick {
            let f = a.cluster.flights.remove(i);
            let (warp, lane, line) = (usize::from(f.warp), u32::from(f.lane), f.line);
            flight::land(&mut self.grid, &mut a.cluster, f, None).map_err(|stop| {
                let mut fault = fault(&self.grid, &a.cluster, &a.warps[warp], Blame { stop, pc: 0, lane });
                notes::stand_at(&mut fault, &self.grid.program.lines[line as usize]);
                fault
            })?;
            return notes::report(&mut self.grid, &mut a.cluster, &a.warps[warp], line);
        }
        for w in 0..a.warps.len() {
            if a.warps[w].arrivals.is_empty() {
                continue;
            }
            let warp = &mut a.warps[w];
            let landed =
                copy::land_arrival(&mut Turn { grid: &mut self.grid, cluster: &mut a.cluster, warp });
            landed.map_err(|stop| {
                let blame = here(&a.warps[w], stop);
                fault(&self.grid, &a.cluster, &a.warps[w], blame)
            })?;
            let line = self.grid.line;
            return notes::report(&mut self.grid, &mut a.cluster, &a.warps[w], line);
        }
        Ok(())
    }

    /// Takes finished clusters out. Stores they left behind land; loads they left behind would write into
    /// shared memory that belongs to the next block.
    fn retire(&mut self) -> Result<(), Fault> {
        let mut at = 0;
        while at < self.blocks.active.len() {
            if !self.blocks.active[at].warps.iter().all(|w| w.done) {
                at += 1;
                continue;
            }
            let mut done = self.blocks.active.swap_remove(at);
            for f in std::mem::take(&mut done.cluster.flights) {
                let (warp, lane, line) = (usize::from(f.warp), u32::from(f.lane), f.line);
                let landed = if f.signal.is_some() {
                    Err(Stop::new(
                        FaultKind::MissingWait,
                        "the block ends while this copy is still on its way",
                    ))
                } else {
                    let clock = done.warps[warp].clock.clone();
                    flight::land(&mut self.grid, &mut done.cluster, f, Some(&clock))
                };
                landed.map_err(|stop| {
                    let mut fault =
                        fault(&self.grid, &done.cluster, &done.warps[warp], Blame { stop, pc: 0, lane });
                    notes::stand_at(&mut fault, &self.grid.program.lines[line as usize]);
                    fault
                })?;
                notes::report(&mut self.grid, &mut done.cluster, &done.warps[warp], line)?;
            }
            self.blocks.spare.push(done);
        }
        Ok(())
    }

    /// The report of a launch that cannot go on.
    fn stuck(&self, kind: FaultKind, what: &str) -> Fault {
        let a = &self.blocks.active[0];
        let mut lines = Vec::new();
        let mut first = None;
        for w in a.warps.iter().filter(|w| !w.done) {
            let Some(g) = w.groups.first() else { continue };
            // A waiting warp stands behind the instruction it waits at.
            let pc = if w.wait == Wait::Nothing { g.pc } else { g.pc.saturating_sub(1) };
            let at = &self.grid.program.lines[self.grid.program.code[pc as usize].line as usize];
            if lines.len() < 8 {
                let source = at.source.as_ref().map(|s| format!(" ({s})")).unwrap_or_default();
                let looked =
                    if w.looked == 0 { String::new() } else { format!(", looking at {:#x}", w.looked) };
                lines.push(format!(
                    "warp {} of block {} at line {}: {}{source}{looked}",
                    w.index, w.rank, at.line, at.text
                ));
            }
            if first.is_none_or(|(other, _): (&Warp, u32)| other.looked == 0 && w.looked != 0) {
                first = Some((w, pc));
            }
        }
        let detail = format!("{what}; {}", lines.join("; "));
        match first {
            Some((w, pc)) => {
                let lane = w.groups[0].mask.trailing_zeros();
                fault(&self.grid, &a.cluster, w, Blame { stop: Stop::new(kind, detail), pc, lane })
            }
            None => refuse(&self.plan.kernel.name, detail),
        }
    }
}

/// Blames the instruction a waiting warp waits at.
fn here(warp: &Warp, stop: Stop) -> Blame {
    let group = warp.groups.first();
    Blame {
        stop,
        pc: group.map_or(0, |g| g.pc.saturating_sub(1)),
        lane: group.map_or(0, |g| g.mask.trailing_zeros()),
    }
}

fn fault(grid: &Grid<'_>, cluster: &Cluster, warp: &Warp, blame: Blame) -> Fault {
    let line = grid.program.code[blame.pc as usize].line;
    notes::fault(grid, cluster, warp, line, blame.lane, &blame.stop)
}
