//! The coordinator on a backend that knows whose every page is (`conformance::null`): thousands of random
//! schedules, with forks, cancels and steps that fail.
#![allow(clippy::unwrap_used, clippy::panic)]

mod kept;
mod pace;
mod pressure;

use conformance::dice::Dice;
use conformance::null::{Fault, Null, Oracle, PLANNED};
use engraft_core::Error;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{
    Batch, Caller, EncoderInput, Engine, Finish, ForwardWant, Layers, Output, Pick, Request, Want,
};
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

/// Pools that hold one request at least, and prefixes only until their pages are needed.
fn config(dice: &mut Dice) -> EngineConfig {
    let page_size = 1 + dice.below(9);
    EngineConfig {
        max_context: 64,
        max_seqs: 1 + dice.below(6),
        max_step_tokens: 1 + dice.below(24),
        page_size,
        page_seed: Some(dice.bits()),
        kv_pages: Some((50 + dice.below(30)).div_ceil(page_size)),
        graphs: dice.once_in(2),
        steps_ahead: Some(dice.below(2)),
        ..EngineConfig::default()
    }
}

fn request(dice: &mut Dice) -> Request {
    let token = |dice: &mut Dice| 3 + dice.below(60) as u32;
    let alike = if dice.once_in(2) { dice.below(20) } else { 0 };
    Request {
        prompt: (0..alike as u32)
            .map(|i| 3 + i)
            .chain((0..1 + dice.below(30 - alike)).map(|_| token(dice)))
            .collect(),
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
    let (graphs, steps_ahead, prefix_cache) = (false, Some(0), false);
    engine(
        &Null::new(),
        EngineConfig { max_context: 64, graphs, steps_ahead, prefix_cache, ..EngineConfig::default() },
    )
}

/// What a request gives is a function of it: without an engine, too.
#[test]
fn requests_alone_give_what_the_oracle_says() {
    let mut dice = Dice::new(3);
    for case in ["llama", "phi3_longrope"] {
        let (steps_ahead, prefix_cache) = (Some(0), false);
        let sizes = EngineConfig { max_context: 60, steps_ahead, prefix_cache, ..EngineConfig::default() };
        let mut engine = loaded(&Null::new(), case, sizes).unwrap();
        let oracle = Oracle::new(&engine.model().spec, &engine.model().rope_shifts(), 60);
        let mut ends = [0; 3];
        for _ in 0..200 {
            let more = dice.below(25);
            let mut request = Request { subsequence: dice.below(3) as u32, ..request(&mut dice) };
            request.prompt.extend((0..more).map(|at| 9 + at as u32));
            let (tokens, finish) = alone(&mut engine, &request);
            assert_eq!((tokens, finish), oracle.answer(&request), "{case}: {request:?}");
            ends[[Finish::Stop, Finish::Length, Finish::NoToken]
                .iter()
                .position(|f| *f == finish)
                .unwrap()] += 1;
        }
        assert!(ends.iter().all(|count| *count > 5), "{ends:?}");
    }
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

/// One random schedule; how many requests ended by themselves, how many of these for want of a token,
/// preemptions, and prompt tokens found in the cache.
fn schedule(null: &Arc<Null>, reference: &mut Engine<Null>, seed: u64) -> [u64; 4] {
    let mut dice = Dice::new(seed);
    let mut engine = engine(null, config(&mut dice));
    engine.set_auditing(true);
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
        if dice.once_in(6) && !running.is_empty() {
            engine.preempt(running[dice.below(running.len())]).unwrap();
        }
        if dice.once_in(40) {
            null.fail_in(dice.below(60) as u64);
        }
        let stepped = engine.step(&mut out);
        let failed = engine.take_failed();
        match stepped {
            Ok(()) => take(&mut known, &out),
            // A step launched ahead may belong to no request any more.
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
        without += u64::from(one.finish == Some(Finish::NoToken));
        ended += u64::from(!one.broken);
    }
    [ended, without, engine.preemptions(), engine.prefix_stats().hit]
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

/// Steps that are not captured have no buffers.
#[test]
fn buckets_count_where_steps_can_be_captured() {
    let steps = |null: &Arc<Null>, graphs: bool| {
        engine(null, EngineConfig { max_context: 64, graphs, ..EngineConfig::default() }).memory().steps
    };
    let plain = steps(&Null::new(), false);
    assert!(steps(&Null::new(), true) > plain);
    assert_eq!(steps(&Null::without_graphs(), true), plain);
}

/// A page is 256 positions: keys of a layer take 4 MiB.
fn reserve(bytes: u64) -> EngineConfig {
    EngineConfig {
        max_context: 64,
        max_seqs: 4096,
        page_size: 256,
        kv_reserve: Some(bytes),
        ..EngineConfig::default()
    }
}

#[test]
fn a_reserve_sizes_the_pool_by_what_is_free() {
    const KEPT: u64 = 5 << 20;
    let (mut pages, mut refused) = (Vec::new(), false);
    for mib in (4..300).step_by(4) {
        let null = Null::with_memory(mib << 20, 0);
        let mut engine = match loaded(&null, "llama", reserve(KEPT)) {
            Ok(engine) => engine,
            Err(Error::OutOfMemory { what, .. }) if pages.is_empty() => {
                refused |= what.contains("kv_reserve");
                continue;
            }
            Err(error) => panic!("{mib} MiB: {error}"),
        };
        pages.push(engine.free_pages().1);
        // What only some requests and steps need is there, too.
        let want = Want { hidden: Layers::Last, ..Want::default() };
        engine.put(Request { prompt: vec![4; 9], max_new_tokens: 3, want, ..Request::default() }).unwrap();
        engine.run().unwrap();
        let free = null.free_bytes().unwrap();
        assert!(free >= KEPT, "{mib} MiB: {free} bytes are left of {KEPT}");
    }
    let between = |pages: &&usize| (1..4096).contains(*pages);
    assert!(pages.is_sorted() && pages.iter().any(|n| between(&n)), "{pages:?}");
    assert_eq!((pages.last(), refused), (Some(&4096), true));
    let both = EngineConfig { kv_pages: Some(3), ..reserve(5) };
    let error = loaded(&Null::new(), "llama", both).map(drop).unwrap_err().to_string();
    assert!(error.contains("kv_pages") && error.contains("kv_reserve"), "{error}");
}

/// Memory that is said to be free and cannot be had: in pieces, or another program's by now.
#[test]
fn a_pool_that_does_not_fit_after_all_becomes_smaller() {
    let pages = |more: u64| {
        let null = Null::with_memory((200 << 20) - more, more);
        loaded(&null, "llama", reserve(0)).map(|engine| engine.free_pages().1)
    };
    assert_eq!(pages(0).unwrap(), 4096);
    let fewer: Vec<usize> = (0..200).step_by(4).map_while(|mib| pages(mib << 20).ok()).collect();
    let smallest = *fewer.last().unwrap();
    assert!(fewer.is_sorted_by(|a, b| a >= b) && (1..2048).contains(&smallest), "{fewer:?}");
}

#[test]
fn a_reserve_without_effect_is_a_warning() {
    let engine = loaded(&Null::new(), "llama", reserve(1 << 40)).unwrap();
    assert_eq!(engine.free_pages().1, 4096);
    let [warning] = engine.warnings() else { panic!("{:?}", engine.warnings()) };
    let text = warning.to_string();
    assert!(text.contains("kv_reserve") && text.contains("null") && text.contains("kv_pages"), "{text}");
    let known = loaded(&Null::with_memory(1 << 30, 0), "llama", reserve(5)).unwrap();
    assert!(known.warnings().is_empty());
}

/// Steps until nothing is left, some of which may fail; what was sampled, and the requests that failed.
fn rest(engine: &mut Engine<Null>) -> (BTreeMap<u64, Vec<u32>>, Vec<u64>) {
    let (mut out, mut tokens, mut failed) = (Vec::new(), BTreeMap::<u64, Vec<u32>>::new(), Vec::new());
    while !engine.is_idle() {
        if engine.step(&mut out).is_ok() {
            out.iter().for_each(|o| tokens.entry(o.id).or_default().extend(o.token));
        }
        failed.extend(engine.take_failed());
    }
    (tokens, failed)
}

fn penalised(prompt: &[u32], max_new_tokens: usize) -> Request {
    let sampling = SamplingParams { repetition_penalty: 1.5, ..SamplingParams::default() };
    Request { prompt: prompt.to_vec(), max_new_tokens, sampling, ..Request::default() }
}

/// A request that a step admits and the next one runs first: whichever of them fails, it goes on with all
/// tokens it has sampled, or not at all.
#[test]
fn a_failed_step_forgets_no_token_of_a_request_behind_it() {
    let config = EngineConfig {
        max_context: 64,
        max_seqs: 2,
        max_step_tokens: 8,
        graphs: false,
        steps_ahead: Some(1),
        ..EngineConfig::default()
    };
    let (first, second) = (penalised(&[9; 8], 4), penalised(&[5, 6, 7], 20));
    let (want, _) = alone(&mut reference(), &second);
    assert!(want.len() > 5);
    let mut alone = 0;
    for ops in 0..400 {
        let null = Null::new();
        let mut engine = engine(&null, config.clone());
        let [first, second] = [&first, &second].map(|request| engine.put(request.clone()).unwrap());
        null.fail_in(ops);
        let (tokens, failed) = rest(&mut engine);
        if !failed.contains(&second) {
            assert_eq!(tokens[&second], want, "failure in {ops} ops");
            alone += usize::from(failed.contains(&first));
        }
    }
    assert!(alone > 0, "no failure ended the first request alone");
}

/// An engine with pages of four positions, and a request of it that has sampled some tokens.
fn half_way(null: &Arc<Null>) -> (Engine<Null>, u64, Vec<u32>) {
    let config =
        EngineConfig { max_context: 64, page_size: 4, steps_ahead: Some(0), ..EngineConfig::default() };
    let mut engine = engine(null, config);
    let id = engine.put(penalised(&[7, 40, 9, 61, 22], 12)).unwrap();
    let (mut out, mut tokens) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        engine.step(&mut out).unwrap();
        tokens.extend(out.iter().filter_map(|o| o.token));
    }
    assert_eq!(tokens.len(), 2);
    (engine, id, tokens)
}

#[test]
fn planned_faults_are_what_they_are_called() {
    let null = Null::new();
    let (mut engine, ..) = half_way(&null);
    null.fault_in(2, Fault::Lost);
    assert!(!null.has_failed());
    let lost = engine.step(&mut Vec::new());
    assert!(
        matches!(&lost, Err(Error::DeviceLost { what }) if what == PLANNED) && null.has_failed(),
        "{lost:?}"
    );
    let (mut engine, ..) = half_way(&null);
    null.fault_in(2, Fault::Panic);
    let step = std::panic::AssertUnwindSafe(|| engine.step(&mut Vec::new()));
    let said = std::panic::catch_unwind(step).unwrap_err();
    assert_eq!(said.downcast_ref::<&str>(), Some(&PLANNED));
}

fn whole_text() -> Vec<u32> {
    alone(&mut reference(), &penalised(&[7, 40, 9, 61, 22], 12)).0
}

#[test]
fn a_page_that_could_not_be_copied_is_copied_later() {
    let null = Null::new();
    let (mut engine, id, before) = half_way(&null);
    let fork = engine.fork(id, penalised(&[], 0).sampling, 0).unwrap();
    null.fail_in(0);
    assert!(matches!(engine.cached(fork, 0), Err(Error::OutOfMemory { .. })));
    let (tokens, failed) = rest(&mut engine);
    assert!(failed.is_empty());
    assert_eq!([&before[..], &tokens[&fork]].concat(), whole_text());
}

#[test]
fn forks_that_are_cancelled_before_a_step_cost_it_nothing() {
    let (null, quiet) = (Null::new(), Null::new());
    let ((mut engine, id, before), (mut twin, ..)) = (half_way(&null), half_way(&quiet));
    let sampling = penalised(&[], 0).sampling;
    for _ in 0..50 {
        let fork = engine.fork(id, sampling, 0).unwrap();
        assert!(engine.cancel(fork).unwrap());
    }
    let spent = |engine: &mut Engine<Null>, null: &Null| {
        let before = (null.counted(), null.allocated());
        engine.step(&mut Vec::new()).unwrap();
        (null.counted() - before.0, null.allocated() - before.1)
    };
    assert_eq!(spent(&mut engine, &null), spent(&mut twin, &quiet));
    // A fork of a fork reads what the first of the three has, whether the second is there or not.
    let second = engine.fork(id, sampling, 0).unwrap();
    let third = engine.fork(second, sampling, 0).unwrap();
    assert!(engine.cancel(second).unwrap());
    let (tokens, failed) = rest(&mut engine);
    assert!(failed.is_empty());
    assert_eq!(tokens[&third], whole_text()[before.len() + 1..]);
}

/// A call that runs steps until its own texts have ended leaves the failure of others to whoever asks next.
#[test]
fn a_failure_that_a_call_saw_of_others_is_reported() {
    let null = Null::new();
    // A step whose capture fails would be run op by op.
    let config = EngineConfig {
        max_context: 64,
        max_seqs: 1,
        graphs: false,
        steps_ahead: Some(0),
        ..EngineConfig::default()
    };
    let mut engine = engine(&null, config);
    let id = engine.put(penalised(&[5, 6, 7], 9)).unwrap();
    engine.step(&mut Vec::new()).unwrap();
    null.fail_in(3);
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    engine.forward(Batch::Ragged(&[vec![8, 9]]), &want).unwrap();
    assert!(!engine.is_idle());
    let reported = engine.run();
    assert!(matches!(reported, Err(Error::OutOfMemory { .. })), "{reported:?}");
    assert_eq!(engine.take_failed(), [id]);
    assert!(engine.is_idle() && engine.run().unwrap().is_empty());
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

/// However many calls a tenant makes, it is one beside another; and its priority counts.
#[test]
fn calls_are_charged_to_their_tenant_and_have_its_priority() {
    let config = EngineConfig { max_context: 64, max_seqs: 1, max_step_tokens: 8, ..EngineConfig::default() };
    let mut engine = engine(&Null::new(), config);
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    let text = EncoderInput { ids: vec![5; 8], ..EncoderInput::default() };
    let mut calls = Vec::new();
    for (tenant, priority, count) in [("late", 1, 1), ("many", 0, 8)] {
        engine.set_caller(Caller { tenant: tenant.into(), priority });
        for _ in 0..count {
            calls.push(engine.submit_texts(std::slice::from_ref(&text), &want).unwrap());
        }
    }
    let request =
        Request { prompt: vec![4; 8], max_new_tokens: 1, tenant: "one".into(), ..Request::default() };
    let ids = [engine.put(request.clone()).unwrap(), engine.put(request).unwrap()];
    let (mut out, mut order) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        engine.step(&mut out).unwrap();
        order.extend(out.iter().filter(|output| output.finish.is_some()).map(|output| output.id));
    }
    let place = |id: u64| order.iter().position(|other| *other == id).unwrap();
    assert!(place(ids[1]) <= 4, "{order:?}: the second request waits for one call of the other tenant");
    assert_eq!(
        place(calls[0].ids()[0]),
        order.len() - 1,
        "{order:?}: the first came, and is the least urgent"
    );
    for texts in calls {
        assert_eq!(engine.take_forwarded(texts).unwrap().len(), 1);
    }
}

/// Texts of an encoder, too: one that comes behind a hundred of another call does not wait for all of them.
#[test]
fn many_texts_of_an_encoder_block_no_other_call() {
    let config = EngineConfig { max_seqs: 2, max_step_tokens: 16, ..EngineConfig::default() };
    let mut engine = loaded(&Null::idle(), "bert", config).unwrap();
    let text = |first: u32| EncoderInput { ids: vec![first; 8], ..EncoderInput::default() };
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::None };
    let many: Vec<EncoderInput> = (0..100).map(|i| text(3 + i % 50)).collect();
    let many = engine.submit_texts(&many, &want).unwrap();
    let one = engine.submit_texts(&[text(7)], &want).unwrap();
    let (mut out, mut before) = (Vec::new(), 0);
    while !out.iter().any(|output: &Output| one.ids().contains(&output.id)) {
        before += out.len();
        engine.step(&mut out).unwrap();
    }
    assert!(before < 16, "{before} texts of the other call were served before");
    engine.cancel_texts(&many).unwrap();
    assert_eq!(engine.take_forwarded(one).unwrap().len(), 1);
}

#[test]
fn random_schedules_give_every_request_its_own_continuation() {
    let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let schedules = if std::env::var_os("ENGRAFT_FULL").is_some() { 5000 } else { 300 };
    let (null, mut reference) = (Null::new(), reference());
    let seeds = (0..schedules).map(|i| seed.wrapping_mul(1_000_003) + i);
    let mut sums = [0; 4];
    for counts in seeds.map(|seed| schedule(&null, &mut reference, seed)) {
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [ended, without, preempted, hit] = sums;
    assert!(ended > 4 * schedules && without > 0, "{ended} and {without} of {schedules} schedules");
    assert!(10 * preempted > schedules && hit > schedules, "{preempted} preemptions, hits of {hit} tokens");
}
