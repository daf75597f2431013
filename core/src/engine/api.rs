//! The engine: what users of it call, and how it is made.

use super::coordinator::{Coordinator, Live, Planned};
use super::group::Followers;
use super::kept::Kept;
use super::memory::{self, Memory};
use super::order::StepResult;
use super::request::{Output, Request, Want};
use super::runner::{Launched, Runner};
use super::sizes::{captures, positions_of, sizes, steps_ahead, with_room_for_sound};
use super::step_tokens::StepTokens;
use crate::backend::{Backend, Communicator, Mem, Solo};
use crate::config::EngineConfig;
use crate::config::deepspeed::Warning;
use crate::inject::kernels;
use crate::kv::{PagedKv, PrefixStats};
use crate::model::Model;
use crate::policy::Family;
use crate::profile::Profile;
use crate::schedule::Sequence;
use crate::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A model that runs on a backend.
pub struct Engine<B: Backend> {
    pub(super) runner: Runner<B>,
    pub(super) coordinator: Coordinator,
    /// Launched and not yet collected, the oldest first.
    pub(super) in_flight: VecDeque<(Planned, Launched<B>)>,
    /// How many may be launched before the oldest is collected.
    pub(super) ahead: usize,
    pub(super) memory: Memory,
    warnings: Vec<Warning>,
    pub(super) result: StepResult,
    /// What calls that ran steps of their own saw of other requests.
    pub(super) backlog: Vec<Output>,
    pub(super) failed: Vec<u64>,
    /// The other ranks of its group.
    pub(super) followers: Option<Box<dyn Followers>>,
    /// Why ranks are not at the same step any more.
    pub(super) parted: Option<String>,
    /// Why a step failed that another call ran for itself: the next step returns it.
    pub(super) unreported: Option<Error>,
    /// Steps that failed so far.
    pub(super) failures: u64,
    pub(super) clock: Option<Clock>,
    /// Whether pages and request slots are counted after every step.
    pub(super) auditing: bool,
}

/// The time since some moment that stays the same.
type Clock = Box<dyn FnMut() -> Duration>;

impl<B: Backend> Engine<B> {
    /// An engine for `model`; sizes are checked, then everything a step needs is allocated.
    ///
    /// # Errors
    /// `Config` for impossible sizes or an element type that the backend lacks, `OutOfMemory` from
    /// allocations.
    pub fn new(backend: Arc<B>, model: Model<B::Device>, config: EngineConfig) -> Result<Self> {
        Self::make(backend, model, config, Box::new(Solo))
    }

    /// The engine of a group, for rank 0's `model`: `followers` are sent every step's order.
    ///
    /// # Errors
    /// As [`Engine::new`]; `Config` for a model of another rank than `comm` is; those of the followers.
    pub fn of_group(
        backend: Arc<B>,
        model: Model<B::Device>,
        config: EngineConfig,
        comm: Box<dyn Communicator<B>>,
        mut followers: Box<dyn Followers>,
    ) -> Result<Self> {
        let engine = Self::make(backend, model, config, comm)?;
        followers.start(engine.config())?;
        Ok(Self { followers: Some(followers), ..engine })
    }

    fn make(
        backend: Arc<B>,
        mut model: Model<B::Device>,
        config: EngineConfig,
        comm: Box<dyn Communicator<B>>,
    ) -> Result<Self> {
        model.stay_within_tables();
        config.possible(backend.name(), &backend.caps().dtypes, &backend.caps().kv_formats)?;
        let positions = model.reach().filter(|_| model.encoder.is_none());
        let mut config = with_room_for_sound(config, &model.spec);
        config.graphs &= comm.is_capturable();
        let most = positions_of(&model.spec, config.page_size);
        config = config.check(positions.unwrap_or(most))?;
        if model.spec.family == Family::Encoder && model.spec.head.is_per_token() {
            config.logit_rows = Some(config.max_step_tokens);
        }
        backend.ready(&kernels(backend.as_ref(), &model, config.dtype, config.kv_dtype)?)?;
        let ahead = steps_ahead(backend.as_ref(), &config);
        let (config, warning) = memory::pool(&backend, &model, config, ahead)?;
        let memory = Memory::of(backend.as_ref(), &model, &config, ahead)?;
        let runner = Runner::with_sizes(backend, model, &config, &sizes(&config, ahead), comm)?;
        let (spec, shifts) = (runner.model.spec.clone(), runner.model.rope_shifts());
        let capture = captures(runner.backend.as_ref(), &runner.model, &config);
        Ok(Self {
            coordinator: Coordinator::new(spec, shifts, config, capture),
            runner,
            in_flight: VecDeque::with_capacity(ahead + 1),
            ahead,
            memory,
            warnings: warning.into_iter().collect(),
            result: StepResult::default(),
            backlog: Vec::new(),
            failed: Vec::new(),
            followers: None,
            parted: None,
            unreported: None,
            failures: 0,
            clock: None,
            auditing: false,
        })
    }

    /// Gives it a clock, the time since some moment that stays the same: [`Request::start_within`] and
    /// [`EngineConfig::max_step_ms`] go by it.
    ///
    /// ```
    /// # use engraft_core::{backend::Backend, engine::Engine};
    /// fn with_time<B: Backend>(engine: &mut Engine<B>) {
    ///     let start = std::time::Instant::now();
    ///     engine.set_clock(move || start.elapsed());
    /// }
    /// ```
    pub fn set_clock(&mut self, clock: impl FnMut() -> Duration + 'static) {
        self.clock = Some(Box::new(clock));
        self.look_at_clock();
    }

    /// Whether it has a clock.
    pub fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// The time, where there is a clock.
    pub(super) fn look_at_clock(&mut self) {
        if let Some(clock) = &mut self.clock {
            self.coordinator.now = clock();
        }
    }

    /// Refuses a setting that goes by time, without a clock.
    pub(super) fn needs_clock(&self, field: &str, got: Option<impl std::fmt::Debug>) -> Result<()> {
        match got {
            Some(got) if self.clock.is_none() => {
                Err(Error::config(field, format!("{got:?}"), "a clock (`Engine::set_clock`), or none"))
            }
            _ => Ok(()),
        }
    }

    /// Queues a request and returns its number.
    ///
    /// # Errors
    /// `Request` for an empty prompt, one longer than the context, or token ids beyond the vocabulary;
    /// `Config` for sampling parameters out of range, or a time to wait without a clock; `KvFull` when the
    /// pool could never hold it;
    /// `Architecture` for encoders; `OutOfMemory` where what it wants to keep has no room on the device.
    pub fn put(&mut self, request: Request) -> Result<u64> {
        self.needs_clock("start_within", request.start_within)?;
        self.look_at_clock();
        let request = Request { sampling: request.sampling.seeded(), ..request };
        self.runner.make_room(request.want.hidden)?;
        self.coordinator.put(request)
    }

    /// Ends a request wherever it stands; whether it was there. Its pages are free once no launched step
    /// names them.
    pub fn cancel(&mut self, id: u64) -> Result<bool> {
        let before = self.backlog.len();
        self.backlog.retain(|output| output.id != id);
        // It may have ended in a step that is not reported yet.
        let reported = self.backlog.len() < before;
        Ok(self.coordinator.cancel(id)? || reported)
    }

    /// Takes the pages of a running request, which goes on once they can be had again; whether it ran. Its
    /// tokens are those that it would have had, in modes that promise results independent of chunks.
    pub fn preempt(&mut self, id: u64) -> Result<bool> {
        self.coordinator.preempt(id)
    }

    /// Tokens of a running or waiting request that are sampled and collected; none of one that is neither.
    pub fn sampled(&self, id: u64) -> Option<&[u32]> {
        self.sequence_of(id).map(|seq| seq.sampled())
    }

    /// What a running or waiting request keeps besides its tokens; nothing of one that is neither.
    pub fn want(&self, id: u64) -> Want {
        self.sequence_of(id).map_or(Want::default(), |seq| seq.data.want)
    }

    fn sequence_of(&self, id: u64) -> Option<&Sequence<Live>> {
        let scheduler = &self.coordinator.scheduler;
        let siblings = self.coordinator.siblings.values().flatten();
        let mut all =
            scheduler.running().chain(scheduler.leaving()).chain(scheduler.waiting()).chain(siblings);
        all.find(|seq| seq.id == id)
    }

    /// Whether nothing runs, nothing waits, and nothing is left to be reported.
    pub fn is_idle(&self) -> bool {
        let reported = self.backlog.is_empty() && self.unreported.is_none();
        self.coordinator.scheduler.is_idle() && self.in_flight.is_empty() && reported
    }

    /// KV pages that requests can have, of all: those without an owner, and those of prefixes that no
    /// running request uses.
    pub fn free_pages(&self) -> (usize, usize) {
        let pool = &self.coordinator.kv.pool;
        (pool.available(), pool.total())
    }

    /// Requests that run, and requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        let (running, waiting) = self.coordinator.scheduler.counts();
        (running, waiting + self.coordinator.siblings.values().map(Vec::len).sum::<usize>())
    }

    /// Requests that the step planned last has begun, each with the prompt tokens that it took from the
    /// prefix cache. Continuations that join a prompt that has run are not among them.
    ///
    /// ```
    /// # use engraft_core::{backend::Backend, engine::{Engine, Request}};
    /// fn cached<B: Backend>(engine: &mut Engine<B>, prompt: Vec<u32>) -> engraft_core::Result<usize> {
    ///     let id = engine.put(Request { prompt, max_new_tokens: 1, ..Request::default() })?;
    ///     engine.step(&mut Vec::new())?;
    ///     Ok(engine.begun().iter().find(|(begun, _)| *begun == id).map_or(0, |(_, cached)| *cached))
    /// }
    /// ```
    pub fn begun(&self) -> &[(u64, usize)] {
        &self.coordinator.begun
    }

    /// What the prefix cache has done so far.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.coordinator.kv.stats()
    }

    /// How often a request has given its pages up, to go on later.
    pub fn preemptions(&self) -> u64 {
        self.coordinator.scheduler.preemptions()
    }

    /// How many tokens each step so far has computed.
    pub fn step_tokens(&self) -> &StepTokens {
        &self.coordinator.step_tokens
    }

    /// What it takes of the device's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Settings of its configuration that have no effect here.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Keys and values of all layers, for whoever measures what a step reads.
    pub fn kv(&self) -> &PagedKv<Mem<B>> {
        &self.runner.state.kv
    }

    /// What a finished request asked to keep.
    pub fn take_kept(&mut self, id: u64) -> Option<Kept> {
        self.coordinator.finished.remove(&id)
    }

    /// The requests that failed steps have ended since this was last asked.
    pub fn take_failed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.failed)
    }

    /// The model.
    pub fn model(&self) -> &Model<B::Device> {
        &self.runner.model
    }

    /// The checked configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.coordinator.config
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<B> {
        &self.runner.backend
    }

    /// Steps that are launched before the one before is collected: 0 or 1.
    pub fn steps_ahead(&self) -> usize {
        self.ahead
    }

    /// Sizes of the decode buckets captured so far.
    pub fn captured_graphs(&self) -> Vec<usize> {
        self.runner.captured_graphs()
    }

    /// Sizes of the decode buckets whose capture failed, and why: their steps run op by op.
    pub fn refused_graphs(&self) -> Vec<(usize, &str)> {
        self.runner.refused_graphs()
    }

    /// Measures ops from the next step on (steps then run eagerly), or stops.
    pub fn set_profiling(&mut self, on: bool) {
        let Runner { backend, model, .. } = &self.runner;
        self.coordinator.capture = !on && captures(backend.as_ref(), model, &self.coordinator.config);
        self.runner.set_profiling(on);
    }

    /// Counts pages and request slots whenever a step is collected or has failed, or stops: one that is lost
    /// or has an owner too many is an `Internal` error of that step. For tests: it takes time in proportion
    /// to the pool.
    pub fn set_auditing(&mut self, on: bool) {
        self.auditing = on;
    }

    /// The spans measured since profiling began or since the last call.
    pub fn take_profile(&mut self) -> Option<Profile> {
        self.runner.profile().map(std::mem::take)
    }

    /// Milliseconds of every profiled step so far, in order (DeepSpeed's `model_times`).
    pub fn model_times(&self) -> Vec<f64> {
        self.runner.steps_ms().to_vec()
    }

    /// Runs steps until nothing is left, and returns every sampled token in order, by request.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn run(&mut self) -> Result<BTreeMap<u64, Vec<u32>>> {
        let (mut out, mut sampled) = (Vec::new(), BTreeMap::<u64, Vec<u32>>::new());
        while !self.is_idle() {
            self.step(&mut out)?;
            for o in &out {
                sampled.entry(o.id).or_default().extend(o.token);
            }
        }
        Ok(sampled)
    }
}
