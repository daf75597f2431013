//! Laws of whole models, bit for bit: what a sequence computes depends on nothing but itself.
//!
//! Every golden of a decoder family runs fused and composed, each as alone, in a ragged batch, in chunks of
//! 1, 3 and 7 tokens, with pages of 1, 16 and 64 positions in shuffled order, on one and two threads, on
//! every instruction set, with recorded steps and without. Goldens themselves (values against the reference
//! implementation) are checked first.

use conformance::golden::{Expectations, Outcome, Types, find, judge};
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, Kept, Layers, Request, Want};
use engraft_core::inject::{InjectionPlan, inject, kernels};
use engraft_core::mem::Float;
use engraft_core::numerics::Madd;
use engraft_core::policy::{Registry, RopeScaling};
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig, Isa};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const DECODERS: [&str; 86] = [
    "llama",
    "llama_gqa_llama3",
    "llama_head_dim",
    "llama_linear",
    "llama_sharded",
    "llama_yarn",
    "internlm_like",
    "gpt2",
    "opt",
    "opt_postln_proj",
    "gpt_neo",
    "gptj",
    "gpt_neox",
    "gpt_neox_sequential",
    "codegen",
    "gpt_bigcode",
    "bloom",
    "bloom_sharded",
    "mpt",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "falcon_7b",
    "falcon_alibi",
    "falcon_new",
    "phi",
    "phi3",
    "phi3_longrope",
    "gemma",
    "gemma2",
    "gemma3",
    "stablelm",
    "starcoder2",
    "olmo2",
    "exaone4",
    "smollm3",
    "glm",
    "glm4",
    "ernie4_5",
    "seed_oss",
    "olmo3",
    "cohere",
    "cohere2",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "llama_gptq",
    "llama_awq",
    "dots1",
    "glm4_moe",
    "minimax_m2",
    "ernie4_5_moe",
    "exaone_moe",
    "hy_v3",
    "hunyuan_v1_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "arcee",
    "nemotron",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v3_yarn",
    "deepseek_v3_fp8",
    "glm4_moe_lite",
    "olmo",
    "ministral3",
    "mistral4",
    "afmoe",
    "apertus",
    "olmoe",
    "cohere2_moe",
    "phimoe",
    "laguna",
    "llama4_text",
    "gemma3n",
    "gemma3n_sparse",
    "gemma4",
    "gemma4_moe",
    "mimo_v2_flash",
    "deepseek_v32",
    "glm_moe_dsa",
    "longcat_flash",
];

const ENCODERS: [&str; 16] = [
    "bert",
    "bert_classifier",
    "bert_model",
    "bert_old_names",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "eurobert",
    "nomic_bert",
    "gte",
    "modernbert",
    "modernbert_embed",
    "embeddinggemma",
    "deberta_v3",
    "deberta_v2_conv",
];

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(case)
}

fn cpu(threads: usize, isa: Isa, madd: Madd) -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads, madd, isa: Some(isa) }).unwrap()
}

fn usual() -> Arc<Cpu> {
    cpu(2, Isa::detect(), Madd::Fused)
}

fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let files = checkpoint::open(&golden(case), Access::Map).unwrap();
    let options = LoadOptions::default();
    let model = inject(backend, &files, &Registry::default(), 4096, options, &mut |_, _| {}).unwrap();
    Engine::new(backend.clone(), model, config).unwrap()
}

/// Prompts of different lengths, the same for every run.
fn prompts(vocab: usize) -> Vec<Vec<u32>> {
    let token = |i: usize| (i * 7919 % (vocab - 3) + 3) as u32;
    [5, 1, 17, 9].iter().enumerate().map(|(p, n)| (0..*n).map(|i| token(p * 31 + i)).collect()).collect()
}

fn request(prompt: &[u32], sampling: SamplingParams) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_new_tokens: 8,
        sampling,
        want: Want { logits: true, hidden: Layers::All, logprobs: false },
        ..Request::default()
    }
}

fn config() -> EngineConfig {
    EngineConfig { max_context: 48, logit_rows: Some(usize::MAX), ..EngineConfig::default() }
}

type Result = (Vec<u32>, Kept);

/// Runs all prompts at once.
fn together<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Vec<Result> {
    let mut engine = engine(backend, case, config);
    let vocab = engine.model().spec.vocab;
    let requests = prompts(vocab).into_iter().map(|p| request(&p, SamplingParams::default()));
    let ids: Vec<u64> = requests.map(|r| engine.put(r).unwrap()).collect();
    let tokens = engine.run().unwrap();
    let (free, total) = engine.free_pages();
    assert_eq!(free, total, "{case}: pages leaked");
    ids.iter().map(|id| (tokens[id].clone(), engine.take_kept(*id).unwrap())).collect()
}

/// Runs every prompt by itself.
fn alone<B: Backend>(backend: &Arc<B>, case: &str) -> Vec<Result> {
    let mut engine = engine(backend, case, config());
    let vocab = engine.model().spec.vocab;
    let mut all = Vec::new();
    for prompt in prompts(vocab) {
        let id = engine.put(request(&prompt, SamplingParams::default())).unwrap();
        let tokens = engine.run().unwrap().remove(&id).unwrap();
        all.push((tokens, engine.take_kept(id).unwrap()));
    }
    all
}

fn same(case: &str, what: &str, got: &[Result], want: &[Result]) {
    assert_eq!(got.len(), want.len(), "{case}, {what}: results");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.0, w.0, "{case}, {what}: tokens of prompt {i}");
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(g.1.logits.len(), w.1.logits.len(), "{case}, {what}: rows of logits");
        assert!(bits(&g.1.logits) == bits(&w.1.logits), "{case}, {what}: logits of prompt {i} differ");
        assert!(!w.1.hidden.is_empty() && !w.1.logits.is_empty(), "{case}: nothing was kept to compare");
        assert_eq!(g.1.hidden.len(), w.1.hidden.len(), "{case}, {what}: hidden states");
        for (layer, (a, b)) in g.1.hidden.iter().zip(&w.1.hidden).enumerate() {
            assert!(bits(a) == bits(b), "{case}, {what}: hidden state {layer} of prompt {i} differs");
        }
    }
}

fn laws<B: Backend>(backend: &Arc<B>, case: &str) {
    let want = alone(backend, case);
    same(case, "ragged batch", &together(backend, case, config()), &want);
    for chunk in [1, 3, 7] {
        let chunked = EngineConfig { max_step_tokens: chunk, max_seqs: 1, ..config() };
        same(case, &format!("chunks of {chunk}"), &together(backend, case, chunked), &want);
    }
    let chunked = EngineConfig { max_step_tokens: 7, max_seqs: 3, ..config() };
    same(case, "ragged chunks", &together(backend, case, chunked), &want);
    let ahead = EngineConfig { steps_ahead: Some(1), ..config() };
    same(case, "one step ahead", &together(backend, case, ahead), &want);
    for page_size in [1, 16, 64] {
        let paged = EngineConfig { page_size, page_seed: Some(11), ..config() };
        same(case, &format!("shuffled pages of {page_size}"), &together(backend, case, paged), &want);
    }
}

#[test]
fn fused_models_keep_the_laws() {
    for case in DECODERS {
        laws(&usual(), case);
    }
}

#[test]
fn composed_models_keep_the_laws_and_equal_fused_ones() {
    let composed = Arc::new(Composed::new(usual()));
    for case in DECODERS {
        laws(&composed, case);
        same(case, "composed against fused", &alone(&composed, case), &alone(&usual(), case));
    }
}

#[test]
fn threads_and_instruction_sets_give_the_same_bits_fused_and_separate() {
    for madd in [Madd::Fused, Madd::Separate] {
        for case in [
            "llama_gqa_llama3",
            "gpt2",
            "opt",
            "falcon_alibi",
            "gemma2",
            "qwen2_moe",
            "gpt_oss",
            "deepseek_v3",
            "deepseek_v32",
        ] {
            let want = alone(&cpu(1, Isa::Portable, madd), case);
            same(case, "AVX2", &alone(&cpu(2, Isa::Avx2, madd), case), &want);
            same(case, "two threads", &alone(&cpu(2, Isa::Portable, madd), case), &want);
            same(case, "best instruction set", &alone(&cpu(2, Isa::detect(), madd), case), &want);
        }
    }
    let by_madd = [Madd::Fused, Madd::Separate].map(|m| alone(&cpu(1, Isa::detect(), m), "llama"));
    assert!(by_madd[0][0].1.logits != by_madd[1][0].1.logits, "fused and separate differ");
}

/// Tokens sampled by recorded steps and by eager ones, greedy and sampled, alone and with changing batch
/// mates.
#[test]
fn recorded_steps_sample_what_eager_ones_sample() {
    let sampled = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        repetition_penalty: 1.2,
        seed: Some(7),
        ..SamplingParams::default()
    };
    for sampling in [SamplingParams::default(), sampled] {
        let run = |graphs: bool, max_seqs: usize, ahead: usize| {
            let backend = usual();
            let steps_ahead = Some(ahead);
            let config = EngineConfig { graphs, max_seqs, steps_ahead, ..config() };
            let mut engine = engine(&backend, "llama", config);
            let vocab = engine.model().spec.vocab;
            let ids: Vec<u64> = prompts(vocab)
                .into_iter()
                .enumerate()
                .map(|(i, prompt)| {
                    // Ends at different steps, so that bucket sizes change meanwhile.
                    let want = Want::default();
                    let max_new_tokens = 4 + 3 * i;
                    engine
                        .put(Request { prompt, max_new_tokens, sampling, want, ..Request::default() })
                        .unwrap()
                })
                .collect();
            let tokens = engine.run().unwrap();
            let captured = engine.captured_graphs();
            assert_eq!(captured.is_empty(), !graphs, "{captured:?}");
            ids.iter().map(|id| tokens[id].clone()).collect::<Vec<_>>()
        };
        let want = run(false, 1, 0);
        for (graphs, max_seqs) in [(true, 1), (true, 2), (true, 4), (false, 4)] {
            for ahead in [0, 1] {
                let got = run(graphs, max_seqs, ahead);
                assert_eq!(got, want, "graphs {graphs}, {max_seqs} at once, {ahead} ahead");
            }
        }
    }
}

#[test]
fn encoders_do_not_see_their_batch_mates() {
    let (fused, composed) = (usual(), Arc::new(Composed::new(usual())));
    for case in ENCODERS {
        let texts = |vocab| {
            let text = |ids| EncoderInput { ids, token_type_ids: Vec::new(), ..EncoderInput::default() };
            prompts(vocab).into_iter().map(text).collect::<Vec<_>>()
        };
        let mut one = engine(&fused, case, EngineConfig { max_context: 32, ..config() });
        let vocab = one.model().spec.vocab;
        let batch = one.encode(&texts(vocab), Layers::All).unwrap();
        for (text, want) in texts(vocab).iter().zip(&batch) {
            assert!(
                one.encode(std::slice::from_ref(text), Layers::All).unwrap()[0] == *want,
                "{case}: alone"
            );
        }
        let mut two = engine(&composed, case, EngineConfig { max_context: 32, ..config() });
        assert!(two.encode(&texts(vocab), Layers::All).unwrap() == batch, "{case}: composed against fused");
    }
}

/// The plan is the step: the ops that it lists, layer by layer, are those that run, and no others.
#[test]
fn plans_list_what_runs() {
    let cpu = usual();
    for case in DECODERS.into_iter().chain(ENCODERS) {
        let mut engine = engine(&cpu, case, EngineConfig { max_context: 32, ..config() });
        let plan = InjectionPlan::new(cpu.as_ref(), engine.model(), Float::F32, Float::F32).unwrap();
        let planned: BTreeSet<_> = plan.rows.iter().map(|row| (row.layer, row.op)).collect();
        engine.set_profiling(true);
        let ids: Vec<u32> = (3..8).collect();
        if ENCODERS.contains(&case) {
            engine
                .encode(
                    &[EncoderInput { ids, token_type_ids: Vec::new(), ..EncoderInput::default() }],
                    Layers::All,
                )
                .unwrap();
        } else {
            engine.put(Request { prompt: ids, max_new_tokens: 3, ..Request::default() }).unwrap();
            engine.run().unwrap();
        }
        let profile = engine.take_profile().unwrap();
        let ran: BTreeSet<_> = profile.spans.iter().map(|span| (span.layer, span.op.name())).collect();
        assert_eq!(planned, ran, "{case}");
    }
}

/// What is made ready before the first step: the parts of ops that are composed are among it.
#[test]
fn parts_of_composed_ops_are_made_ready() {
    let cpu = usual();
    let composed = Composed::new(cpu.clone());
    let engine = engine(&cpu, "qwen3", config());
    let of = |all: Vec<<Cpu as Backend>::Kernel>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    let fused = of(kernels(cpu.as_ref(), engine.model(), Float::F32, Float::F32).unwrap());
    let parts = of(kernels(&composed, engine.model(), Float::F32, Float::F32).unwrap());
    let named = |all: &[String], part: &str| all.iter().any(|kernel| kernel.starts_with(part));
    // The CPU itself composes this one.
    for part in ["head_norm_", "rope_", "kv_append_"] {
        assert!(named(&fused, part) && named(&parts, part), "{part}: {fused:?} {parts:?}");
    }
    for (whole, part) in [("add_norm_", "add_"), ("gated_linear_", "gate_")] {
        assert!(named(&fused, whole) && !named(&parts, whole), "{whole}: {fused:?} {parts:?}");
        assert!(named(&parts, part), "{part} is not among {parts:?}");
    }
}

/// ALBERT's blocks of a group have the same weights: they are read and kept once.
#[test]
fn blocks_of_a_group_are_one_in_memory() {
    let cpu = usual();
    let engine = engine(&cpu, "albert", EngineConfig { max_context: 32, ..config() });
    let model = engine.model();
    let distinct = |i: &usize| (0..*i).all(|j| !Arc::ptr_eq(&model.blocks[j], &model.blocks[*i]));
    let layers = model.blocks.len();
    assert!(layers > 1 && (0..layers).filter(distinct).count() == 1, "{layers} layers");
    let files = checkpoint::open(&golden("albert"), Access::Map).unwrap();
    let stored: usize = files.source.tensors().iter().map(|t| 4 * t.elements()).sum();
    let plan = InjectionPlan::new(cpu.as_ref(), model, Float::F32, Float::F32).unwrap();
    assert!(plan.bytes() <= stored + stored / 4, "{} bytes of a file of {stored}", plan.bytes());
}

#[test]
fn goldens_pass_fused_and_composed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let expect = Expectations::read(&here.join("expectations/cpu.json")).unwrap();
    let root = here.join("golden");
    let (fused, composed) = (usual(), Arc::new(Composed::new(usual())));
    let mut passed = 0;
    for dir in find(&root).unwrap() {
        let types = Types::from(Float::F32);
        for report in [judge(&fused, &dir, types, &expect), judge(&composed, &dir, types, &expect)] {
            assert!(report.outcome != Outcome::Failed, "{}: {}", report.case, report.reason);
            passed += usize::from(report.outcome == Outcome::Passed);
        }
    }
    assert!(passed >= 2 * (DECODERS.len() + ENCODERS.len() + 3), "{passed} passed");
}

/// LongRoPE's second list of divisors begins with the first prompt that is longer than the original context:
/// a prompt of exactly as many tokens still has the first list's numbers.
#[test]
fn the_original_context_belongs_to_the_short_divisors() {
    let cpu = Cpu::new(CpuConfig { threads: 1, madd: Madd::Fused, isa: None }).unwrap();
    let mut engine = engine(&cpu, "phi3_longrope", config());
    let RopeScaling::Long { original, .. } = engine.model().spec.ropes[0].scaling else { panic!("LongRoPE") };
    let vocab = engine.model().spec.vocab;
    let mut logits = |len: usize| {
        let prompt: Vec<u32> = (0..len as u32).map(|i| i * 37 % 250 + 3).collect();
        let id =
            engine.put(Request { max_new_tokens: 1, ..request(&prompt, SamplingParams::default()) }).unwrap();
        engine.run().unwrap();
        let mut all = engine.take_kept(id).unwrap().logits;
        all.truncate((original - 1) * vocab);
        assert_eq!(all.len(), (original - 1) * vocab);
        all.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
    };
    let short = logits(original - 1);
    let got = logits(original);
    assert!(got == short, "{original} tokens: {}", sample::difference(&got, &short));
    assert!(logits(original + 1) != short, "{} tokens", original + 1);
}
