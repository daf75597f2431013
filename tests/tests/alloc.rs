//! A step allocates nothing after warm-up, on any thread: a counting allocator watches.
#![allow(clippy::unwrap_used)]

use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
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

/// Runs two requests twice; returns allocations of the second round's steps, and how many steps there were.
fn steps(case: &str, dtype: Float, graphs: bool, ahead: usize, sampling: SamplingParams) -> (usize, usize) {
    let backend = Cpu::new(CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), 64, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig {
        dtype,
        kv_dtype: dtype,
        graphs,
        max_context: 40,
        // A page that is filled is noted in the prefix cache, which allocates; none is filled here.
        page_size: 32,
        steps_ahead: Some(ahead),
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(backend, model, config).unwrap();
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
            let before = ALLOCATIONS.load(SeqCst);
            engine.step(&mut out).unwrap();
            if round == 1 {
                count += ALLOCATIONS.load(SeqCst) - before;
                taken += 1;
            }
        }
    }
    (count, taken)
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
    println!("a step allocates nothing after warm-up: {cases} cases");
}
