//! Whole models on a device, bit for bit: what both GPU backends are held to (`cuda.rs`, `wgpu.rs`). The CPU,
//! with more cases and twins, has its own test (`models.rs`).

use conformance::backends::folder;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Kept, Layers, Request, Want};
use engraft_core::inject::inject;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Mode;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::Cpu;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rotary and grouped heads, learned positions, norms behind and projections.
pub const CASES: [&str; 3] = ["llama_gqa_llama3", "gpt2", "opt_postln_proj"];

/// Tokens and what was kept, prompt by prompt.
pub type Run = Vec<(Vec<u32>, Kept)>;

/// Every logit, short contexts.
pub fn config() -> EngineConfig {
    EngineConfig { max_context: 48, logit_rows: Some(usize::MAX), ..EngineConfig::default() }
}

/// The folder of a golden.
pub fn golden(case: &str) -> PathBuf {
    folder().join("golden").join(case)
}

/// An engine for the model in `dir`.
pub fn open<B: Backend>(backend: &Arc<B>, dir: &Path, config: EngineConfig) -> Engine<B> {
    let files = checkpoint::open(dir, Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(backend, &files, &Registry::default(), 4096, options, &mut |_, _| {}).unwrap();
    Engine::new(backend.clone(), model, config).unwrap()
}

/// Prompts of several lengths, all at once; logits and hidden states are kept where `keep`.
pub fn run<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    config: EngineConfig,
    sampling: SamplingParams,
    keep: bool,
) -> Run {
    let mut engine = open(backend, &golden(case), config);
    let vocab = engine.model().spec.vocab;
    let mut ids = Vec::new();
    for (p, n) in [5usize, 1, 17].into_iter().enumerate() {
        let prompt = (0..n).map(|i| ((p * 31 + i) * 7919 % (vocab - 3) + 3) as u32).collect();
        let want =
            Want { logits: keep, hidden: if keep { Layers::All } else { Layers::None }, logprobs: false };
        let request = Request { prompt, max_new_tokens: 6, sampling, want, ..Request::default() };
        ids.push(engine.put(request).unwrap());
    }
    let sampled = engine.run().unwrap();
    let kept = |id: &u64, e: &mut Engine<B>| e.take_kept(*id).unwrap_or_default();
    ids.iter().map(|id| (sampled[id].clone(), kept(id, &mut engine))).collect()
}

/// The same tokens, and the same bits of what was kept, if anything was.
pub fn same(what: &str, got: &Run, want: &Run, kept: bool) {
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

/// Chunks, pages, recorded steps: the same bits; in reference mode those of the CPU in the same kind of
/// multiply-add, too.
pub fn laws<B: Backend>(gpu: &Arc<B>, cpu: &Arc<Cpu>, case: &str, dtype: Float) {
    laws_over(gpu, cpu, case, (dtype, dtype.into()));
}

/// The same over a cache in another format than activations.
pub fn laws_over<B: Backend>(gpu: &Arc<B>, cpu: &Arc<Cpu>, case: &str, (dtype, kv): (Float, KvFormat)) {
    let greedy = SamplingParams::default();
    let usual = EngineConfig { dtype, kv_dtype: kv, ..config() };
    let dtype = format!("{dtype} over {kv}");
    let want = run(gpu, case, usual.clone(), greedy, true);
    if gpu.numerics().mode == Mode::Reference {
        let what = format!("{case} {dtype}: the device against the CPU");
        same(&what, &want, &run(cpu, case, usual.clone(), greedy, true), true);
    }
    for (name, other) in [
        ("chunks of 3", EngineConfig { max_step_tokens: 3, max_seqs: 1, ..usual.clone() }),
        ("ragged chunks", EngineConfig { max_step_tokens: 7, max_seqs: 3, ..usual.clone() }),
        ("pages of 1", EngineConfig { page_size: 1, page_seed: Some(11), ..usual.clone() }),
        ("one step ahead", EngineConfig { steps_ahead: Some(1), ..usual.clone() }),
        ("no step ahead", EngineConfig { steps_ahead: Some(0), ..usual.clone() }),
        ("pages of 64", EngineConfig { page_size: 64, page_seed: Some(5), ..usual.clone() }),
    ] {
        same(&format!("{case} {dtype}: {name}"), &run(gpu, case, other, greedy, true), &want, true);
    }
    // Nothing is kept: decode steps are recorded and replayed, tokens are sampled on the device.
    let sampled = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        seed: Some(7),
    };
    for sampling in [greedy, sampled] {
        let tokens = run(gpu, case, usual.clone(), sampling, false);
        let plain = EngineConfig { graphs: false, steps_ahead: Some(0), ..usual.clone() };
        same(&format!("{case} {dtype}: replayed"), &tokens, &run(gpu, case, plain, sampling, false), false);
        let waits = EngineConfig { steps_ahead: Some(0), ..usual.clone() };
        let waits = run(gpu, case, waits, sampling, false);
        same(&format!("{case} {dtype}: replayed, no step ahead"), &tokens, &waits, false);
        if gpu.numerics().mode == Mode::Reference {
            let cpu = run(cpu, case, usual.clone(), sampling, false);
            same(&format!("{case} {dtype}: tokens as the CPU samples them"), &tokens, &cpu, false);
        }
    }
}
