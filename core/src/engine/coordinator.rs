//! Knows requests, pages, sampling and the batch, and never a backend: it turns what waits and runs into step
//! orders, and what steps bring back into tokens, ends and kept rows.
//!
//! A step may be planned before the one before is collected. A token that is in flight then has a place but
//! no id: the order names the row of the logits of the step before that samples it, and the device takes it
//! from there.

use super::kept::Kept;
use super::order::{Admitted, StepOrder, StepResult, StepWant, lost};
use super::request::{Finish, Layers, Output, Request, Want};
use super::sizes::largest_step;
use crate::Result;
use crate::config::EngineConfig;
use crate::graph::BucketSizes;
use crate::kv::{CachedPrefix, KvManager, PrefixKey};
use crate::mem::{SKIP, StepFill, StepShape, StepWords};
use crate::model::RopeShifts;
use crate::policy::{Family, ModelSpec};
use crate::sample::{NO_TOKEN, SamplingParams};
use crate::schedule::{Scheduler, Sequence, Slice, StepBatch, Token};
use std::collections::BTreeMap;
use std::ops::Range;

/// The owner of requests in the queue; calls are owners of their texts.
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
    filters: bool,
    buckets: BucketSizes,
    /// Sequences of buckets that could not be captured.
    refused: Vec<usize>,
    pub(super) next_id: u64,
    /// Steps planned, and steps that no device works on any more.
    planned: u64,
    collected: u64,
    spare: Vec<Planned>,
    /// Request slots whose row of the sampling table the next step has to write: of forks, and of sequences
    /// whose admission a step carried that failed.
    pub(super) unwritten: Vec<u32>,
    /// Pages `(from, to)` that the next step has to copy first.
    pub(super) copies: Vec<(u32, u32)>,
}

/// What the engine keeps of a request besides its tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Live {
    pub stop_ids: Vec<u32>,
    pub sampling: SamplingParams,
    pub subsequence: u32,
    pub want: Want,
    /// Whether what it wants is kept for whoever asks after its end.
    pub keeps: bool,
    /// Positions whose token rows the head reads besides those that sample.
    pub asked: Range<usize>,
    /// How far its rows of the rotary tables lie behind those of shorter prompts.
    pub shift: u32,
    /// Of every token of the prompt; empty counts as all 0.
    pub token_type_ids: Vec<u32>,
    /// A row of pixels for each token, of models that read images.
    pub pixels: Vec<f32>,
    pub kept: Kept,
    /// Its prefix is shared with requests of the same salt alone.
    pub cache_salt: String,
    /// Whether all of its prompt is computed, whatever the cache has of it.
    pub skip_prefix_cache: bool,
}

/// A step that is planned or launched.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub order: StepOrder,
    batch: StepBatch,
    parts: Vec<Part>,
}

/// What a step has of one request.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: u64,
    slice: Slice,
    /// Token rows that the head reads.
    rows: usize,
    want: Want,
    keeps: bool,
}

impl Coordinator {
    pub(super) fn new(spec: ModelSpec, shifts: RopeShifts, config: EngineConfig, capture: bool) -> Self {
        Self {
            scheduler: Scheduler::new(config.max_seqs, config.max_step_tokens),
            kv: KvManager::new(
                config.max_seqs,
                config.pages_per_seq(),
                config.page_size,
                config.pool_pages(),
                config.page_seed,
            ),
            finished: BTreeMap::new(),
            buckets: BucketSizes::new(config.max_seqs, config.max_context),
            refused: Vec::new(),
            capture,
            shifts,
            next_id: 0,
            planned: 0,
            collected: 0,
            spare: (0..2).map(|_| Planned::new(&config)).collect(),
            unwritten: Vec::with_capacity(config.max_seqs),
            copies: Vec::new(),
            filters: spec.blocks.iter().any(|block| block.filter.is_some()),
            spec,
            config,
        }
    }

    /// Queues a request to continue a prompt.
    pub(super) fn put(&mut self, request: Request) -> Result<u64> {
        let id = self.next_id;
        request.check(id, &self.spec, &self.config)?;
        let Request { prompt, max_new_tokens, sampling, stop_ids, subsequence, want, .. } = request;
        let new = max_new_tokens.min(self.config.max_context - prompt.len());
        let asked = match (want.logits, self.spec.head.is_per_token()) {
            (false, _) => 0..0,
            (true, true) => 0..usize::MAX,
            (true, false) => self.head_rows(&prompt),
        };
        let keeps = want != Want::default();
        let Request { cache_salt, skip_prefix_cache, .. } = request;
        let live = Live { stop_ids, sampling, subsequence, want, keeps, asked, ..Live::default() };
        let live = Live { cache_salt, skip_prefix_cache, ..live };
        self.enqueue(REQUESTS, prompt, new, live)
    }

    /// An owner of what one call queues.
    pub(super) fn owner(&self) -> u64 {
        REQUESTS + 1 + self.next_id
    }

    /// Queues tokens that pass [`Request::check`] or stand for a text that was checked.
    pub(super) fn enqueue(&mut self, owner: u64, prompt: Vec<u32>, new: usize, live: Live) -> Result<u64> {
        let id = self.next_id;
        let live = Live { shift: self.shifts.of(prompt.len()), ..live };
        let prefix = self.cached_prefix(prompt.len(), &live);
        let sequence = Sequence { prefix, ..Sequence::new(id, prompt, new, live) };
        match self.spec.family {
            Family::Decoder => self.scheduler.submit(owner, sequence, &self.kv)?,
            Family::Encoder => self.scheduler.submit_whole(owner, sequence),
        }
        self.next_id += 1;
        Ok(id)
    }

    /// The place in the prefix cache of a prompt of so many tokens; none where it has no part in it.
    pub(super) fn cached_prefix(&self, prompt: usize, live: &Live) -> Option<CachedPrefix> {
        let tokens_alone = live.token_type_ids.is_empty() && live.pixels.is_empty();
        if !self.config.prefix_cache || self.spec.family != Family::Decoder || !tokens_alone {
            return None;
        }
        // Nothing can be kept of a position that is not computed, and the last one is what samples.
        let most = match live.want.hidden {
            Layers::None if live.asked.is_empty() => prompt - 1,
            Layers::None => live.asked.start.min(prompt - 1),
            _ => 0,
        };
        let most = if live.skip_prefix_cache { 0 } else { most };
        let key = PrefixKey { salt: live.cache_salt.clone(), rope_shift: live.shift };
        Some(CachedPrefix::new(key, most))
    }

    /// Ends a request wherever it stands; whether it was there.
    pub(super) fn cancel(&mut self, id: u64) -> Result<bool> {
        let kept = self.finished.remove(&id).is_some();
        self.forget_first_step(id);
        let Self { scheduler, kv, collected, .. } = self;
        Ok(scheduler.cancel(id, *collected, kv)?.is_some() || kept)
    }

    /// Takes the pages of a running request, which waits again; whether it ran.
    pub(super) fn preempt(&mut self, id: u64) -> Result<bool> {
        let Some(row) = self.forget_first_step(id) else { return Ok(false) };
        self.scheduler.preempt(row, &mut self.kv).map(|()| true)
    }

    /// Takes back what the next step would do for a running request that no step has run; its request slot.
    fn forget_first_step(&mut self, id: u64) -> Option<u32> {
        let Self { scheduler, kv, unwritten, copies, .. } = self;
        let row = scheduler.running().find(|seq| seq.id == id)?.row;
        unwritten.retain(|other| *other != row);
        copies.retain(|(_, to)| !kv.tables.pages(row).contains(to));
        Some(row)
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
        if planned.batch.tokens == 0 {
            // Admitted, and waiting for pages that a step in flight brings back.
            self.unwritten.append(&mut planned.batch.admitted);
            self.spare.push(planned);
            return Ok(None);
        }
        self.planned += 1;
        let Planned { order, batch, parts } = &mut planned;
        order.clear();
        order.number = self.planned;
        batch.admitted.append(&mut self.unwritten);
        order.copies.append(&mut self.copies);
        self.order_admissions(batch, order);
        parts.clear();
        parts.extend(batch.slices.iter().filter_map(|slice| self.part(*slice)));
        let (shape, captured) = self.shape(batch, parts);
        order.captured = captured;
        order.want = self.want(parts, shape.rows);
        self.fill(parts, &mut order.words.begin(shape));
        self.kv.tables.settle();
        self.count(parts, order);
        Ok(Some(planned))
    }

    fn order_admissions(&self, batch: &StepBatch, order: &mut StepOrder) {
        for row in &batch.admitted {
            let Some(seq) = self.scheduler.sequence(*row) else { continue };
            let seen = (seq.data.sampling.repetition_penalty != 1.0).then(|| {
                let from = order.seen.len();
                order.seen.extend_from_slice(&seq.tokens);
                from..order.seen.len()
            });
            order.admitted.push(Admitted { row: *row, sampling: seq.data.row(*row), seen });
        }
    }

    fn part(&self, slice: Slice) -> Option<Part> {
        let seq = self.scheduler.sequence(slice.row)?;
        let asked = asked_in(seq, &slice);
        // A token row that samples may be one that was asked for.
        let sampled = slice.samples && !asked.contains(&(slice.end() - 1));
        let (rows, Live { want, keeps, .. }) = (asked.len() + usize::from(sampled), &seq.data);
        Some(Part { id: seq.id, slice, rows, want: *want, keeps: *keeps })
    }

    /// The step's shape, and whether it is a bucket's.
    fn shape(&self, batch: &StepBatch, parts: &[Part]) -> (StepShape, bool) {
        let shape = StepShape {
            tokens: batch.tokens,
            seqs: parts.len(),
            rows: parts.iter().map(|p| p.rows).sum(),
            table_edits: self.kv.tables.changes().len(),
            max_query: parts.iter().map(|p| p.slice.len).max().unwrap_or(0),
            max_keys: parts.iter().map(|p| p.slice.end()).max().unwrap_or(0),
        };
        let plain = |p: &Part| p.slice.len == 1 && p.slice.samples && p.want == Want::default();
        let bucket = self.buckets.shape(shape.seqs).filter(|bucket| {
            self.capture
                && shape.table_edits <= shape.seqs
                && parts.iter().all(plain)
                && !self.refused.contains(&bucket.seqs)
        });
        (bucket.unwrap_or(shape), bucket.is_some())
    }

    fn want(&self, parts: &[Part], rows: usize) -> StepWant {
        let any = |layers: Layers| parts.iter().any(|p| p.want.hidden == layers);
        let hidden = match (any(Layers::All), any(Layers::Last)) {
            (true, _) => Layers::All,
            (false, true) => Layers::Last,
            (false, false) => Layers::None,
        };
        StepWant {
            tokens: parts.iter().any(|p| p.slice.samples),
            logits: rows > 0 && parts.iter().any(|p| p.want.logits),
            pooled: rows > 0 && self.spec.family == Family::Encoder && self.spec.pooler.is_some(),
            hidden,
        }
    }

    /// Writes the parts into a step's words.
    fn fill(&self, parts: &[Part], fill: &mut StepFill<'_>) {
        let (mut token, mut row) = (0, 0);
        let paged = self.spec.family == Family::Decoder;
        for (s, Part { slice, .. }) in parts.iter().enumerate() {
            let Some(seq) = self.scheduler.sequence(slice.row) else { continue };
            let asked = asked_in(seq, slice);
            for position in slice.start..slice.end() {
                let token_type = seq.data.token_type_ids.get(position).copied().unwrap_or(0);
                let slot = if paged { self.kv.tables.slot(seq.row, position) } else { SKIP };
                let id = match seq.token(position) {
                    Token::Known(id) => id,
                    Token::SampledIn(from) => {
                        fill.feed(token, from);
                        0
                    }
                };
                // Rotation is all that reads positions of a model with two lists of divisors.
                fill.token(token, id, position as u32 + seq.data.shift, slot, token_type);
                if let Some(before) = position.checked_sub(1).filter(|_| self.filters) {
                    fill.before(token, self.kv.tables.slot(seq.row, before));
                }
                let samples = slice.samples && position + 1 == slice.end();
                if samples || asked.contains(&position) {
                    fill.want(row, token as u32, samples.then_some((seq.row, position as u32 + 1)));
                    row += 1;
                }
                token += 1;
            }
            fill.seq(s, token, if paged { seq.row } else { 0 }, slice.end() as u32);
        }
        fill.pad_behind(parts.len().saturating_sub(1));
        for (i, (index, page)) in self.kv.tables.changes().iter().enumerate() {
            fill.table_edit(i, *index, *page);
        }
    }

    /// Counts the parts as launched: what they sample is in flight.
    fn count(&mut self, parts: &[Part], order: &mut StepOrder) {
        let mut row = 0;
        for Part { slice, rows, .. } in parts {
            row += *rows;
            let sampled_in = if slice.samples { Some(row as u32 - 1) } else { None };
            self.scheduler.launched(slice, order.number, sampled_in);
            if let Some(seq) = self.scheduler.sequence_mut(slice.row) {
                order.pixels.append(&mut seq.data.pixels);
            }
        }
    }

    /// Remembers that a bucket cannot be captured: its steps are ordered in their own shape from now on.
    pub(super) fn refuse(&mut self, order: &StepOrder) {
        self.refused.push(order.words.shape().seqs);
    }

    /// Records progress, sampled tokens and kept rows; ends what is finished.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn apply(
        &mut self,
        planned: Planned,
        result: &StepResult,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        self.collected = planned.order.number;
        let (mut token, mut row) = (0, 0);
        for part in &planned.parts {
            let (mut tokens, rows) = (token..token + part.slice.len, row..row + part.rows);
            (token, row) = (tokens.end, rows.end);
            // A request that was cancelled, or ended by a token of the step before, is not there any more.
            let seq = self.scheduler.sequence_mut(part.slice.row).filter(|seq| seq.id == part.id);
            let Some(seq) = seq else { continue };
            if part.keeps {
                // Hidden states of positions that are computed again are there already.
                tokens.start += seq.kept.saturating_sub(part.slice.start).min(part.slice.len);
                keep(&mut seq.data.kept, part.want, result, planned.order.words.shape(), (&tokens, &rows));
            }
            let mut sampled = None;
            if part.slice.samples {
                let id = result.tokens.get(rows.end - 1).copied().ok_or_else(|| lost("a sampled token"))?;
                seq.in_flight -= 1;
                seq.tokens.push(id);
                sampled = Some(id).filter(|id| *id != NO_TOKEN);
            }
            let finish = match sampled {
                None if part.slice.samples => Some(Finish::NoToken),
                Some(id) if seq.data.stop_ids.contains(&id) => Some(Finish::Stop),
                _ if seq.tokens.len() >= seq.limit && part.slice.end() >= seq.prompt => Some(Finish::Length),
                _ => None,
            };
            // Of a request whose logits were no numbers nothing is left to others.
            if finish != Some(Finish::NoToken) {
                self.scheduler.commit(part.slice.row, part.slice.end(), &mut self.kv)?;
            }
            if finish.is_some() {
                self.end(part)?;
            }
            if sampled.is_some() || finish.is_some() {
                out.push(Output { id: part.id, token: sampled, finish });
            }
        }
        self.spare.push(planned);
        self.settle()
    }

    fn end(&mut self, part: &Part) -> Result<()> {
        let Self { scheduler, kv, collected, .. } = self;
        let live = scheduler.finish(part.slice.row, *collected, kv)?;
        if part.keeps {
            self.finished.insert(part.id, live.kept);
        }
        Ok(())
    }

    /// Ends the requests that a failed step was launched with; adds their numbers to `failed`.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn fail(&mut self, planned: Planned, failed: &mut Vec<u64>) -> Result<()> {
        let Self { scheduler, kv, collected, unwritten, .. } = self;
        for part in &planned.parts {
            if scheduler.sequence(part.slice.row).is_some_and(|seq| seq.id == part.id) {
                scheduler.finish(part.slice.row, *collected, kv)?;
                failed.push(part.id);
            }
        }
        // The changes of the page table that it carried may be of any row.
        kv.tables.resend();
        // Those that wait for their first slice go on: whether their rows of the sampling table were
        // written is not known. What was launched behind the step has used them, and writing them anew would
        // forget the tokens it samples.
        let waits = |seq: &&Sequence<Live>| seq.step <= planned.order.number;
        let admitted = planned.order.admitted.iter().map(|admitted| admitted.row);
        unwritten.extend(admitted.filter(|row| scheduler.sequence(*row).as_ref().is_some_and(waits)));
        // Nor whether pages were copied: forks that wait for theirs compute them anew.
        for (_, to) in &planned.order.copies {
            let fork = scheduler.running().filter(waits).find(|seq| kv.tables.pages(seq.row).contains(to));
            if let Some(row) = fork.map(|seq| seq.row) {
                scheduler.preempt(row, kv)?;
            }
        }
        self.spare.push(planned);
        Ok(())
    }

    /// No step is in flight: what ended requests held is free.
    pub(super) fn none_in_flight(&mut self) -> Result<()> {
        self.collected = self.planned;
        self.settle()
    }

    /// Whether every page and every request slot is accounted for.
    ///
    /// # Errors
    /// `Internal`, naming what is not.
    pub(super) fn audit(&self) -> Result<()> {
        self.scheduler.audit(&self.kv)
    }

    fn settle(&mut self) -> Result<()> {
        let Self { scheduler, kv, collected, .. } = self;
        scheduler.settle(*collected, kv)
    }
}

impl Planned {
    fn new(config: &EngineConfig) -> Self {
        let words = StepWords::with_capacity(largest_step(config).words());
        // Of any step: none allocates.
        let (admitted, seen) = (Vec::with_capacity(config.max_seqs), Vec::with_capacity(config.max_context));
        let order = StepOrder { words, admitted, seen, ..StepOrder::default() };
        let parts = Vec::with_capacity(config.max_seqs);
        Self { order, batch: StepBatch::with_capacity(config.max_seqs), parts }
    }
}

impl Live {
    /// Its row of the sampling table; `slot` is its request slot.
    pub(super) fn row(&self, slot: u32) -> crate::sample::SampleRow {
        let penalised = self.sampling.repetition_penalty != 1.0;
        self.sampling.row(self.subsequence, 0, 0, if penalised { slot as i32 } else { -1 })
    }
}

/// Positions of a slice that are asked for, and not kept yet.
fn asked_in(seq: &Sequence<Live>, slice: &Slice) -> Range<usize> {
    let from = seq.data.asked.start.max(slice.start).max(seq.kept);
    from..seq.data.asked.end.min(slice.end()).max(from)
}

/// Gives a request its part of what a step of this shape brought back: its token rows of hidden states, and
/// its rows of what the head returned.
fn keep(
    kept: &mut Kept,
    want: Want,
    result: &StepResult,
    shape: StepShape,
    (tokens, rows): (&Range<usize>, &Range<usize>),
) {
    let of = |values: &[f32], all: usize, range: &Range<usize>| {
        let cols = values.len().checked_div(all).unwrap_or(0);
        values.get(range.start * cols..range.end * cols).unwrap_or_default().to_vec()
    };
    // A step brings back all layers where one of its requests wants them.
    let hidden = match want.hidden {
        Layers::None => &[],
        Layers::Last => &result.hidden[result.hidden.len().saturating_sub(1)..],
        Layers::All => &result.hidden[..],
    };
    for (place, layer) in hidden.iter().enumerate() {
        kept.add_hidden(place, &of(layer, shape.tokens, tokens));
    }
    if want.logits {
        kept.logits.extend(of(&result.logits, shape.rows, rows));
    }
    kept.pooled.extend(of(&result.pooled, shape.rows, rows));
}
