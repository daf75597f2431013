//! A launch that waits for another one is put aside, and goes on when others have run.
//!
//! A launch waits when all its warps stand at barriers or look at global memory again and again, find what
//! they found before, and change nothing. Everything it is made of is kept; its caller runs what else there
//! is, and comes back to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::company::{Common, Company, Member, Standing};
use super::grid::{Grid, Store};
use super::notes::Notes;
use super::schedule::{self, Blocks, Plan, Runner};
use super::{notes, parallel, workspace};
use crate::memory::clock::Clock;
use crate::memory::global::GlobalShadow;
use crate::memory::traffic::Counters;
use crate::{Fault, Instance, Launch, Memory, Options, Report, Touched};

/// A launch that waits.
pub struct Aside {
    instance: Arc<Instance>,
    kernel: usize,
    launch: Launch,
    options: Options,
    order: Vec<u32>,
    workspace: u64,
    seed: u64,
    /// Its place among the members of the company.
    member: usize,
    /// It has waited, or another launch did when it began.
    joined: bool,
    blocks: Blocks,
    state: State,
    why: Option<Fault>,
}

/// What of a grid outlives a pause.
#[derive(Default)]
struct State {
    shadow: GlobalShadow,
    written: BTreeSet<u64>,
    traffic: Option<Box<Counters>>,
    instructions: u64,
    executed: Option<Box<[u64]>>,
    longest: u64,
    looks: u64,
    global_looks: u64,
    notes: Notes,
    start: Clock,
    learned: Clock,
    released: Clock,
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").field("why", &self.why).finish_non_exhaustive()
    }
}

/// How far a launch has come.
#[derive(Debug)]
pub enum Step {
    /// To its end.
    Ended {
        /// Its report, or its faults.
        outcome: Result<Report, Vec<Fault>>,
        /// Behind faults, what it has touched all the same (with [`Options::track_accesses`]); else its
        /// report has that.
        touched: Vec<Touched>,
        /// Of each of the caller's chains, the last operation that flags have ordered it behind.
        learned: BTreeMap<u64, u64>,
        /// The number of the company in which it was held against other launches.
        company: Option<u64>,
    },
    /// It waits for another launch.
    Aside(Box<Aside>),
}

impl Aside {
    /// What it waits for, as the fault that it is when nothing comes.
    pub fn why(&self) -> Option<&Fault> {
        self.why.as_ref()
    }

    /// Whether anything has moved since it last waited.
    pub fn moved(&self) -> bool {
        self.blocks.moved
    }

    /// Goes on; the company takes back what it had.
    fn run(mut self: Box<Self>, memory: &mut Memory, company: &mut Company, fresh: bool) -> Step {
        let mut common = company.common.take().unwrap_or_default();
        let instance = self.instance.clone();
        let module = &instance.module;
        let (launch, options) = (self.launch.clone(), self.options);
        let mut plan = Plan {
            kernel: &module.kernels[self.kernel],
            program: &module.programs[self.kernel],
            launch: &launch,
            options: &options,
            addresses: &instance.addresses[..],
            target: &module.target[..],
            units: &module.units,
            order: std::mem::take(&mut self.order),
            workspace: self.workspace,
            seed: self.seed,
        };
        if let Some(shadow) = &mut common.shadow {
            shadow.fit(memory);
        }
        let mut grid = Grid::new(&plan, Store::Own(&mut *memory));
        if !fresh {
            self.state.shadow.fit(grid.memory.get());
            std::mem::swap(&mut grid.shadow, &mut self.state.shadow);
        }
        grid.own = common.members[self.member].own.clone();
        self.state.enter(&mut grid, common, fresh);
        let mut runner = Runner::new(&plan, grid);
        runner.blocks = std::mem::take(&mut self.blocks);
        let ended = if fresh { runner.begin(plan.order.iter().copied()) } else { runner.run_on() };
        let Runner { grid, blocks, .. } = runner;
        let (state, mut common) = State::leave(grid);
        (self.blocks, self.state) = (blocks, state);
        let step = match ended {
            Ok(Some(why)) => {
                self.state.shadow.leave(memory);
                common.share(&self.state.shadow);
                (self.why, self.joined) = (Some(why), true);
                self.order = std::mem::take(&mut plan.order);
                company.waiting += 1;
                Step::Aside(self)
            }
            ended => self.end(&plan, memory, &mut common, ended.err(), company.over),
        };
        if let Some(shadow) = &mut common.shadow {
            shadow.leave(memory);
        }
        company.common = Some(common);
        company.settle();
        step
    }

    /// The end of a launch.
    fn end(
        self: Box<Self>,
        plan: &Plan<'_>,
        memory: &mut Memory,
        common: &mut Common,
        last: Option<Fault>,
        number: u64,
    ) -> Step {
        let Aside { workspace, member, joined, state, .. } = *self;
        let State { mut shadow, written, traffic, instructions, executed, longest, notes, .. } = state;
        let touched = notes::touched(plan, memory, &mut shadow, &state.released);
        let learned = state.learned.chains();
        common.members[member].ended = Some(state.learned);
        if workspace != 0 {
            // It was allocated for this launch, and kernels release nothing.
            let _ = memory.free(workspace);
        }
        let company = joined.then_some(number);
        if last.is_some() || !notes.is_empty() {
            return Step::Ended { outcome: Err(notes.take(last)), touched, learned, company };
        }
        let done = parallel::Done { written, instructions, executed, longest, traffic, touched };
        let outcome = Ok(schedule::report(plan, memory, done));
        Step::Ended { outcome, touched: Vec::new(), learned, company }
    }
}

impl State {
    /// Hands its parts to the grid of a launch that goes on.
    fn enter(&mut self, grid: &mut Grid<'_>, mut common: Box<Common>, fresh: bool) {
        let state = std::mem::take(self);
        if !fresh {
            (grid.written, grid.traffic, grid.executed) = (state.written, state.traffic, state.executed);
            (grid.instructions, grid.longest) = (state.instructions, state.longest);
            (grid.looks, grid.global_looks, grid.notes) = (state.looks, state.global_looks, state.notes);
        }
        (grid.start, grid.learned, grid.released) = (state.start, state.learned, state.released);
        grid.flags = std::mem::take(&mut common.flags);
        grid.company = Some(common);
    }

    /// Takes them out.
    fn leave(grid: Grid<'_>) -> (State, Box<Common>) {
        let mut common = grid.company.unwrap_or_default();
        common.flags = grid.flags;
        let state = State {
            shadow: grid.shadow,
            written: grid.written,
            traffic: grid.traffic,
            instructions: grid.instructions,
            executed: grid.executed,
            longest: grid.longest,
            looks: grid.looks,
            global_looks: grid.global_looks,
            notes: grid.notes,
            start: grid.start,
            learned: grid.learned,
            released: grid.released,
        };
        (state, common)
    }
}

impl Company {
    /// Runs a kernel to its end, or until it waits for another launch.
    pub fn begin(
        &mut self,
        instance: &Arc<Instance>,
        name: &str,
        launch: Launch,
        standing: Standing,
        memory: &mut Memory,
        options: &Options,
    ) -> Step {
        let mut planned = match schedule::plan(instance, name, &launch, options) {
            Ok(plan) => plan,
            Err(fault) => return failed(fault),
        };
        if self.waiting == 0
            && parallel::worthwhile(&planned)
            && let Some(done) = parallel::attempt(&planned, memory)
        {
            let outcome = Ok(schedule::report(&planned, memory, done));
            return Step::Ended { outcome, touched: Vec::new(), learned: BTreeMap::new(), company: None };
        }
        let workspace = match workspace::make(&launch, planned.program.workspace, memory) {
            Ok(workspace) => workspace,
            Err(e) => return failed(schedule::refuse(name, e.to_string())),
        };
        let (order, seed) = (std::mem::take(&mut planned.order), planned.seed);
        let kernel = instance.module.kernels.iter().position(|k| k.name == name).unwrap_or_default();
        drop(planned);
        let common = self.common.get_or_insert_default();
        let first = common.members.last().map_or(0, |member| member.own.end);
        // Numbers begin anew with each company; one of four thousand million blocks never ends.
        let own = first..first.saturating_add(order.len() as u32).min(u32::MAX - 1);
        let start = common.start(&standing);
        if let Some(shadow) = &mut common.shadow {
            shadow.readers.devices.push((own.start, launch.device));
        }
        let (device, member, instance) = (launch.device, common.members.len(), instance.clone());
        common.members.push(Member {
            own,
            device,
            standing,
            instance: instance.clone(),
            kernel,
            ended: None,
        });
        let joined = self.waiting > 0;
        let learned = Clock::new(u32::MAX, 0);
        let state = State { start, released: learned.clone(), learned, ..State::default() };
        let aside = Aside {
            instance,
            kernel,
            launch,
            options: *options,
            order,
            workspace,
            seed,
            member,
            joined,
            blocks: Blocks::default(),
            state,
            why: None,
        };
        Box::new(aside).run(memory, self, true)
    }

    /// Goes on with a launch that waited, until it ends or waits again.
    pub fn resume(&mut self, aside: Box<Aside>, memory: &mut Memory) -> Step {
        self.insist(aside, memory, 0)
    }

    /// Goes on with a launch that waited; it waits again only after so many warp instructions in vain
    /// ([`crate::QUIET`] before it is given up): a loop of atomics that change nothing, or a poll that gives
    /// up, ends by itself.
    pub fn insist(&mut self, mut aside: Box<Aside>, memory: &mut Memory, instructions: u64) -> Step {
        aside.blocks.insists = instructions;
        self.waiting -= 1;
        aside.run(memory, self, false)
    }

    /// Gives a launch up that waits.
    pub fn abandon(&mut self, aside: Box<Aside>, memory: &mut Memory) {
        if aside.workspace != 0 {
            let _ = memory.free(aside.workspace);
        }
        self.waiting -= 1;
        self.settle();
    }

    /// The company is over when no launch waits.
    fn settle(&mut self) {
        if self.waiting == 0 {
            self.common.get_or_insert_default().disperse();
            self.over += 1;
        }
    }
}

/// A launch that never began.
fn failed(fault: Fault) -> Step {
    let (outcome, touched) = (Err(vec![fault]), Vec::new());
    Step::Ended { outcome, touched, learned: BTreeMap::new(), company: None }
}
