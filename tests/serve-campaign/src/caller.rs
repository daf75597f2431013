//! A caller: hands requests in, reads them in any order, leaves some.

use crate::Report;
use conformance::dice::Dice;
use conformance::null::{Fault, Null, Oracle, PLANNED};
use engraft::{EngineHandle, Error, Event, Finish, Layers, Request, SamplingParams, Tokens, Want};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Requests that a caller has open at most.
const OPEN: usize = 12;
/// Longest prompt, and most new tokens: together less than the context.
const PROMPT: usize = 40;
const NEW: usize = 16;

/// What the callers of a round share.
pub(crate) struct Shared {
    pub oracle: Oracle,
    pub null: Arc<Null>,
    /// Requests that are still to be handed in.
    pub left: AtomicU64,
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

/// A request that is being read.
struct Open {
    tokens: Tokens,
    request: Request,
    /// What it gives, and how it ends.
    want: (Vec<u32>, Finish),
    seen: Vec<u32>,
    /// Whether what it keeps has come.
    kept: bool,
    /// Tokens behind which its caller leaves.
    leave: Option<usize>,
}

pub(crate) struct Caller {
    shared: Arc<Shared>,
    handle: Option<EngineHandle>,
    dice: Dice,
    open: Vec<Open>,
    report: Report,
}

impl Caller {
    pub(crate) fn new(shared: Arc<Shared>, handle: EngineHandle, dice: Dice) -> Self {
        Self { shared, handle: Some(handle), dice, open: Vec::new(), report: Report::default() }
    }

    /// Until all requests of the round are handed in, and its own have ended.
    pub(crate) fn run(mut self) -> Result<Report, String> {
        while self.handle.is_some() || !self.open.is_empty() {
            let more = self.open.is_empty() || (self.open.len() < OPEN && !self.dice.once_in(3));
            if more && self.handle.is_some() {
                self.submit()?;
            } else {
                self.read()?;
            }
        }
        Ok(self.report)
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
        self.report.requests += 1;
        if self.dice.once_in(20) {
            let (request, named) = malformed(&mut self.dice, self.shared.vocab);
            self.report.refused += 1;
            return match handle.submit(request) {
                Err(error) if error.to_string().contains(named) => Ok(()),
                Err(error) => Err(format!("a malformed request: {error}, `{named}` expected")),
                Ok(_) => Err(format!("a malformed request was taken; `{named}` expected")),
            };
        }
        let request = request(&mut self.dice, self.shared.vocab);
        let several = request.want == Want::default() && self.dice.once_in(4);
        let count = if several { 1 + self.dice.below(4) } else { 1 };
        self.report.requests += count as u64 - 1;
        let all = handle.submit_several(request.clone(), count);
        let all = all.map_err(|error| format!("{request:?}: {error}"))?;
        for (at, tokens) in (0..).zip(all) {
            let request = Request { subsequence: request.subsequence + at, ..request.clone() };
            let want = self.shared.oracle.answer(&request);
            let leave = self.dice.once_in(5).then(|| self.dice.below(want.0.len() + 1));
            self.open.push(Open { tokens, request, want, seen: Vec::new(), kept: false, leave });
        }
        self.plan(left);
        Ok(())
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
            let open = &mut self.open[at];
            if open.leave == Some(open.seen.len()) {
                self.report.cancelled += 1;
                self.open.swap_remove(at);
                return Ok(());
            }
            let Some(event) = open.tokens.next() else { return Err("nothing, and no end before".into()) };
            let ended = open.hear(event, &self.shared, &mut self.report);
            let ended = ended.map_err(|what| {
                let Open { request, want, seen, .. } = &self.open[at];
                format!("{what}\n  {request:?}\n  heard {seen:?}\n  expected {want:?}")
            })?;
            if ended {
                let open = &mut self.open[at];
                if open.tokens.next().is_some() {
                    return Err(format!("something behind the end of {:?}", open.request));
                }
                self.open.swap_remove(at);
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Open {
    /// Takes an event; whether it is the last.
    fn hear(
        &mut self,
        event: Result<Event, Error>,
        shared: &Shared,
        report: &mut Report,
    ) -> Result<bool, String> {
        let prompt = self.request.prompt.len();
        // Nothing follows the last token: no step runs it.
        let rows = |tokens: usize| (prompt + tokens.saturating_sub(1)) as u64;
        match event {
            Ok(Event::Token(token)) => {
                report.tokens += 1;
                self.seen.push(token);
                if self.kept || !self.want.0.starts_with(&self.seen) {
                    return Err("another token than alone".into());
                }
                return Ok(false);
            }
            Ok(Event::Kept(kept)) => {
                let values = rows(self.seen.len()) as usize * shared.hidden;
                let lens: Vec<usize> = kept.hidden.iter().map(Vec::len).collect();
                if self.kept || self.request.want == Want::default() || lens != [values] {
                    return Err(format!("keeps {lens:?} values, [{values}] expected"));
                }
                self.kept = true;
                return Ok(false);
            }
            Ok(Event::Finished(Finish::Expired)) => {
                if self.request.start_within.is_none() || !self.seen.is_empty() {
                    return Err("it ran, or may wait for ever, and expired".into());
                }
                report.expired += 1;
            }
            Ok(Event::Finished(finish)) => {
                if self.seen != self.want.0 || finish != self.want.1 {
                    return Err(format!("ended by {finish:?}"));
                }
                if self.kept == (self.request.want == Want::default()) {
                    return Err("what it keeps did not come, or came unasked".into());
                }
                report.whole += 1;
                report.rows[1] += rows(self.seen.len());
            }
            Ok(other) => return Err(format!("{other:?}")),
            Err(error) => self.hear_error(&error.to_string(), shared, report)?,
        }
        Ok(true)
    }

    fn hear_error(&self, said: &str, shared: &Shared, report: &mut Report) -> Result<(), String> {
        if said.contains("none of the logits is above -infinity") {
            report.without_token += 1;
            return match self.seen == self.want.0 && self.want.1 == Finish::NoToken {
                true => Ok(()),
                false => Err(said.into()),
            };
        }
        if !said.contains(PLANNED) {
            return Err(format!("an error that nobody planned: {said}"));
        }
        let ended = said.contains("the engine panicked") || said.contains("device lost");
        match ended {
            true => {
                shared.over.store(true, Relaxed);
                report.lost += 1;
            }
            false => report.failed += 1,
        }
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
