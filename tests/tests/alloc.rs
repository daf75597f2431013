//! A step allocates nothing after warm-up, on any thread: a counting allocator watches.
#![allow(clippy::unwrap_used)]

use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// An engine for a case.
fn engine(case: &str, dtype: Float, graphs: bool, ahead: usize) -> Engine<Cpu> {
    let backend = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig {
        dtype,
        kv_dtype: dtype.into(),
        graphs,
        max_context: 40,
        // A page that is filled is noted in the prefix cache, which allocates; none is filled here.
        page_size: 32,
        steps_ahead: Some(ahead),
        ..EngineConfig::default()
    };
    Engine::new(backend, model, config).unwrap()
}

/// Allocations of the next step.
fn step(engine: &mut Engine<Cpu>, out: &mut Vec<Output>) -> usize {
    let before = ALLOCATIONS.load(SeqCst);
    engine.step(out).unwrap();
    ALLOCATIONS.load(SeqCst) - before
}

/// Runs two requests twice; returns allocations of the second round's steps, and how many steps there were.
fn steps(case: &str, dtype: Float, graphs: bool, ahead: usize, sampling: SamplingParams) -> (usize, usize) {
    let mut engine = engine(case, dtype, graphs, ahead);
    let (mut out, mut count, mut taken) = (Vec::with_capacity(16), 0, 0);
    for round in 0..2 {
        for length in [3, 9] {
            let request = Request {
                prompt: (0..length).map(|i| 5 + i).collect(),
                max_new_tokens: 12,
                sampling,
                ..Request::default()
            };
            engine.put(request).unwrap();
        }
        while !engine.is_idle() {
            let allocated = step(&mut engine, &mut out);
            if round == 1 {
                count += allocated;
                taken += 1;
            }
        }
    }
    (count, taken)
}

/// Forks a request twice, then runs three continuations of a prompt, and all of that a second time; returns
/// allocations of the second round's steps, some of which copy a page, and how many steps there were. A fork
/// itself may allocate.
fn copies(graphs: bool, ahead: usize) -> (usize, usize) {
    let mut engine = engine("llama", Float::F32, graphs, ahead);
    let (mut out, mut counts) = (Vec::with_capacity(16), Vec::new());
    let request = || Request { prompt: vec![5, 6, 7], max_new_tokens: 12, ..Request::default() };
    for _ in 0..2 {
        counts.clear();
        let id = engine.put(request()).unwrap();
        while engine.sampled(id).is_none_or(<[u32]>::is_empty) {
            counts.push(step(&mut engine, &mut out));
        }
        // Two steps after each: orders take turns, and both have had a copy then.
        for _ in 0..2 {
            engine.fork(id, SamplingParams::default(), 0).unwrap();
            (0..2).for_each(|_| counts.push(step(&mut engine, &mut out)));
        }
        while !engine.is_idle() {
            counts.push(step(&mut engine, &mut out));
        }
        engine.put_several(request(), 3).unwrap();
        while !engine.is_idle() {
            counts.push(step(&mut engine, &mut out));
        }
    }
    (counts.iter().sum(), counts.len())
}

/// No harness: its threads (the notice of a slow test, say) would be counted, too.
fn main() {
    let mut cases = 0;
    let sampled = SamplingParams {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        seed: Some(3),
        ..SamplingParams::default()
    };
    for case in ["llama", "gpt2", "opt_postln_proj", "qwen2_moe", "gemma2"] {
        for dtype in [Float::F32, Float::Bf16] {
            for graphs in [true, false] {
                for sampling in [SamplingParams::default(), sampled] {
                    for ahead in [0, 1] {
                        let (count, taken) = steps(case, dtype, graphs, ahead, sampling);
                        assert!(taken >= 12);
                        let what = format!("graphs {graphs}, {ahead} ahead, {taken} steps");
                        assert_eq!(count, 0, "{case} {dtype}, {what}");
                        cases += 1;
                    }
                }
            }
        }
    }
    for graphs in [true, false] {
        for ahead in [0, 1] {
            let (count, taken) = copies(graphs, ahead);
            assert!(taken >= 24);
            assert_eq!(count, 0, "copies of pages, graphs {graphs}, {ahead} ahead, {taken} steps");
            cases += 1;
        }
    }
    println!("a step allocates nothing after warm-up: {cases} cases");
}
