//! The coordinator on a backend that knows whose every page is (`conformance::null`): thousands of random
//! schedules, with forks, cancels and steps that fail.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::dice::Dice;
use conformance::null::Null;
use engraft_core::Error;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Finish, ForwardWant, Output, Pick, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

fn engine(null: &Arc<Null>, config: EngineConfig) -> Engine<Null> {
    loaded(null, "llama", config).unwrap()
}

/// A model on a backend, and an engine of it.
fn loaded(null: &Arc<Null>, case: &str, config: EngineConfig) -> Result<Engine<Null>, Error> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map)?;
    let model = inject(null, &files, &Registry::default(), 256, LoadOptions::default(), &mut |_, _| {})?;
    Engine::new(null.clone(), model, config)
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

fn request(dice: &mut Dice) -> Request {
    let token = |dice: &mut Dice| 3 + dice.below(60) as u32;
    Request {
        prompt: (0..1 + dice.below(30)).map(|_| token(dice)).collect(),
        max_new_tokens: dice.below(20),
        stop_ids: (0..4).map(|_| token(dice)).collect(),
        sampling: SamplingParams {
            seed: Some(dice.bits()),
            repetition_penalty: if dice.once_in(2) { 1.0 } else { 1.5 },
            ..SamplingParams::default()
        },
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
            let request = request(&mut dice);
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
            let request = known[&id].request.clone();
            if let Ok(fork) = engine.fork(id, request.sampling, 0) {
                known.insert(fork, Known { forked: true, ..Known::new(request) });
            }
        }
        if dice.once_in(40) {
            null.fail_in(dice.below(60) as u64);
        }
        let stepped = engine.step(&mut out);
        let failed = engine.take_failed();
        match stepped {
            Ok(()) => take(&mut known, &out),
            // A step launched ahead may be nobody's any more.
            Err(Error::OutOfMemory { .. }) => assert!(engine.steps_ahead() == 1 || !failed.is_empty()),
            Err(other) => panic!("seed {seed}: {other}"),
        }
        for id in failed {
            known.get_mut(&id).unwrap().broken = true;
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

/// Steps until something is reported, or one fails.
fn reported(engine: &mut Engine<Null>) -> Result<Vec<Output>, Error> {
    let mut out = Vec::new();
    while out.is_empty() {
        engine.step(&mut out)?;
    }
    Ok(out)
}

/// A step that fails to be launched takes nothing back: the token in flight that ends a request ends it.
#[test]
fn a_failed_launch_loses_nothing_that_is_in_flight() {
    let null = Null::new();
    let config = EngineConfig { max_context: 64, steps_ahead: Some(1), ..EngineConfig::default() };
    let plain = Request { prompt: vec![5, 6, 7], max_new_tokens: 9, ..Request::default() };
    let (tokens, _) = alone(&mut reference(), &plain);
    let mut engine = engine(&null, config);
    let id = engine.put(Request { stop_ids: vec![tokens[1]], ..plain.clone() }).unwrap();
    let other = engine.put(Request { prompt: vec![9, 8], ..plain }).unwrap();
    assert_eq!(reported(&mut engine).unwrap().len(), 2);
    // Step 2, in flight, samples the token that ends the request; step 3 is launched with both and fails.
    null.fail_in(0);
    let mut out = Vec::new();
    assert!(matches!(engine.step(&mut out), Err(Error::OutOfMemory { .. })));
    assert_eq!(engine.take_failed(), [other]);
    let last = reported(&mut engine).unwrap();
    let [last] = last[..] else { panic!("{last:?}") };
    assert_eq!((last.id, last.token, last.finish), (id, Some(tokens[1]), Some(Finish::Stop)));
    assert!(engine.is_idle() && engine.free_pages().0 == engine.free_pages().1);
}

/// What an engine says it takes is what it allocates.
#[test]
fn memory_is_what_is_allocated() {
    for case in ["llama", "qwen2_moe", "bert", "gpt2"] {
        for (max_seqs, steps_ahead) in [(1, Some(0)), (7, Some(1))] {
            let null = Null::new();
            let config = EngineConfig { max_context: 64, max_seqs, steps_ahead, ..EngineConfig::default() };
            let config = EngineConfig { graphs: false, ..config };
            let engine = loaded(&null, case, config).unwrap();
            let memory = *engine.memory();
            // The dry runs of the kernels' list allocate the smallest state once more.
            let allocated = null.allocated();
            let wanted = memory.keys_and_values + memory.scratch + memory.steps + memory.rotary;
            assert!(allocated >= wanted, "{case}: {allocated} of {memory:?}");
            assert!(allocated - wanted < 100_000, "{case}: {allocated} for {wanted} of {memory:?}");
            assert!(memory.weights > 0 && memory.total() > wanted);
        }
    }
}

#[test]
fn a_reserve_sizes_the_pool_by_what_is_free() {
    let reserve = |bytes: u64| EngineConfig {
        max_context: 64,
        max_seqs: 32,
        kv_reserve: Some(bytes),
        ..EngineConfig::default()
    };
    let all = loaded(&Null::with_free(u64::MAX), "llama", reserve(0)).unwrap();
    assert_eq!(all.free_pages().1, 32 * 4);
    let most = all.memory().total() - all.memory().weights - all.memory().rotary;
    let page = all.memory().keys_and_values / (32 * 4);
    for (free, kept, pages) in
        [(most, 0, 128), (most - 1, 0, 127), (most + 500, 501, 127), (most - 100 * page, 0, 28)]
    {
        let engine = loaded(&Null::with_free(free), "llama", reserve(kept)).unwrap();
        assert_eq!(engine.free_pages().1, pages, "{free} bytes are free, {kept} stay so");
    }
    let error = loaded(&Null::with_free(most - 128 * page), "llama", reserve(0)).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { .. }) && error.to_string().contains("kv_reserve"),
        "{error}"
    );
    // Where nobody knows what is free the pool has room for all.
    assert_eq!(loaded(&Null::new(), "llama", reserve(1 << 40)).unwrap().free_pages().1, 128);
    let both = EngineConfig { kv_pages: Some(3), ..reserve(5) };
    let error = loaded(&Null::new(), "llama", both).map(drop).unwrap_err().to_string();
    assert!(error.contains("kv_pages") && error.contains("kv_reserve"), "{error}");
}

/// A call with many texts does not keep a request waiting, nor does one that came before it starve.
#[test]
fn many_texts_block_no_request() {
    let config = EngineConfig { max_context: 64, max_seqs: 2, max_step_tokens: 8, ..EngineConfig::default() };
    let mut engine = engine(&Null::new(), config);
    let texts: Vec<EncoderInput> =
        (0..100).map(|i| EncoderInput { ids: vec![3 + i % 50; 8], ..EncoderInput::default() }).collect();
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    let texts = engine.submit_texts(&texts, &want).unwrap();
    let id = engine.put(Request { prompt: vec![4; 16], max_new_tokens: 1, ..Request::default() }).unwrap();
    let (mut out, mut before) = (Vec::new(), 0);
    loop {
        engine.step(&mut out).unwrap();
        if out.iter().any(|output| output.id == id) {
            break;
        }
        before += out.len();
    }
    assert!(before < 8, "{before} texts were served before the request");
    engine.cancel_texts(&texts).unwrap();
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
