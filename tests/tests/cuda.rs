//! Whole models on CUDA: the laws, bit for bit; in reference mode the CPU's bits, logits and hidden states; the tokens that
//! the CPU draws; faults that end an engine by name and leave others alone.
//!
//! `ENGRAFT_REQUIRE=cuda:soft` runs them on the software driver; without that and without a device nothing runs, and the
//! test says so.
#![allow(clippy::unwrap_used, clippy::panic)]

use conformance::backends::{self, cuda, cuda_names};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Captured, Engine, Request, Want};
use engraft_core::inject::inject;
use engraft_core::mem::Float;
use engraft_core::numerics::{Madd, Mode};
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_cuda::Cuda;
use std::path::Path;
use std::sync::Arc;

const CASES: [&str; 3] = ["llama_gqa_llama3", "gpt2", "opt_postln_proj"];

type Run = Vec<(Vec<u32>, Captured)>;

fn config() -> EngineConfig {
    EngineConfig { max_context: 48, all_logits: true, ..EngineConfig::default() }
}

fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case);
    let files = checkpoint::open(&dir, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(backend, &files, &Registry::default(), 4096, options, &mut |_, _| {}).unwrap();
    Engine::new(backend.clone(), model, config).unwrap()
}

/// Prompts of several lengths, all at once; logits and hidden states are kept where `keep`.
fn run<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    config: EngineConfig,
    sampling: SamplingParams,
    keep: bool,
) -> Run {
    let mut engine = engine(backend, case, config);
    let vocab = engine.model().spec.vocab;
    let mut ids = Vec::new();
    for (p, n) in [5usize, 1, 17].into_iter().enumerate() {
        let prompt = (0..n).map(|i| ((p * 31 + i) * 7919 % (vocab - 3) + 3) as u32).collect();
        let want = Want { logits: keep, hidden: keep };
        let request = Request { prompt, max_new_tokens: 6, sampling, want, ..Request::default() };
        ids.push(engine.put(request).unwrap());
    }
    let drawn = engine.run().unwrap();
    let kept = |id: &u64, e: &mut Engine<B>| e.take_captured(*id).unwrap_or_default();
    ids.iter().map(|id| (drawn[id].clone(), kept(id, &mut engine))).collect()
}

fn same(what: &str, got: &Run, want: &Run, kept: bool) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.0, w.0, "{what}: tokens of prompt {i}");
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(kept, !w.1.logits.is_empty(), "{what}: nothing was kept to compare");
        assert!(bits(&g.1.logits) == bits(&w.1.logits), "{what}: logits of prompt {i} differ");
        assert_eq!(g.1.hidden.len(), w.1.hidden.len(), "{what}: hidden states");
        for (layer, (a, b)) in g.1.hidden.iter().zip(&w.1.hidden).enumerate() {
            assert!(bits(a) == bits(b), "{what}: hidden state {layer} of prompt {i} differs");
        }
    }
}

fn laws(gpu: &Arc<Cuda>, cpu: &Arc<Cpu>, case: &str, dtype: Float) {
    let greedy = SamplingParams::default();
    let usual = EngineConfig { dtype, kv_dtype: dtype, ..config() };
    let want = run(gpu, case, usual.clone(), greedy, true);
    let reference = gpu.numerics().mode == Mode::Reference;
    if reference {
        let what = format!("{case} {dtype}: the device against the CPU");
        same(&what, &want, &run(cpu, case, usual.clone(), greedy, true), true);
    }
    for (name, other) in [
        ("chunks of 3", EngineConfig { max_step_tokens: 3, max_seqs: 1, ..usual.clone() }),
        ("pages of 1", EngineConfig { page_size: 1, page_seed: Some(11), ..usual.clone() }),
        ("pages of 64", EngineConfig { page_size: 64, page_seed: Some(5), ..usual.clone() }),
    ] {
        same(&format!("{case} {dtype}: {name}"), &run(gpu, case, other, greedy, true), &want, true);
    }
    // Nothing is kept: decode steps are captured and replayed, tokens are drawn on the device.
    let drawn = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        seed: 7,
    };
    for sampling in [greedy, drawn] {
        let tokens = run(gpu, case, usual.clone(), sampling, false);
        let plain = EngineConfig { graphs: false, ..usual.clone() };
        same(&format!("{case} {dtype}: replayed"), &tokens, &run(gpu, case, plain, sampling, false), false);
        if reference {
            let cpu = run(cpu, case, usual.clone(), sampling, false);
            same(&format!("{case} {dtype}: tokens as the CPU draws them"), &tokens, &cpu, false);
        }
    }
}

#[test]
fn models_keep_the_laws_and_equal_the_cpu() {
    let missing = backends::missing_here();
    assert!(missing.is_empty(), "{} asks for {}", backends::REQUIRE, missing.join(", "));
    let here = cuda_names();
    println!("{} CUDA devices: {}", here.len(), here.join(", "));
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here {
        let strict = cuda(name, Mode::Reference).unwrap();
        for case in CASES {
            laws(&strict, &cpu, case, Float::F32);
        }
        laws(&strict, &cpu, CASES[0], Float::Bf16);
        let invariant = cuda(name, Mode::Invariant).unwrap();
        laws(&invariant, &cpu, CASES[0], Float::F32);
        laws(&invariant, &cpu, CASES[0], Float::Bf16);
        laws(&invariant, &cpu, CASES[1], Float::F16);
    }
}
