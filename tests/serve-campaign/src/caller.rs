//! A caller: hands requests in, reads them in any order, leaves some, forks, saves and preempts others.

use crate::open::{Heard, Open};
use conformance::dice::Dice;
use conformance::null::{Fault, Null, Oracle};
use engraft::{EngineHandle, Layers, Request, SamplingParams, Want};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Longest prompt, and most new tokens: together less than the context.
const PROMPT: usize = 40;
const NEW: usize = 16;
/// Before one of so many events something is done to the request.
const VERBS: usize = 50;

/// What the callers of a round share.
pub(crate) struct Shared {
    pub oracle: Oracle,
    pub null: Arc<Null>,
    /// Requests that are still to be handed in.
    pub left: AtomicU64,
    /// Requests that a caller has open before it hands in another one.
    pub open: usize,
    /// How the engine ends before its time, once only so many requests are left.
    pub end: Option<Fault>,
    pub ends_behind: u64,
    /// Whether it has.
    pub over: AtomicBool,
    /// Failures planned: of steps, of the device, panics.
    pub planned: [AtomicU64; 3],
    pub vocab: usize,
    pub hidden: usize,
}

pub(crate) struct Caller {
    shared: Arc<Shared>,
    handle: Option<EngineHandle>,
    dice: Dice,
    open: Vec<Open>,
    heard: Heard,
}

impl Caller {
    pub(crate) fn new(shared: Arc<Shared>, handle: EngineHandle, dice: Dice) -> Self {
        Self { shared, handle: Some(handle), dice, open: Vec::new(), heard: Heard::default() }
    }

    /// Until all requests of the round are handed in, and its own have ended.
    pub(crate) fn run(mut self) -> Result<Heard, String> {
        while self.handle.is_some() || !self.open.is_empty() {
            let room = self.open.len() < self.shared.open;
            let more = self.open.is_empty() || (room && !self.dice.once_in(3));
            if more && self.handle.is_some() {
                self.submit()?;
            } else {
                self.read()?;
            }
        }
        Ok(self.heard)
    }

    /// Hands a request in, or gives its handle back where none is left.
    fn submit(&mut self) -> Result<(), String> {
        let take = |left: u64| left.checked_sub(1);
        let left = self.shared.left.fetch_update(Relaxed, Relaxed, take);
        let Some(handle) = self.handle.take_if(|_| left.is_err() || self.shared.over.load(Relaxed)) else {
            return self.submit_to(left.unwrap_or(0));
        };
        // Its requests outlive it.
        drop(handle);
        Ok(())
    }

    fn submit_to(&mut self, left: u64) -> Result<(), String> {
        let Some(handle) = &self.handle else { return Ok(()) };
        let report = &mut self.heard.report;
        report.requests += 1;
        if self.dice.once_in(20) {
            let (request, named) = malformed(&mut self.dice, self.shared.vocab);
            report.refused += 1;
            return match handle.submit(request) {
                Err(error) if error.to_string().contains(named) => Ok(()),
                Err(error) => Err(format!("a malformed request: {error}, `{named}` expected")),
                Ok(_) => Err(format!("a malformed request was taken; `{named}` expected")),
            };
        }
        let request = request(&mut self.dice, self.shared.vocab);
        let several = request.want == Want::default() && self.dice.once_in(4);
        let count = if several { 1 + self.dice.below(4) } else { 1 };
        report.requests += count as u64 - 1;
        let all = handle.submit_several(request.clone(), count);
        let all = all.map_err(|error| format!("{request:?}: {error}"))?;
        for (at, tokens) in (0..).zip(all) {
            let request = Request { subsequence: request.subsequence + at, ..request.clone() };
            let open = Open::put(tokens, request, &self.shared);
            self.push(open);
        }
        self.plan(left);
        Ok(())
    }

    /// Reads a request from now on; leaves one in five somewhere on the way.
    fn push(&mut self, mut open: Open) {
        let longest = open.longest();
        open.leave = self.dice.once_in(5).then(|| self.dice.below(longest + 1));
        self.open.push(open);
    }

    /// Plans a failure now and then.
    fn plan(&mut self, left: u64) {
        let Shared { null, planned, end, ends_behind, .. } = self.shared.as_ref();
        let behind = self.dice.below(300) as u64;
        match end {
            Some(fault) if left == *ends_behind => {
                null.fault_in(behind, *fault);
                planned[usize::from(*fault == Fault::Panic) + 1].fetch_add(1, Relaxed);
            }
            // What was planned against the engine stays.
            Some(_) if left < *ends_behind => {}
            _ if self.dice.once_in(150) => {
                planned[0].fetch_add(1, Relaxed);
                null.fail_in(behind);
            }
            _ => {}
        }
    }

    /// Reads some of one of its requests.
    fn read(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.open.len());
        for _ in 0..1 + self.dice.below(6) {
            if self.dice.once_in(VERBS) {
                let done = self.verb(at);
                return done.map_err(|what| self.open.get(at).map_or(what.clone(), |open| open.about(&what)));
            }
            let open = &mut self.open[at];
            if open.leave == Some(open.seen.len()) {
                self.heard.report.cancelled += 1;
                self.open.swap_remove(at);
                return Ok(());
            }
            if open.read(&self.shared, &mut self.heard)? {
                self.open.swap_remove(at);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Forks, saves or preempts one of its requests, wherever that stands.
    fn verb(&mut self, at: usize) -> Result<(), String> {
        match self.dice.below(4) {
            0 | 1 => self.fork(at),
            2 => self.save(at),
            _ => self.open[at].preempt(),
        }
    }

    /// Forks a request: half of the forks sample as their origin does, and give what it gives.
    fn fork(&mut self, at: usize) -> Result<(), String> {
        let open = &self.open[at];
        let (mut sampling, mut subsequence) = (open.request.sampling, open.request.subsequence);
        if self.dice.once_in(2) {
            (sampling.seed, subsequence) = (Some(self.dice.bits()), self.dice.below(3) as u32);
        }
        let Some(fork) = open.fork(sampling, subsequence, &self.shared)? else { return Ok(()) };
        self.heard.report.requests += 1;
        self.push(fork);
        Ok(())
    }

    /// Saves a request and restores it on the same engine: half of those that were saved go on there, too.
    fn save(&mut self, at: usize) -> Result<(), String> {
        let Some(handle) = &self.handle else { return Ok(()) };
        let open = &mut self.open[at];
        let Some((bytes, answers)) = open.save()? else { return Ok(()) };
        let tokens = handle.restore(bytes).map_err(|error| format!("a saved request: {error}"))?;
        let restored = Open::restored(tokens, open.rest_of_it(), answers);
        self.heard.report.requests += 1;
        if self.dice.once_in(2) {
            self.heard.report.cancelled += 1;
            self.open.swap_remove(at);
        }
        self.push(restored);
        Ok(())
    }
}

/// Prompts of which half begin alike, under one of four salts.
fn request(dice: &mut Dice, vocab: usize) -> Request {
    let token = |dice: &mut Dice| 3 + dice.below(vocab - 3) as u32;
    let (len, begin) = (1 + dice.below(PROMPT), dice.below(6) as u32);
    let alike = if dice.once_in(2) { dice.below(len + 1) } else { 0 };
    let same = (0..alike as u32).map(|at| 3 + (begin * 31 + at * (1 + begin)) % 200);
    let prompt = same.chain((alike..len).map(|_| token(dice))).collect();
    let hidden = if dice.once_in(12) { Layers::Last } else { Layers::None };
    Request {
        features: std::sync::Arc::default(),
        decoder_prompt: Vec::new(),
        prompt,
        max_new_tokens: dice.below(NEW + 1),
        stop_ids: (0..8).map(|_| token(dice)).collect(),
        sampling: SamplingParams {
            seed: Some(dice.bits()),
            repetition_penalty: if dice.once_in(2) { 1.0 } else { 1.5 },
            ..SamplingParams::default()
        },
        subsequence: dice.below(3) as u32,
        cache_salt: dice.pick(&["", "", "a", "b"]).into(),
        skip_prefix_cache: dice.once_in(16),
        want: Want { hidden, ..Want::default() },
        priority: dice.pick(&[0, 0, 0, -1, 3]),
        tenant: dice.pick(&["", "one", "two"]).into(),
        rules: None,
        start_within: dice.once_in(20).then(|| Duration::from_micros(dice.below(3000) as u64)),
    }
}

/// A request that is refused, and what the error names.
fn malformed(dice: &mut Dice, vocab: usize) -> (Request, &'static str) {
    let good = || Request { prompt: vec![5; 4], max_new_tokens: 3, ..Request::default() };
    match dice.below(4) {
        0 => (Request { prompt: Vec::new(), ..good() }, "empty"),
        1 => (Request { prompt: vec![vocab as u32], ..good() }, "vocabulary"),
        2 => (Request { prompt: vec![5; 500], ..good() }, "500"),
        _ => {
            let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
            (Request { sampling, ..good() }, "top_p")
        }
    }
}
