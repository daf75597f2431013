//! The coordinator on a backend that knows whose every page is (`conformance::null`): thousands of random
//! schedules, with forks, cancels and steps that fail.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::dice::Dice;
use conformance::null::Null;
use engraft_core::Error;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Finish, Output, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn engine(null: &Arc<Null>, config: EngineConfig) -> Engine<Null> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/llama");
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(null, &files, &Registry::default(), 256, options, &mut |_, _| {}).unwrap();
    Engine::new(null.clone(), model, config).unwrap()
}

fn config(dice: &mut Dice) -> EngineConfig {
    EngineConfig {
        max_context: 64,
        max_seqs: 1 + dice.below(6),
        max_step_tokens: 1 + dice.below(24),
        page_size: 1 + dice.below(9),
        page_seed: Some(dice.bits()),
        kv_pages: Some(64 + dice.below(64)),
        graphs: dice.once_in(2),
        steps_ahead: Some(dice.below(2)),
        ..EngineConfig::default()
    }
}

fn request(dice: &mut Dice, seed: u64) -> Request {
    let token = |dice: &mut Dice| 3 + dice.below(60) as u32;
    Request {
        prompt: (0..1 + dice.below(30)).map(|_| token(dice)).collect(),
        max_new_tokens: dice.below(20),
        stop_ids: (0..4).map(|_| token(dice)).collect(),
        sampling: SamplingParams { seed, ..SamplingParams::default() },
        ..Request::default()
    }
}

/// The continuation of a prompt by itself, and how it ends.
fn alone(engine: &mut Engine<Null>, request: &Request) -> (Vec<u32>, Finish) {
    engine.put(request.clone()).unwrap();
    let (mut out, mut tokens) = (Vec::new(), Vec::new());
    loop {
        engine.step(&mut out).unwrap();
        for output in &out {
            tokens.extend(output.token);
            if let Some(finish) = output.finish {
                return (tokens, finish);
            }
        }
    }
}

/// An engine that runs one request at a time, op by op.
fn reference() -> Engine<Null> {
    let (graphs, steps_ahead) = (false, Some(0));
    engine(&Null::new(), EngineConfig { max_context: 64, graphs, steps_ahead, ..EngineConfig::default() })
}

/// What is known of a request in a schedule.
struct Known {
    request: Request,
    tokens: Vec<u32>,
    finish: Option<Finish>,
    /// Cancelled, or in a step that failed.
    broken: bool,
    /// It goes on from where another one stood.
    forked: bool,
}

impl Known {
    fn new(request: Request) -> Self {
        Self { request, tokens: Vec::new(), finish: None, broken: false, forked: false }
    }

    /// Whether its tokens are those of this continuation: all, the first, the last, or some.
    fn agrees(&self, want: &[u32]) -> bool {
        match (self.broken, self.forked) {
            (false, false) => self.tokens == want,
            (true, false) => want.starts_with(&self.tokens),
            (false, true) => want.ends_with(&self.tokens),
            (true, true) => {
                self.tokens.is_empty() || want.windows(self.tokens.len()).any(|w| w == self.tokens)
            }
        }
    }
}

fn take(known: &mut BTreeMap<u64, Known>, out: &[Output]) {
    for output in out {
        let one = known.get_mut(&output.id).unwrap();
        assert!(one.finish.is_none() && !one.broken, "request {}: something after its end", output.id);
        one.tokens.extend(output.token);
        one.finish = output.finish;
    }
}

/// One random schedule; how many requests ended by themselves, and how many of these for want of a token.
fn schedule(null: &Arc<Null>, reference: &mut Engine<Null>, seed: u64) -> (usize, usize) {
    let mut dice = Dice::new(seed);
    let mut engine = engine(null, config(&mut dice));
    let (mut known, mut out, mut left) = (BTreeMap::<u64, Known>::new(), Vec::new(), 10);
    while left > 0 || !engine.is_idle() {
        if left > 0 && (dice.once_in(2) || engine.is_idle()) {
            left -= 1;
            let request = request(&mut dice, seed);
            if let Ok(id) = engine.put(request.clone()) {
                known.insert(id, Known::new(request));
            }
        }
        let running: Vec<u64> = known.iter().filter(|(_, k)| k.finish.is_none()).map(|(id, _)| *id).collect();
        if dice.once_in(8) && !running.is_empty() {
            let id = running[dice.below(running.len())];
            if engine.cancel(id).unwrap() {
                known.get_mut(&id).unwrap().broken = true;
            }
        }
        if dice.once_in(5) && !running.is_empty() {
            let id = running[dice.below(running.len())];
            let sampling = SamplingParams { seed, ..SamplingParams::default() };
            if let Ok(fork) = engine.fork(id, sampling, 0) {
                let request = known[&id].request.clone();
                known.insert(fork, Known { forked: true, ..Known::new(request) });
            }
        }
        if dice.once_in(40) {
            null.fail_in(dice.below(60) as u64);
        }
        match engine.step(&mut out) {
            Ok(()) => take(&mut known, &out),
            Err(Error::OutOfMemory { .. }) => {
                let failed = engine.take_failed();
                assert!(!failed.is_empty(), "a step fails for somebody");
                for id in failed {
                    known.get_mut(&id).unwrap().broken = true;
                }
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    null.fail_in(u64::MAX);
    let (free, total) = engine.free_pages();
    assert_eq!(free, total, "seed {seed}: pages leaked");
    let (mut ended, mut without) = (0, 0);
    for (id, one) in &known {
        let (want, finish) = alone(reference, &one.request);
        let (tokens, broken, forked) = (&one.tokens, one.broken, one.forked);
        let what = format!("seed {seed}, request {id}, broken {broken}, forked {forked}");
        assert!(one.agrees(&want), "{what}: {tokens:?}, alone {want:?}");
        assert!(broken || one.finish == Some(finish), "{what}: {:?}, alone {finish:?}", one.finish);
        without += usize::from(one.finish == Some(Finish::NoToken));
        ended += usize::from(!one.broken);
    }
    (ended, without)
}

#[test]
fn random_schedules_give_every_request_its_own_continuation() {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let schedules = if std::env::var_os("ENGRAFT_FULL").is_some() { 5000 } else { 300 };
    let (null, mut reference) = (Null::new(), reference());
    let seeds = (0..schedules).map(|i| seed.wrapping_mul(1_000_003) + i);
    let (mut ended, mut without) = (0, 0);
    for (all, some) in seeds.map(|seed| schedule(&null, &mut reference, seed)) {
        (ended, without) = (ended + all, without + some);
    }
    assert!(ended as u64 > 4 * schedules && without > 0, "{ended} and {without} of {schedules} schedules");
}
