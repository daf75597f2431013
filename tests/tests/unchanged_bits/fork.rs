//! Forks of running requests: what a fork gives is, bit for bit, what a request gives whose prompt is the
//! text so far, and what it was forked from gives what it would have given alone. The cache that both read is
//! looked at, too.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{self, cpu};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::{Backend, Composed};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request};
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Mode;
use engraft_core::policy::Family;
use engraft_core::sample::SamplingParams;
use engraft_core::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    forks_go_on_as_requests_of_their_own,
    a_fork_shares_its_prefix_with_its_own_salt_alone,
    a_fork_outlives_what_it_was_forked_from,
    forks_that_are_cancelled_before_a_step_leave_nothing_behind,
    what_cannot_be_forked_is_refused_by_name,
];
pub const ON_CUDA: &[Named] = &named![forks_on_cuda];
pub const ON_WGPU: &[Named] = &named![forks_on_wgpu];

const PROMPT: [u32; 5] = [7, 40, 9, 51, 22];
const NEW: usize = 14;
const F32: KvFormat = KvFormat::Plain(Float::F32);

type Texts = BTreeMap<u64, Vec<u32>>;

fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let engine = support::engine(backend, case, config);
    assert_eq!(engine.model().spec.family, Family::Decoder, "{case}");
    engine
}

/// Every step is collected before the next one: how many tokens there are when a request is forked is known.
/// `null.rs` forks at any time.
fn config(page_size: usize, kv_dtype: KvFormat) -> EngineConfig {
    let (page_seed, steps_ahead) = (Some(3), Some(0));
    EngineConfig {
        kv_dtype,
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
fn alone<B: Backend>(backend: &Arc<B>, case: &str, kv: KvFormat, request: Request) -> Vec<u32> {
    let mut engine = engine(backend, case, config(16, kv));
    let id = engine.put(request).unwrap();
    rest(&mut engine, Texts::new()).remove(&id).unwrap()
}

/// Forks after `before` tokens, in pages of `page_size`.
fn law<B: Backend>(backend: &Arc<B>, case: &str, kv: KvFormat, [page_size, before]: [usize; 2]) {
    let mut engine = engine(backend, case, config(page_size, kv));
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
    let whole = alone(backend, case, kv, request(&PROMPT, NEW, greedy()));
    assert_eq!(texts[&first], whole, "{case}, pages of {page_size}: what was forked");
    assert_eq!(texts[&same], whole[before..], "{case}, pages of {page_size}: the same again");
    let continued = Request { subsequence: 2, ..request(&so_far, NEW - before, sampled(11)) };
    assert_eq!(
        texts[&other],
        alone(backend, case, kv, continued),
        "{case}, pages of {page_size}: another seed"
    );
}

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
            law(&cpu, case, F32, [page_size, before]);
            law(&cpu, case, KvFormat::INT8, [page_size, before]);
        }
    }
    law(&Arc::new(Composed::new(cpu)), "llama", F32, [4, 2]);
}

/// What a fork leaves to others is as secret as what it was forked from. Where it goes on elsewhere, it
/// leaves them nothing: its keys and values came from outside.
fn a_fork_shares_its_prefix_with_its_own_salt_alone() {
    let cpu = cpu();
    let mut first = engine(&cpu, "llama", config(4, F32));
    let salted = Request { cache_salt: "a".into(), ..request(&PROMPT, NEW, greedy()) };
    let id = first.put(salted.clone()).unwrap();
    steps(&mut first, 4, &mut Texts::new());
    let fork = first.fork(id, greedy(), 0).unwrap();
    let saved = first.save(fork).unwrap();
    let len = u32::from_le_bytes(saved[8..12].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&saved[12..12 + len]).unwrap();
    assert_eq!(header["cache_salt"], "a", "whose it is goes with it");
    let mut second = engine(&cpu, "llama", config(4, F32));
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

fn forks_on_cuda() {
    for name in cuda_names() {
        law(&cuda(&name, Mode::Invariant).unwrap(), "llama_gqa_llama3", F32, [4, 2]);
        // Pages are copied by 16 bytes and, of one position, by 4.
        for (case, kv, by) in
            [("llama_gqa_llama3", KvFormat::INT8, [4, 2]), ("glm_moe_dsa", KvFormat::FP8, [4, 3])]
        {
            law(&cuda(&name, Mode::Invariant).unwrap(), case, kv, by);
        }
    }
}

fn forks_on_wgpu() {
    for name in adapters() {
        for kv in [F32, KvFormat::INT8] {
            law(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3", kv, [4, 2]);
        }
    }
}

fn a_fork_outlives_what_it_was_forked_from() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "llama_gqa_llama3", config(4, F32));
    let first = engine.put(request(&PROMPT, NEW, greedy())).unwrap();
    let mut texts = Texts::new();
    steps(&mut engine, 3, &mut texts);
    let fork = engine.fork(first, greedy(), 0).unwrap();
    assert!(engine.cancel(first).unwrap());
    // A mate takes the row and pages that became free.
    let mate = engine.put(request(&[3, 5, 8], NEW, greedy())).unwrap();
    let texts = rest(&mut engine, texts);
    let whole = alone(&cpu, "llama_gqa_llama3", F32, request(&PROMPT, NEW, greedy()));
    assert_eq!(texts[&fork], whole[3..]);
    assert_eq!(texts[&mate], alone(&cpu, "llama_gqa_llama3", F32, request(&[3, 5, 8], NEW, greedy())));
}

fn forks_that_are_cancelled_before_a_step_leave_nothing_behind() {
    let cpu = cpu();
    let whole = alone(&cpu, "llama_gqa_llama3", F32, request(&PROMPT, NEW, greedy()));
    let mut engine = engine(&cpu, "llama_gqa_llama3", config(4, F32));
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

fn what_cannot_be_forked_is_refused_by_name() {
    let refused = |outcome: Result<u64>, what: &str| {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(what), "{text}");
    };
    let small = EngineConfig { max_seqs: 2, max_step_tokens: 4, kv_pages: Some(5), ..config(4, F32) };
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
