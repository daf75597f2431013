//! Forks of running requests: what a fork gives is, bit for bit, what a request gives whose prompt is the
//! text so far, and what it was forked from gives what it would have given alone. The cache that both read is
//! looked at, too.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{self, cpu};
use conformance::backends::{self, adapters, cuda, cuda_names, wgpu};
use engraft_core::backend::{Backend, Composed};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request};
use engraft_core::numerics::Mode;
use engraft_core::policy::Family;
use engraft_core::sample::SamplingParams;
use engraft_core::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

const PROMPT: [u32; 5] = [7, 40, 9, 51, 22];
const NEW: usize = 14;

type Texts = BTreeMap<u64, Vec<u32>>;

fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let engine = support::engine(backend, case, config);
    assert_eq!(engine.model().spec.family, Family::Decoder, "{case}");
    engine
}

/// Every step is collected before the next one: how many tokens there are when a request is forked is known.
/// `null.rs` forks at any time.
fn config(page_size: usize) -> EngineConfig {
    let (page_seed, steps_ahead) = (Some(3), Some(0));
    EngineConfig {
        max_context: 40,
        max_seqs: 4,
        page_size,
        page_seed,
        steps_ahead,
        ..EngineConfig::default()
    }
}

fn greedy() -> SamplingParams {
    SamplingParams { repetition_penalty: 1.2, ..SamplingParams::default() }
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 1.5,
        repetition_penalty: 1.1,
        seed: Some(seed),
        ..SamplingParams::default()
    }
}

fn request(prompt: &[u32], new: usize, sampling: SamplingParams) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens: new, sampling, ..Request::default() }
}

fn steps<B: Backend>(engine: &mut Engine<B>, count: usize, texts: &mut Texts) {
    let mut out: Vec<Output> = Vec::new();
    for _ in 0..count {
        engine.step(&mut out).unwrap();
        out.iter().for_each(|o| texts.entry(o.id).or_default().extend(o.token));
    }
}

/// The rest of everything that runs.
fn rest<B: Backend>(engine: &mut Engine<B>, mut texts: Texts) -> Texts {
    for (id, tokens) in engine.run().unwrap() {
        texts.entry(id).or_default().extend(tokens);
    }
    let (free, all) = engine.free_pages();
    assert_eq!(free, all, "pages leak");
    texts
}

/// What a request alone gives.
fn alone<B: Backend>(backend: &Arc<B>, case: &str, request: Request) -> Vec<u32> {
    let mut engine = engine(backend, case, config(16));
    let id = engine.put(request).unwrap();
    rest(&mut engine, Texts::new()).remove(&id).unwrap()
}

/// Forks after `before` tokens, in pages of `page_size`.
fn law<B: Backend>(backend: &Arc<B>, case: &str, page_size: usize, before: usize) {
    let mut engine = engine(backend, case, config(page_size));
    let first = engine.put(request(&PROMPT, NEW, greedy())).unwrap();
    let mut texts = Texts::new();
    steps(&mut engine, before, &mut texts);
    let so_far = [&PROMPT[..], &texts[&first]].concat();
    let same = engine.fork(first, greedy(), 0).unwrap();
    let other = engine.fork(first, sampled(11), 2).unwrap();
    for layer in 0..engine.model().blocks.len() {
        let kept = engine.cached(first, layer).unwrap();
        assert!(kept.iter().all(|rows| rows.iter().any(|v| *v != 0.0)));
        assert_eq!(engine.cached(same, layer).unwrap(), kept, "{case}: cache of layer {layer}");
    }
    let texts = rest(&mut engine, texts);
    let whole = alone(backend, case, request(&PROMPT, NEW, greedy()));
    assert_eq!(texts[&first], whole, "{case}, pages of {page_size}: what was forked");
    assert_eq!(texts[&same], whole[before..], "{case}, pages of {page_size}: the same again");
    let continued = Request { subsequence: 2, ..request(&so_far, NEW - before, sampled(11)) };
    assert_eq!(texts[&other], alone(backend, case, continued), "{case}, pages of {page_size}: another seed");
}

#[test]
fn forks_go_on_as_requests_of_their_own() {
    let cpu = cpu();
    for case in [
        "llama_gqa_llama3",
        "gpt2",
        "gemma2",
        "mixtral",
        "falcon_alibi",
        "bloom",
        "deepseek_v3",
        "longcat_flash",
        "glm_moe_dsa",
    ] {
        for (page_size, before) in [(16, 3), (1, 4), (4, 4), (4, 2)] {
            law(&cpu, case, page_size, before);
        }
    }
    law(&Arc::new(Composed::new(cpu)), "llama", 4, 2);
}

/// What a fork leaves to others is as secret as what it was forked from. Where it goes on elsewhere, it
/// leaves them nothing: its keys and values came from outside.
#[test]
fn a_fork_shares_its_prefix_with_its_own_salt_alone() {
    let cpu = cpu();
    let mut first = engine(&cpu, "llama", config(4));
    let salted = Request { cache_salt: "a".into(), ..request(&PROMPT, NEW, greedy()) };
    let id = first.put(salted.clone()).unwrap();
    steps(&mut first, 4, &mut Texts::new());
    let fork = first.fork(id, greedy(), 0).unwrap();
    let saved = first.save(fork).unwrap();
    let mut second = engine(&cpu, "llama", config(4));
    second.restore(&saved).unwrap();
    for (engine, own) in [(&mut first, true), (&mut second, false)] {
        rest(engine, Texts::new());
        for (salt, found) in [("", false), ("b", false), ("a", own)] {
            let before = engine.prefix_stats().hit;
            engine.put(Request { cache_salt: salt.into(), ..salted.clone() }).unwrap();
            rest(engine, Texts::new());
            assert_eq!(engine.prefix_stats().hit > before, found, "salt {salt:?}");
        }
    }
}

#[test]
fn forks_on_devices() {
    for name in cuda_names() {
        law(&cuda(&name, Mode::Invariant).unwrap(), "llama_gqa_llama3", 4, 2);
    }
    for name in adapters() {
        law(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3", 4, 2);
    }
    println!("skipped: {:?}", backends::absent());
    let missing = backends::missing_here();
    assert!(missing.is_empty(), "{missing:?} required");
}

#[test]
fn a_fork_outlives_what_it_was_forked_from() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "llama_gqa_llama3", config(4));
    let first = engine.put(request(&PROMPT, NEW, greedy())).unwrap();
    let mut texts = Texts::new();
    steps(&mut engine, 3, &mut texts);
    let fork = engine.fork(first, greedy(), 0).unwrap();
    assert!(engine.cancel(first).unwrap());
    // A mate takes the row and pages that became free.
    let mate = engine.put(request(&[3, 5, 8], NEW, greedy())).unwrap();
    let texts = rest(&mut engine, texts);
    let whole = alone(&cpu, "llama_gqa_llama3", request(&PROMPT, NEW, greedy()));
    assert_eq!(texts[&fork], whole[3..]);
    assert_eq!(texts[&mate], alone(&cpu, "llama_gqa_llama3", request(&[3, 5, 8], NEW, greedy())));
}

#[test]
fn forks_that_are_cancelled_before_a_step_leave_nothing_behind() {
    let cpu = cpu();
    let whole = alone(&cpu, "llama_gqa_llama3", request(&PROMPT, NEW, greedy()));
    let mut engine = engine(&cpu, "llama_gqa_llama3", config(4));
    let first = engine.put(request(&PROMPT, NEW, greedy())).unwrap();
    let mut texts = Texts::new();
    steps(&mut engine, 3, &mut texts);
    // More changes of the page table than a step has room for.
    for _ in 0..50 {
        let fork = engine.fork(first, greedy(), 0).unwrap();
        assert!(engine.cancel(fork).unwrap());
    }
    assert_eq!(rest(&mut engine, texts)[&first], whole);
}

#[test]
fn what_cannot_be_forked_is_refused_by_name() {
    let refused = |outcome: Result<u64>, what: &str| {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(what), "{text}");
    };
    let small = EngineConfig { max_seqs: 2, max_step_tokens: 4, kv_pages: Some(5), ..config(4) };
    let mut engine = engine(&cpu(), "llama_gqa_llama3", small);
    refused(engine.fork(7, greedy(), 0), "request 7: not running");
    let first = engine.put(request(&PROMPT, NEW, greedy())).unwrap();
    refused(engine.fork(first, greedy(), 0), "waits for its next step");
    steps(&mut engine, 1, &mut Texts::new());
    refused(engine.fork(first, greedy(), 0), "its tokens are still being read");
    refused(engine.fork(first, SamplingParams { top_p: 2.0, ..greedy() }, 0), "top_p");
    steps(&mut engine, 1, &mut Texts::new());
    // 17 positions are all of the 5 pages, and the last one would be copied.
    steps(&mut engine, 12, &mut Texts::new());
    assert!(matches!(engine.fork(first, greedy(), 0), Err(Error::KvFull { wanted: 1, free: 0, total: 5 })));
    assert!(matches!(engine.cached(first, 99), Err(Error::Config { .. })));
    refused(engine.cached(42, 0).map(|_| 0), "request 42: not running");
    assert_eq!(engine.free_pages().0, 0);
    rest(&mut engine, Texts::new());
    let first = engine.put(request(&PROMPT[..4], NEW, greedy())).unwrap();
    engine.put(request(&[3], NEW, greedy())).unwrap();
    steps(&mut engine, 2, &mut Texts::new());
    refused(engine.fork(first, greedy(), 0), "2 sequences run already, as many as `max_seqs` allows");
    rest(&mut engine, Texts::new());
}
