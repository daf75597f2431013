//! Pages that leave the device for host memory and come back: what requests give does not depend on it.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{Types, cpu, engine};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::null::Null;
use conformance::trials::Named;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Pick, Request};
use engraft_core::kv::{HostPages, PageStore};
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Mode;
use engraft_core::sample::SamplingParams;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    pages_come_back_as_they_went,
    a_store_that_loses_pages_costs_time_alone,
    a_page_that_the_store_has_changed_is_computed_anew,
    pages_move_by_memory_that_is_set_aside,
    a_page_that_cannot_be_brought_back_is_forgotten,
    a_store_needs_a_prefix_cache,
];
pub const ON_CUDA: &[Named] = &named![pages_come_back_on_cuda];
pub const ON_WGPU: &[Named] = &named![pages_come_back_on_wgpu];

/// A pool of `pages` pages of four positions.
fn config(types: impl Into<Types>, pages: usize, ahead: usize) -> EngineConfig {
    let Types { dtype, kv_dtype } = types.into();
    EngineConfig {
        dtype,
        kv_dtype,
        max_context: 32,
        max_seqs: 3,
        max_step_tokens: 9,
        page_size: 4,
        kv_pages: Some(pages),
        page_seed: Some(5),
        steps_ahead: Some(ahead),
        ..EngineConfig::default()
    }
}

/// Request `i` of a few that begin alike in threes.
fn request(i: usize) -> Request {
    let sampling = SamplingParams {
        temperature: 1.2,
        repetition_penalty: 1.2,
        seed: Some(9),
        ..SamplingParams::default()
    };
    let begin = (0..13u32).map(|at| 3 + (at * 7 + at * at + i as u32 % 3) % 50);
    let prompt = begin.chain((0..1 + i as u32 % 5).map(|at| 5 + at + i as u32)).collect();
    Request { prompt, max_new_tokens: 8, sampling, ..Request::default() }
}

/// The tokens of a dozen requests, three of them at once.
fn served<B: Backend>(engine: &mut Engine<B>) -> Vec<Vec<u32>> {
    let (mut all, total) = (Vec::new(), engine.free_pages().1);
    for first in (0..12).step_by(3) {
        let ids: Vec<u64> = (first..first + 3).map(|i| engine.put(request(i)).unwrap()).collect();
        let mut tokens = engine.run().unwrap();
        all.extend(ids.iter().map(|id| tokens.remove(id).unwrap()));
        assert_eq!(engine.free_pages(), (total, total), "pages leak");
    }
    all
}

/// The logits behind the prompts of the same requests, each of which takes what is cached of it.
fn logits<B: Backend>(engine: &mut Engine<B>) -> Vec<Vec<u32>> {
    let want = ForwardWant { logits: Pick::Last, hidden: Pick::None };
    let of = |i: usize| engine.forward(Batch::Ragged(&[request(i).prompt]), &want).unwrap().remove(0).logits;
    (0..12).map(of).map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// Pages that came back.
fn law<B: Backend>(backend: &Arc<B>, case: &str, types: impl Into<Types>, ahead: usize) -> u64 {
    let types = types.into();
    let mut cold = engine(backend, case, EngineConfig { prefix_cache: false, ..config(types, 24, ahead) });
    let (want, rows, mut restored) = (served(&mut cold), logits(&mut cold), 0);
    for (pages, room) in [(8, 1 << 20), (11, 1 << 20), (9, 3000), (9, 0)] {
        let mut engine = engine(backend, case, config(types, pages, ahead));
        engine.set_page_store(HostPages::new(room)).unwrap();
        for round in 0..2 {
            let what =
                format!("{case}, {types:?}, {pages} pages, {room} bytes, ahead {ahead}, round {round}");
            assert_eq!(served(&mut engine), want, "{what}");
            assert_eq!(logits(&mut engine), rows, "logits of {what}");
        }
        let stats = engine.prefix_stats();
        assert!(stats.evicted > 0, "{case}: {stats:?}");
        assert!(room > 0 || stats.stored == 0 && stats.restored == 0, "{case}: {stats:?}");
        restored += stats.restored;
    }
    restored
}

fn pages_come_back_as_they_went() {
    let cpu = cpu();
    for (case, types) in [
        ("llama_gqa_llama3", Types::from(Float::F32)),
        ("llama", Float::Bf16.into()),
        ("gemma2", Float::F16.into()),
        ("phi3_longrope", Float::F32.into()),
        ("gpt2", Float::F32.into()),
        ("llama_gqa_llama3", (Float::F32, KvFormat::INT8).into()),
        ("gemma2", (Float::Bf16, KvFormat::FP8).into()),
    ] {
        for ahead in 0..2 {
            let restored = law(&cpu, case, types, ahead);
            assert!(restored > 20, "{case}: {restored} pages came back");
        }
    }
}

fn pages_come_back_on_cuda() {
    for name in cuda_names() {
        for types in [Types::from(Float::F32), (Float::F32, KvFormat::INT8).into()] {
            assert!(law(&cuda(&name, Mode::Invariant).unwrap(), "llama_gqa_llama3", types, 1) > 20);
        }
    }
}

fn pages_come_back_on_wgpu() {
    for name in adapters() {
        for types in [Types::from(Float::F32), (Float::F32, KvFormat::INT8).into()] {
            assert!(law(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3", types, 1) > 20);
        }
    }
}

/// A store that loses every third page that is asked for, and counts those that it holds.
struct Loses {
    pages: HostPages,
    asked: usize,
    held: Arc<AtomicUsize>,
}

impl PageStore for Loses {
    fn put(&mut self, number: u64, page: Vec<u8>, dropped: &mut Vec<u64>) {
        self.pages.put(number, page, dropped);
        self.held.store(self.pages.used(), Ordering::Relaxed);
    }
    fn get(&mut self, number: u64) -> Option<Vec<u8>> {
        self.asked += 1;
        if self.asked.is_multiple_of(3) {
            self.remove(number);
        }
        self.pages.get(number)
    }
    fn remove(&mut self, number: u64) {
        self.pages.remove(number);
        self.held.store(self.pages.used(), Ordering::Relaxed);
    }
}

fn a_store_that_loses_pages_costs_time_alone() {
    let cpu = cpu();
    let want = served(&mut engine(&cpu, "llama", config(Float::F32, 24, 0)));
    let mut engine = engine(&cpu, "llama", config(Float::F32, 8, 0));
    let held = Arc::new(AtomicUsize::new(0));
    engine.set_page_store(Loses { pages: HostPages::new(1 << 20), asked: 0, held: held.clone() }).unwrap();
    for _ in 0..3 {
        assert_eq!(served(&mut engine), want);
    }
    assert!(engine.prefix_stats().restored > 10, "{:?}", engine.prefix_stats());
    // What the tree does not know is not in the store either: a page of a layer is 4 positions of keys and
    // values.
    let of_page = held.load(Ordering::Relaxed) / engine.prefix_stats().stored;
    assert_eq!(held.load(Ordering::Relaxed), of_page * engine.prefix_stats().stored);
}

/// A store that changes every third page that is asked for.
struct Changes(HostPages, usize, fn(&mut Vec<u8>));

impl PageStore for Changes {
    fn put(&mut self, number: u64, page: Vec<u8>, dropped: &mut Vec<u64>) {
        self.0.put(number, page, dropped);
    }
    fn get(&mut self, number: u64) -> Option<Vec<u8>> {
        self.1 += 1;
        let mut page = self.0.get(number)?;
        if self.1.is_multiple_of(3) {
            (self.2)(&mut page);
        }
        Some(page)
    }
    fn remove(&mut self, number: u64) {
        self.0.remove(number);
    }
}

fn a_page_that_the_store_has_changed_is_computed_anew() {
    let cpu = cpu();
    let want = served(&mut engine(&cpu, "llama", config(Float::F32, 24, 0)));
    let changes: [fn(&mut Vec<u8>); 3] = [
        |page| page.truncate(page.len() - 1),
        |page| page[0] ^= 1,
        |page| page.as_chunks_mut::<4>().0.fill(7.5f32.to_le_bytes()),
    ];
    for change in changes {
        let mut engine = engine(&cpu, "llama", config(Float::F32, 8, 0));
        engine.set_page_store(Changes(HostPages::new(1 << 20), 0, change)).unwrap();
        for _ in 0..3 {
            assert_eq!(served(&mut engine), want);
        }
        assert!(engine.prefix_stats().restored > 10, "{:?}", engine.prefix_stats());
    }
}

/// What pages go through is allocated with the store and counted; steps that move pages take nothing.
fn pages_move_by_memory_that_is_set_aside() {
    let null = Null::new();
    let mut engine = engine(&null, "llama", config(Float::F32, 8, 0));
    let (before, counted) = (engine.memory().total(), null.allocated());
    engine.set_page_store(HostPages::new(1 << 20)).unwrap();
    let aside = engine.memory().total() - before;
    assert_eq!(null.allocated() - counted, aside);
    assert!(aside > 0);
    // Another store takes its place, and no more memory.
    engine.set_page_store(HostPages::new(1 << 20)).unwrap();
    assert_eq!((engine.memory().total() - before, null.allocated() - counted), (aside, aside));
    // The first round captures steps.
    served(&mut engine);
    let (restored, allocated) = (engine.prefix_stats().restored, null.allocated());
    served(&mut engine);
    assert!(engine.prefix_stats().restored > restored, "{:?}", engine.prefix_stats());
    assert_eq!(null.allocated(), allocated, "steps that move pages allocate");
}

/// A page that cannot be written costs the requests of that step, and what the tree knew of it is gone.
fn a_page_that_cannot_be_brought_back_is_forgotten() {
    let mut failed = 0;
    for ops in 0..160 {
        let null = Null::new();
        let mut engine = engine(&null, "llama", config(Float::F32, 8, (ops % 2) as usize));
        engine.set_page_store(HostPages::new(1 << 20)).unwrap();
        let want = served(&mut engine);
        let ids: Vec<u64> = (0..3).map(|i| engine.put(request(i)).unwrap()).collect();
        null.fail_in(ops);
        let (mut out, mut tokens, mut ended) = (Vec::new(), vec![Vec::new(); 3], Vec::new());
        while !engine.is_idle() {
            if engine.step(&mut out).is_ok() {
                out.iter().for_each(|o| tokens[(o.id - ids[0]) as usize].extend(o.token));
            }
            ended.extend(engine.take_failed());
        }
        null.fail_in(u64::MAX);
        for (i, id) in ids.iter().enumerate().filter(|(_, id)| !ended.contains(id)) {
            assert_eq!(tokens[i], want[i], "request {id}, where op {ops} fails");
        }
        failed += ended.len();
        assert_eq!(served(&mut engine), want, "behind a failure of op {ops}");
    }
    assert!(failed > 100, "{failed} requests failed");
}

fn a_store_needs_a_prefix_cache() {
    let config = EngineConfig { prefix_cache: false, ..config(Float::F32, 8, 0) };
    let error = engine(&cpu(), "llama", config).set_page_store(HostPages::new(1)).unwrap_err().to_string();
    assert!(error.contains("prefix_cache") && error.contains("true"), "{error}");
}
