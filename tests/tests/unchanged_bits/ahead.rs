//! Steps launched before the one before is collected: the same tokens and logits, bit for bit, whatever comes
//! and goes meanwhile; no page is lost, none is given away while a launched step names it.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::engine;
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::dice::Dice;
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::{Backend, Composed};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, Finish, ForwardWant, Kept, Layers, Output, Pick, Request, Want};
use engraft_core::numerics::Mode;
use engraft_core::sample::SamplingParams;
use engraft_cpu::{Cpu, CpuConfig};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    random_traffic_gives_what_requests_give_alone,
    a_stopped_sequence_keeps_its_pages_while_a_step_names_them,
];
pub const ON_CUDA: &[Named] = &named![random_traffic_on_cuda];
pub const ON_WGPU: &[Named] = &named![random_traffic_on_wgpu];

fn config(ahead: usize) -> EngineConfig {
    let steps_ahead = Some(ahead);
    EngineConfig {
        max_context: 48,
        max_seqs: 3,
        logit_rows: Some(usize::MAX),
        steps_ahead,
        ..EngineConfig::default()
    }
}

/// A request of random length, sampling and stop tokens.
fn request(dice: &mut Dice, vocab: usize) -> Request {
    let token = |dice: &mut Dice| (3 + dice.below(vocab - 3)) as u32;
    let sampling = SamplingParams {
        temperature: if dice.once_in(2) { 0.0 } else { 0.9 },
        repetition_penalty: if dice.once_in(2) { 1.0 } else { 1.3 },
        seed: Some(dice.bits()),
        ..SamplingParams::default()
    };
    let hidden = if dice.once_in(2) { Layers::All } else { Layers::None };
    let want = if dice.once_in(2) { Want { logits: true, hidden, logprobs: false } } else { Want::default() };
    Request {
        prompt: (0..1 + dice.below(20)).map(|_| token(dice)).collect(),
        max_new_tokens: dice.below(12),
        sampling,
        stop_ids: (0..40).map(|_| token(dice)).collect(),
        want,
        ..Request::default()
    }
}

/// Tokens, end and what was kept.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    tokens: Vec<u32>,
    finish: Option<Finish>,
    kept: Option<Kept>,
}

fn take<B: Backend>(engine: &mut Engine<B>, out: &[Output], seen: &mut BTreeMap<u64, Seen>) {
    for output in out {
        let one = seen.entry(output.id).or_default();
        assert!(one.finish.is_none(), "request {}: something after its end", output.id);
        one.tokens.extend(output.token);
        one.finish = output.finish;
        if output.finish.is_some() {
            one.kept = engine.take_kept(output.id);
        }
    }
}

/// What requests give by themselves, one after the other.
fn alone<B: Backend>(backend: &Arc<B>, case: &str, requests: &[Request]) -> Vec<Seen> {
    let mut engine = engine(backend, case, EngineConfig { graphs: false, ..config(0) });
    let mut all = Vec::new();
    for request in requests {
        let (id, mut out, mut seen) = (engine.put(request.clone()).unwrap(), Vec::new(), BTreeMap::new());
        while !engine.is_idle() {
            engine.step(&mut out).unwrap();
            take(&mut engine, &out, &mut seen);
        }
        all.push(seen.remove(&id).unwrap());
    }
    all
}

/// Requests that come, are cancelled and read whole texts in between at random.
fn traffic<B: Backend>(backend: &Arc<B>, case: &str, ahead: usize, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut engine = engine(backend, case, config(ahead));
    let vocab = engine.model().spec.vocab;
    let requests: Vec<Request> = (0..12).map(|_| request(&mut dice, vocab)).collect();
    let want = alone(backend, case, &requests);
    let text: Vec<u32> = (3..9).collect();
    let all = ForwardWant { hidden: Pick::Last, logits: Pick::All };
    let forward =
        |engine: &mut Engine<B>| engine.forward(Batch::Ragged(std::slice::from_ref(&text)), &all).unwrap();
    let quiet = forward(&mut engine);

    let (mut seen, mut cancelled, mut ids) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut left, mut out) = (requests.iter(), Vec::new());
    while !engine.is_idle() || left.len() > 0 {
        if dice.once_in(2) || engine.is_idle() {
            ids.extend(left.next().map(|request| engine.put(request.clone()).unwrap()));
        }
        if dice.once_in(7) && !ids.is_empty() {
            let id = ids[dice.below(ids.len())];
            let running = seen.get(&id).is_none_or(|one: &Seen| one.finish.is_none());
            // It may have ended in a step that is not reported yet.
            if running && engine.cancel(id).unwrap() {
                cancelled.insert(id, seen.get(&id).map_or(0, |one| one.tokens.len()));
            }
        }
        if dice.once_in(9) {
            assert!(forward(&mut engine) == quiet, "{case}, seed {seed}: a text among requests");
        }
        engine.step(&mut out).unwrap();
        take(&mut engine, &out, &mut seen);
    }
    let (free, total) = engine.free_pages();
    assert_eq!(free, total, "{case}, seed {seed}, {ahead} ahead: pages leaked");
    for (id, want) in ids.iter().zip(&want) {
        let got = seen.remove(id).unwrap_or_default();
        match cancelled.get(id) {
            None => assert!(got == *want, "{case}, seed {seed}, {ahead} ahead, request {id}: {got:?}"),
            Some(_) => assert!(want.tokens.starts_with(&got.tokens), "{case}, seed {seed}, request {id}"),
        }
    }
}

fn seed() -> u64 {
    std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn random_traffic_gives_what_requests_give_alone() {
    let cpu = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let composed = Arc::new(Composed::new(cpu.clone()));
    for case in ["llama_gqa_llama3", "gpt2", "qwen2_moe", "phi3_longrope"] {
        for ahead in [0, 1] {
            for more in 0..4 {
                traffic(&cpu, case, ahead, seed() + more);
            }
            traffic(&composed, case, ahead, seed());
        }
    }
}

fn random_traffic_on_cuda() {
    for name in cuda_names() {
        for ahead in [0, 1] {
            traffic(&cuda(&name, Mode::Invariant).unwrap(), "llama_gqa_llama3", ahead, seed());
        }
    }
}

fn random_traffic_on_wgpu() {
    for name in adapters() {
        for ahead in [0, 1] {
            traffic(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3", ahead, seed());
        }
    }
}

/// At depth 1 a sequence that stops has one more step in flight: its pages stay its own until that is
/// collected.
fn a_stopped_sequence_keeps_its_pages_while_a_step_names_them() {
    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap();
    let mut engine = engine(&cpu, "llama", config(1));
    let prompt: Vec<u32> = (3..8).collect();
    let request = Request { prompt, max_new_tokens: 8, ..Request::default() };
    let id = engine.put(request.clone()).unwrap();
    let mut out = Vec::new();
    engine.step(&mut out).unwrap();
    assert!(out.is_empty(), "the first step is launched, not collected");
    engine.step(&mut out).unwrap();
    assert_eq!((out.len(), out[0].id), (1, id));
    let (first, (held, total)) = (out[0].token, engine.free_pages());
    assert!(held < total && engine.cancel(id).unwrap());
    assert_eq!(engine.free_pages().0, held, "step 2 is in flight");
    engine.step(&mut out).unwrap();
    assert!(out.is_empty(), "nothing is reported behind a cancel");
    assert_eq!(engine.free_pages(), (total, total));
    assert!(engine.is_idle());

    // The same where its own token ends it.
    let stop_ids = first.into_iter().collect();
    engine.put(Request { stop_ids, ..request }).unwrap();
    engine.step(&mut out).unwrap();
    engine.step(&mut out).unwrap();
    assert_eq!((out.len(), out[0].finish), (1, Some(Finish::Stop)));
    assert_eq!(engine.free_pages().0, held, "a step behind its end is in flight");
    engine.step(&mut out).unwrap();
    assert!(out.is_empty(), "nothing is reported behind an end");
    assert_eq!(engine.free_pages(), (total, total));
}
