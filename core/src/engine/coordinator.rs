//! Knows requests, pages, sampling and the batch, and never a backend: it turns what waits and runs into step
//! orders, and what steps bring back into tokens, ends and kept rows.
//!
//! A step may be planned before the one before is collected. A token that is in flight then has a place but
//! no id: the order names the row of the logits of the step before that samples it, and the device takes it
//! from there.

use super::kept::Kept;
use super::order::{Admitted, StepOrder};
use super::part::Part;
use super::request::{Caller, Finish, Layers, Output, Request, Want};
use super::sizes::largest_step;
use super::step_tokens::StepTokens;
use crate::Result;
use crate::config::EngineConfig;
use crate::graph::BucketSizes;
use crate::kv::{CachedPrefix, KvManager, PrefixKey};
use crate::mem::StepWords;
use crate::model::RopeShifts;
use crate::policy::{Family, ModelSpec};
use crate::sample::{Rules, SamplingParams};
use crate::schedule::{Budget, Scheduler, Sequence, Standing, StepBatch};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The owner of requests and calls of no tenant.
const NO_TENANT: u64 = 0;
/// The call that requests belong to: each is by itself, and all are admitted by deadline.
const REQUESTS: u64 = 0;

/// Requests, pages and batches of an engine.
pub(super) struct Coordinator {
    pub(super) spec: ModelSpec,
    pub(super) config: EngineConfig,
    pub(super) scheduler: Scheduler<Live>,
    pub(super) kv: KvManager,
    /// What ended requests asked to keep.
    pub(super) finished: BTreeMap<u64, Kept>,
    /// Whether decode steps are captured.
    pub(super) capture: bool,
    pub(super) shifts: RopeShifts,
    /// Whether any block reads the position before.
    pub(super) filters: bool,
    pub(super) buckets: BucketSizes,
    /// Sequences of buckets that could not be captured.
    pub(super) refused: Vec<usize>,
    pub(super) next_id: u64,
    /// Who the next calls are for.
    pub(super) caller: Caller,
    /// The time, by the clock of whoever calls.
    pub(super) now: Duration,
    /// When the last step was collected.
    pub(super) collected_at: Duration,
    /// Steps planned, and steps that no device works on any more.
    pub(super) planned: u64,
    pub(super) collected: u64,
    /// Of all steps planned.
    pub(super) step_tokens: StepTokens,
    pub(super) spare: Vec<Planned>,
    /// Request slots whose row of the sampling table the next step has to write: of forks, and of sequences
    /// whose admission a step carried that failed.
    pub(super) unwritten: Vec<u32>,
    /// Pages `(from, to)` that the next step has to copy first.
    pub(super) copies: Vec<(u32, u32)>,
    /// What the step planned last has begun: number, and positions that came from the prefix cache.
    pub(super) begun: Vec<(u64, usize)>,
    /// Sequences admitted before it.
    arrivals: u64,
    /// Continuations that wait for a prompt to be run, by the request that runs it.
    pub(super) siblings: BTreeMap<u64, Vec<Sequence<Live>>>,
}

/// What the engine keeps of a request besides its tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Live {
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingParams,
    pub subsequence: u32,
    /// Which tokens may follow which; the host samples then.
    pub rules: Option<Arc<Rules>>,
    pub want: Want,
    /// Whether what it wants is kept for whoever asks after its end.
    pub keeps: bool,
    /// How far its rows of the rotary tables lie behind those of shorter prompts.
    pub shift: u32,
    /// Of every token of the prompt; empty counts as all 0.
    pub token_type_ids: Vec<u32>,
    /// What an encoder reads in front: tokens, or the bits of features.
    pub source: Arc<[u32]>,
    /// A row of pixels for each token, of models that read images; features, of encoders of sound.
    pub values: Vec<f32>,
    pub kept: Kept,
    /// Its prefix is shared with requests of the same salt alone.
    pub cache_salt: String,
    /// Whether all of its prompt is computed, whatever the cache has of it.
    pub skip_prefix_cache: bool,
    /// Its number here, where keys and values of it came from outside: its prefix is shared with nobody.
    pub private: Option<u64>,
    /// The request that it joined as a continuation, and the step that it did so in.
    pub joined: Option<(u64, u64)>,
}

/// What a request asks of the scheduler.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// Tokens to sample at most.
    pub new: usize,
    /// Positions whose token rows the head reads besides those that sample.
    pub asked: Range<usize>,
    /// Tokens in front that an encoder reads, and positions that they take.
    pub source: [usize; 2],
    pub standing: Standing,
}

impl Wanted {
    /// Nothing is sampled, and nothing is asked for.
    pub(super) fn new(standing: Standing) -> Self {
        Self { new: 0, asked: 0..0, source: [0, 0], standing }
    }
}

/// A step that is planned or launched.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub order: StepOrder,
    pub(super) batch: StepBatch,
    pub(super) parts: Vec<Part>,
    /// When it was launched.
    pub(super) began: Duration,
}

impl Coordinator {
    pub(super) fn new(spec: ModelSpec, shifts: RopeShifts, config: EngineConfig, capture: bool) -> Self {
        Self {
            scheduler: Scheduler::new(Budget {
                seqs: config.max_seqs,
                tokens: config.max_step_tokens,
                rows: config.step_rows(),
                ms: config.max_step_ms,
            }),
            kv: pages(&spec, &config),
            finished: BTreeMap::new(),
            buckets: BucketSizes::new(config.max_seqs, config.max_context),
            refused: Vec::new(),
            capture,
            shifts,
            next_id: 0,
            caller: Caller::default(),
            now: Duration::ZERO,
            collected_at: Duration::ZERO,
            planned: 0,
            collected: 0,
            step_tokens: StepTokens::default(),
            spare: (0..2).map(|_| Planned::new(&config)).collect(),
            unwritten: Vec::with_capacity(config.max_seqs),
            copies: Vec::with_capacity(config.max_seqs),
            begun: Vec::with_capacity(config.max_seqs),
            arrivals: 0,
            siblings: BTreeMap::new(),
            filters: spec.blocks.iter().any(|block| block.filter.is_some()),
            spec,
            config,
        }
    }

    /// Queues a request to continue a prompt.
    pub(super) fn put(&mut self, request: Request) -> Result<u64> {
        let id = self.next_id;
        request.check(id, &self.spec, &self.config)?;
        let (tokens, source, new) = request.tokens(&self.spec, &self.config);
        let of_encoder = request.source(&self.spec);
        let Request { sampling, rules, stop_ids, subsequence, want, .. } = request;
        let asked = match (want.logits, self.spec.head.is_per_token()) {
            (false, _) => 0..0,
            (true, true) => 0..usize::MAX,
            (true, false) => self.head_rows(&tokens),
        };
        let keeps = want != Want::default();
        let Request { cache_salt, skip_prefix_cache, priority, tenant, start_within, .. } = request;
        let live = Live { stop_ids, sampling, rules, subsequence, want, keeps, ..Live::default() };
        let live = Live { cache_salt, skip_prefix_cache, source: of_encoder, ..live };
        let deadline = start_within.map_or(Duration::MAX, |time| self.now.saturating_add(time));
        let standing = Standing { priority, deadline, ..Standing::of(owner_of(&tenant)) };
        self.enqueue(tokens, Wanted { new, asked, source, standing }, live)
    }

    /// The standing of what one call queues.
    pub(super) fn call(&self) -> Standing {
        let Caller { tenant, priority } = &self.caller;
        let call = REQUESTS + 1 + self.next_id;
        Standing { priority: *priority, call, ..Standing::of(owner_of(tenant)) }
    }

    /// Queues tokens that pass [`Request::check`] or stand for a text that was checked.
    pub(super) fn enqueue(&mut self, prompt: Vec<u32>, wanted: Wanted, live: Live) -> Result<u64> {
        let id = self.next_id;
        let Wanted { new, asked, source: [source, source_positions], standing } = wanted;
        let live = Live { shift: self.shifts.of(prompt.len()), ..live };
        let prefix = self.cached_prefix(prompt.len(), &asked, &live);
        let of_encoder = Sequence { source, source_positions, ..Sequence::new(id, prompt, new, live) };
        let by_host = of_encoder.data.rules.is_some();
        let sequence = Sequence { prefix, asked, by_host, standing, ..of_encoder };
        match self.spec.family {
            Family::Decoder => self.scheduler.submit(sequence, &self.kv)?,
            Family::Encoder => self.scheduler.submit_whole(sequence),
        }
        self.next_id += 1;
        Ok(id)
    }

    /// The place in the prefix cache of a prompt of so many tokens; none where it has no part in it.
    pub(super) fn cached_prefix(
        &self,
        prompt: usize,
        asked: &Range<usize>,
        live: &Live,
    ) -> Option<CachedPrefix> {
        let tokens_alone = live.token_type_ids.is_empty() && live.values.is_empty();
        if !self.config.prefix_cache || self.spec.family != Family::Decoder || !tokens_alone {
            return None;
        }
        // Nothing can be kept of a position that is not computed, and the last one is what samples.
        let most = match live.want.hidden {
            Layers::None if asked.is_empty() => prompt - 1,
            Layers::None => asked.start.min(prompt - 1),
            _ => 0,
        };
        let most = if live.skip_prefix_cache { 0 } else { most };
        let (salt, source) = (live.cache_salt.clone(), live.source.clone());
        let key = PrefixKey { salt, rope_shift: live.shift, private: live.private, source };
        let len = live.source.len();
        let read = self.spec.stem().map_or(len, |stem| stem.tokens_of(stem.frames_of(len)));
        let least = read.div_ceil(self.config.page_size);
        Some(CachedPrefix::new(key, most).behind(least))
    }

    /// Ends a request wherever it stands; whether it was there.
    pub(super) fn cancel(&mut self, id: u64) -> Result<bool> {
        let kept = self.finished.remove(&id).is_some();
        self.forget_first_step(id);
        let Self { scheduler, kv, collected, .. } = self;
        let live = scheduler.cancel(id, *collected, kv)?;
        let found = live.is_some() || self.cancel_sibling(id);
        self.release_siblings(id)?;
        self.forget_private(live.and_then(|live| live.private))?;
        Ok(found || kept)
    }

    /// Takes the pages of a running request, which waits again; whether it ran.
    pub(super) fn preempt(&mut self, id: u64) -> Result<bool> {
        let Some(row) = self.forget_first_step(id) else { return Ok(false) };
        self.scheduler.preempt(row, &mut self.kv).map(|()| true)
    }

    /// Takes back what the next step would do for a running request that no step has run; its request slot.
    fn forget_first_step(&mut self, id: u64) -> Option<u32> {
        let row = self.scheduler.running().find(|seq| seq.id == id)?.row;
        self.unwritten.retain(|other| *other != row);
        self.forget_copy(row);
        Some(row)
    }

    /// Takes back the copy that the next step would make of a page for a request slot.
    pub(super) fn forget_copy(&mut self, row: u32) {
        let Self { kv, copies, .. } = self;
        copies.retain(|(_, to)| !kv.tables.pages(row).contains(to));
    }

    /// Plans the next step and counts it as launched; none where nothing is to be done before a step is
    /// collected.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn plan(&mut self) -> Result<Option<Planned>> {
        let mut planned = self.spare.pop().unwrap_or_else(|| Planned::new(&self.config));
        match self.spec.family {
            Family::Decoder => self.scheduler.next(&mut self.kv, &mut planned.batch)?,
            Family::Encoder => self.scheduler.next_whole(&mut self.kv, &mut planned.batch),
        }
        self.note_begun(&planned.batch);
        if planned.batch.tokens == 0 {
            // Admitted, and waiting for pages that a step in flight brings back.
            self.unwritten.append(&mut planned.batch.admitted);
            self.spare.push(planned);
            return Ok(None);
        }
        self.planned += 1;
        self.step_tokens.add(planned.batch.tokens + planned.batch.encodes);
        let Planned { order, batch, parts, began } = &mut planned;
        order.clear();
        order.number = self.planned;
        *began = self.now;
        batch.admitted.append(&mut self.unwritten);
        let Self { copies, scheduler, kv, planned: number, .. } = self;
        order.copies.extend(copies.drain(..).filter(|(_, to)| scheduler.copies_to(*to, *number, kv)));
        // What joins is copied by the step behind, once this one has filled the page.
        if !self.siblings.is_empty() {
            self.join(batch)?;
        }
        self.order_admissions(batch, order);
        let totals = self.parts(batch, parts);
        let (shape, captured, want) = self.shape(batch.tokens, &totals);
        (order.captured, order.want) = (captured, want);
        self.fill(parts, &totals, shape, &mut order.words);
        if batch.encodes > 0 {
            self.fill_source(parts, batch.encodes, order);
        }
        self.kv.tables.settle();
        if !totals.lone {
            self.count(parts, order);
        }
        Ok(Some(planned))
    }

    /// Remembers what is admitted for the first time.
    fn note_begun(&mut self, batch: &StepBatch) {
        for row in &batch.admitted {
            let Some(seq) = self.scheduler.sequence(*row) else { continue };
            if seq.arrival >= self.arrivals {
                // Of a text that an encoder reads all is found or nothing, whatever its pages hold besides.
                let found = if seq.source > 0 { seq.done.min(seq.source) } else { seq.done };
                self.begun.push((seq.id, found));
            }
        }
        self.arrivals = self.scheduler.arrivals();
    }

    fn order_admissions(&self, batch: &StepBatch, order: &mut StepOrder) {
        for row in &batch.admitted {
            let Some(seq) = self.scheduler.sequence(*row) else { continue };
            let seen = (seq.data.sampling.repetition_penalty != 1.0).then(|| {
                let from = order.seen.len();
                order.seen.extend_from_slice(&seq.tokens[seq.source_positions..]);
                from..order.seen.len()
            });
            order.admitted.push(Admitted { row: *row, sampling: seq.data.row(*row), seen });
        }
    }

    /// Counts the parts as launched that [`Coordinator::parts`] has not: what they sample is in flight.
    fn count(&mut self, parts: &[Part], order: &mut StepOrder) {
        let mut row = 0;
        for Part { slice, rows, lone, .. } in parts {
            row += *rows;
            if lone.is_some() {
                continue;
            }
            let sampled_in = if slice.samples { Some(row - 1) } else { None };
            self.scheduler.launched(slice, order.number, sampled_in);
            if self.spec.family == Family::Encoder
                && let Some(seq) = self.scheduler.sequence_mut(slice.row)
            {
                order.frames.extend(self.spec.stem().map(|stem| stem.frames_of(seq.data.values.len())));
                order.values.append(&mut seq.data.values);
            }
        }
    }

    /// Remembers that a bucket cannot be captured: its steps are ordered in their own shape from now on.
    pub(super) fn refuse(&mut self, order: &StepOrder) {
        self.refused.push(order.words.shape().seqs);
    }

    /// Ends the requests that have waited longer than they may.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn expire(&mut self, out: &mut Vec<Output>) -> Result<()> {
        // A continuation that waited for one of them may wait as long as it, and no longer.
        loop {
            let expired = self.scheduler.expired(self.now);
            if expired.is_empty() {
                return Ok(());
            }
            for seq in expired {
                out.push(Output { id: seq.id, token: None, finish: Some(Finish::Expired) });
                self.release_siblings(seq.id)?;
            }
        }
    }

    /// Whether every page and every request slot is accounted for.
    ///
    /// # Errors
    /// `Internal`, naming what is not.
    pub(super) fn audit(&self) -> Result<()> {
        self.scheduler.audit(&self.kv)
    }
}

/// The pages of an engine with this model.
fn pages(spec: &ModelSpec, config: &EngineConfig) -> KvManager {
    let (rows, stride, size) = (config.max_seqs, config.pages_per_seq(), config.page_size);
    let mut kv = KvManager::new(rows, stride, size, config.pool_pages(), config.page_seed);
    if spec.encoder.is_some() {
        kv.tables = kv.tables.with_encoder();
    }
    kv
}

impl Planned {
    fn new(config: &EngineConfig) -> Self {
        let words = StepWords::with_capacity(largest_step(config).words());
        // Of any step: none allocates.
        let (admitted, seen) = (Vec::with_capacity(config.max_seqs), Vec::with_capacity(config.max_context));
        let order = StepOrder { words, admitted, seen, ..StepOrder::default() };
        let parts = Vec::with_capacity(config.max_seqs);
        Self { order, batch: StepBatch::with_capacity(config.max_seqs), parts, began: Duration::ZERO }
    }
}

impl Live {
    /// Its row of the sampling table; `slot` is its request slot.
    pub(super) fn row(&self, slot: u32) -> crate::sample::SampleRow {
        let penalised = self.sampling.repetition_penalty != 1.0;
        self.sampling.row(self.subsequence, 0, 0, if penalised { slot as i32 } else { -1 })
    }
}

/// The owner that a tenant's name stands for.
fn owner_of(tenant: &str) -> u64 {
    if tenant.is_empty() {
        return NO_TENANT;
    }
    // FNV-1a: a saved request carries it, and another build has to know its owner.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    tenant.bytes().fold(0xcbf2_9ce4_8422_2325, step) | 1 << 63
}
