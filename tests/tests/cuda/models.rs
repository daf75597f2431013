//! Whole models on CUDA: the laws, bit for bit; in reference mode the CPU's bits, logits and hidden states;
//! the tokens that the CPU samples; replayed steps against eager ones, with padded rows and on tensor cores;
//! plans without a composed slot; kernels that are compiled once. Faults and what they leave alone are in the
//! backend's own tests.
//!
//! `ENGRAFT_REQUIRE=cuda:soft` runs them on the software driver; without that and without a device they are
//! listed as ignored. Tests of this file are listed in [`TESTS`]: they are a test of this package,
//! and part of the program for machines without Rust.

use crate::whole::{CASES, config, golden, laws, open, run, same};
use conformance::backends::{cuda, cuda_names, cuda_with};
use conformance::device::Device;
use conformance::dice::Dice;
use conformance::golden::complaints;
use conformance::registry::OpSpec;
use conformance::spec::linear;
use conformance::trials::Named;
use conformance::{budget, compare, named};
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{ModelFiles, TokenizerFiles, open_bytes};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Encoded, EncoderInput, Engine, Layers, Request, Want};
use engraft_core::inject::{InjectionPlan, inject};
use engraft_core::mem::{Float, WeightFormat};
use engraft_core::numerics::{Madd, Mode};
use engraft_core::policy::{Rank, Registry};
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use engraft_cuda::{Cuda, CudaConfig, Loads};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// All of them, by name.
pub const TESTS: &[Named] = &named![
    every_slot_of_the_four_families_is_native,
    a_second_engine_start_compiles_nothing,
    ranks_of_wide_heads_give_the_bits_of_one,
    many_rows_take_the_kernels_of_hopper,
    the_default_mode_attends_on_tensor_cores_and_replays_what_it_runs,
    what_a_model_runs_is_ready_when_its_engine_is_made,
    padded_rows_of_a_bucket_change_nothing,
    encoders_have_the_cpus_bits,
    quantized_activations_have_the_cpus_bits_and_norms_store_them,
    cublaslt_takes_matmuls_of_many_rows_where_it_is_given,
    cublaslt_and_the_own_kernels_are_within_the_same_budgets,
    the_kernel_for_many_queries_runs_above_the_threshold_alone,
    models_keep_the_laws_and_equal_the_cpu,
];

/// The devices to test.
fn here() -> Vec<String> {
    let here = cuda_names();
    println!("{} CUDA devices: {}", here.len(), here.join(", "));
    here
}

fn every_slot_of_the_four_families_is_native() {
    for name in &here() {
        for mode in [Mode::Reference, Mode::Invariant, Mode::Fast] {
            let gpu = cuda(name, mode).unwrap();
            for case in ["llama", "gpt2", "opt", "bert"] {
                for dtype in [Float::F32, Float::F16, Float::Bf16] {
                    let config = EngineConfig {
                        dtype,
                        kv_dtype: dtype.into(),
                        max_context: 32,
                        ..EngineConfig::default()
                    };
                    let engine = open(&gpu, &golden(case), config);
                    let plan = InjectionPlan::new(gpu.as_ref(), engine.model(), dtype, dtype).unwrap();
                    let what = format!("{case}, {dtype}, {mode:?}");
                    assert!(
                        plan.rows.len() > 6 * engine.model().blocks.len(),
                        "{what}: {} slots",
                        plan.rows.len()
                    );
                    for row in &plan.rows {
                        let native = row.kernel.is_some() && row.composed.is_none() && row.missing.is_none();
                        assert!(native, "{what}: {row:?}");
                    }
                }
            }
        }
    }
}

fn a_second_engine_start_compiles_nothing() {
    for name in &here() {
        let folder = tempfile::tempdir().unwrap();
        let kernel_cache = Some(folder.path().to_path_buf());
        let mut first: Option<(Loads, Vec<u32>)> = None;
        for start in 1..=3 {
            let config = CudaConfig { kernel_cache: kernel_cache.clone(), ..CudaConfig::default() };
            let gpu = cuda_with(name, config).unwrap();
            let config = EngineConfig { dtype: Float::Bf16, max_context: 32, ..EngineConfig::default() };
            let mut engine =
                open(&gpu, &golden("llama"), EngineConfig { kv_dtype: Float::Bf16.into(), ..config });
            let ahead = gpu.loads();
            assert!(ahead.compiled + ahead.read > 0, "nothing is ready before the first step");
            let prompt = vec![5, 9, 3, 7];
            let id = engine.put(Request { prompt, max_new_tokens: 4, ..Request::default() }).unwrap();
            let (tokens, loads) = (engine.run().unwrap().remove(&id).unwrap(), gpu.loads());
            println!("{name}, start {start}: {ahead:?} when the engine is made, {loads:?} after a text");
            match &first {
                None => {
                    assert!(loads.compiled > 0 && loads.read == 0);
                    first = Some((loads, tokens));
                }
                Some((before, same)) => {
                    assert_eq!(loads, Loads { compiled: 0, read: before.compiled });
                    assert_eq!(&tokens, same, "compiled kernels that were kept compute something else");
                }
            }
        }
    }
}

/// A LLaMA with heads of 64 and random weights of this type.
fn wide_heads(dtype: Float) -> ModelFiles {
    let (hidden, kv, inner, vocab) = (128usize, 64usize, 192usize, 96usize);
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let shapes = [
        ("model.embed_tokens.weight".into(), vec![vocab, hidden]),
        ("lm_head.weight".into(), vec![vocab, hidden]),
        ("model.norm.weight".into(), vec![hidden]),
        (layer("input_layernorm"), vec![hidden]),
        (layer("post_attention_layernorm"), vec![hidden]),
        (layer("self_attn.q_proj"), vec![hidden, hidden]),
        (layer("self_attn.k_proj"), vec![kv, hidden]),
        (layer("self_attn.v_proj"), vec![kv, hidden]),
        (layer("self_attn.o_proj"), vec![hidden, hidden]),
        (layer("mlp.gate_proj"), vec![inner, hidden]),
        (layer("mlp.up_proj"), vec![inner, hidden]),
        (layer("mlp.down_proj"), vec![hidden, inner]),
    ];
    let (kind, write): (Dtype, fn(f32) -> [u8; 2]) = match dtype {
        Float::F16 => (Dtype::F16, |v| f16::from_f32(v).to_le_bytes()),
        _ => (Dtype::BF16, |v| bf16::from_f32(v).to_le_bytes()),
    };
    let mut state = 7u64;
    let mut unit = || {
        // Knuth's constants; the high bits are what is used.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut fill = |shape: &[usize]| -> Vec<u8> {
        let scale = (3.0 / shape[shape.len() - 1] as f32).sqrt();
        let value = |v: f32| if shape.len() == 1 { 1.0 + v / 4.0 } else { v * scale };
        (0..shape.iter().product()).flat_map(|_| write(value(unit()))).collect()
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> =
        shapes.into_iter().map(|(n, shape)| (n, shape.clone(), fill(&shape))).collect();
    let views = tensors.iter().map(|(n, s, b)| (n, TensorView::new(kind, s.clone(), b).unwrap()));
    let file = serialize(views, None).unwrap();
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": hidden,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": inner,
        "vocab_size": vocab, "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 512,
    });
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    open_bytes(&serde_json::to_vec(&config).unwrap(), None, Cow::Owned(file), tokenizer).unwrap()
}

/// An engine for it.
fn wide<B: Backend>(
    backend: &Arc<B>,
    dtype: Float,
    quantize: Option<WeightFormat>,
    config: EngineConfig,
) -> Engine<B> {
    wide_of(backend, dtype, quantize, EngineConfig { max_context: 96, ..config })
}

/// The same with the context of `config`.
fn wide_of<B: Backend>(
    backend: &Arc<B>,
    dtype: Float,
    quantize: Option<WeightFormat>,
    config: EngineConfig,
) -> Engine<B> {
    let (files, options) = (wide_heads(dtype), LoadOptions { quantize, ..LoadOptions::default() });
    let model = inject(backend, &files, &Registry::default(), 512, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { dtype, kv_dtype: dtype.into(), ..config };
    Engine::new(backend.clone(), model, config).unwrap()
}

/// An engine for it, and the logits of three prompts of 50 tokens, all in one step.
fn logits<B: Backend>(
    backend: &Arc<B>,
    dtype: Float,
    quantize: Option<WeightFormat>,
) -> (Engine<B>, Vec<f32>) {
    let config = EngineConfig { logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    let mut engine = wide(backend, dtype, quantize, config);
    let want = Want { logits: true, ..Want::default() };
    let ask = |p: u32| Request {
        prompt: (0..50).map(|i| 3 + (p * 31 + i * 17) % 90).collect(),
        max_new_tokens: 1,
        want,
        ..Request::default()
    };
    let ids: Vec<u64> = (0..3).map(|p| engine.put(ask(p)).unwrap()).collect();
    engine.run().unwrap();
    let all = ids.iter().flat_map(|id| engine.take_kept(*id).unwrap().logits).collect();
    (engine, all)
}

/// Where leaves begin at whole units of columns, tensor cores add them by the tree that ranks share: the bits
/// of one rank, at every degree, which the mode of the strict kernels has anyway.
fn ranks_of_wide_heads_give_the_bits_of_one() {
    let here = here();
    for (name, dtype) in here.iter().flat_map(|name| [(name, Float::Bf16), (name, Float::F16)]) {
        let gpu = cuda(name, Mode::Invariant).unwrap();
        let given = |tp: usize, quantize: Option<WeightFormat>| {
            let sizes =
                EngineConfig { logit_rows: Some(usize::MAX), max_context: 96, ..EngineConfig::default() };
            let sizes = EngineConfig { dtype, kv_dtype: dtype.into(), ..sizes };
            let gpu = gpu.clone();
            let load = move |Rank { index: rank, world }: Rank| {
                let (gpu, options) =
                    (gpu.of_rank(rank, world)?, LoadOptions { quantize, rank, world, ..Default::default() });
                let options = LoadOptions { dtype: Some(dtype), ..options };
                let model =
                    inject(&gpu, &wide_heads(dtype), &Registry::default(), 96, options, &mut |_, _| {})?;
                Ok((gpu, model))
            };
            let mut engine = engraft_ranks::spawn(tp, sizes, Arc::new(load)).unwrap();
            let want = Want { logits: true, ..Want::default() };
            let ask = |length: u32| Request {
                prompt: (0..length).map(|i| 3 + (length * 31 + i * 17) % 90).collect(),
                max_new_tokens: 3,
                want,
                ..Request::default()
            };
            let ids = [50, 7, 1].map(|length| engine.put(ask(length)).unwrap());
            let tokens = engine.run().unwrap();
            let rows = ids.map(|id| engine.take_kept(id).unwrap().logits);
            (tokens, rows.map(|rows| rows.iter().map(|v| v.to_bits()).collect::<Vec<_>>()))
        };
        for format in [None, Some("int8:64".parse().unwrap())] {
            let one = given(1, format);
            for tp in [2, 4, 8] {
                assert!(given(tp, format) == one, "{name}, {dtype}, {format:?}: {tp} ranks");
            }
        }
    }
}

/// Runs it, holds its logits to the CPU's and what ran to the plan; what ran, by name.
fn launches(gpu: &Arc<Cuda>, cpu: &Arc<Cpu>, dtype: Float) -> BTreeMap<String, u64> {
    let (engine, got) = logits(gpu, dtype, None);
    let want = logits(cpu, dtype, None).1;
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    let off = got.iter().zip(&want).fold(0.0f32, |m, (g, w)| m.max((g - w).abs())) / most;
    assert!(f64::from(off) <= budget::golden(dtype), "{dtype}: off by {off:e}");
    println!("{dtype}: off by {off:e}");
    let plan = InjectionPlan::new(gpu.as_ref(), engine.model(), dtype, dtype).unwrap();
    let ran = gpu.launches();
    let complaints = complaints(&plan, &[], &ran);
    assert!(complaints.is_empty(), "{complaints:?}");
    ran
}

fn many_rows_take_the_kernels_of_hopper() {
    let here = here();
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    let cases =
        [Mode::Invariant, Mode::Fast].map(|mode| [Float::Bf16, Float::F16].map(|dtype| (mode, dtype)));
    for (name, (mode, dtype)) in
        here.iter().flat_map(|name| cases.as_flattened().iter().map(move |c| (name, *c)))
    {
        let gpu = cuda(name, mode).unwrap();
        if gpu.device().capability != (9, 0) {
            println!("{name} is no Hopper: its kernels are those of the default mode");
            continue;
        }
        let ran = launches(&gpu, &cpu, dtype);
        let matmuls: u64 = ran.iter().filter(|(entry, _)| entry.starts_with("gemmw_")).map(|(_, n)| n).sum();
        println!("{name}, {mode:?}, {dtype}: {matmuls} matmuls by Hopper's kernels");
        // Queries to values, outputs, gate and up, down; the head.
        let attention = ran.get(&format!("flashw_whole_{dtype}_64")).copied().unwrap_or(0);
        assert!(matmuls >= 4 && attention == u64::from(mode == Mode::Fast), "{ran:?}");
    }
}

/// The tokens of prompts of these lengths, all at once, and the sizes of the decode steps that were captured.
fn sampled<B: Backend>(
    mut engine: Engine<B>,
    lengths: &[usize],
    sampling: SamplingParams,
) -> (Vec<Vec<u32>>, Vec<usize>) {
    let vocab = engine.model().spec.vocab;
    let mut ids = Vec::new();
    for (p, n) in lengths.iter().enumerate() {
        let prompt = (0..*n).map(|i| ((p * 31 + i) * 7919 % (vocab - 3) + 3) as u32).collect();
        ids.push(engine.put(Request { prompt, max_new_tokens: 5, sampling, ..Request::default() }).unwrap());
    }
    let tokens = engine.run().unwrap();
    (ids.iter().map(|id| tokens[id].clone()).collect(), engine.captured_graphs())
}

/// Holds replayed decode steps, which run in a bucket of this size, to eager ones. What is sampled at this
/// temperature hangs on all logits, what is sampled next on all keys and values.
fn replays<B: Backend>(
    what: &str,
    lengths: &[usize],
    bucket: usize,
    engine: impl Fn(EngineConfig) -> Engine<B>,
) {
    let hot = SamplingParams { temperature: 1.5, seed: Some(7), ..SamplingParams::default() };
    for sampling in [SamplingParams::default(), hot] {
        let run = |graphs: bool| {
            let config = EngineConfig { graphs, max_seqs: 12, ..EngineConfig::default() };
            sampled(engine(config), lengths, sampling)
        };
        let ((replayed, captured), (eager, none)) = (run(true), run(false));
        assert!(captured == [bucket] && none.is_empty(), "{what}: {captured:?} and {none:?} captured");
        assert_eq!(replayed, eager, "{what}: replayed against eager");
    }
}

fn the_default_mode_attends_on_tensor_cores_and_replays_what_it_runs() {
    let here = here();
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here {
        for dtype in [Float::Bf16, Float::F16] {
            let gpu = cuda(name, Mode::Invariant).unwrap();
            let ran = launches(&gpu, &cpu, dtype);
            let times = |entry: String| ran.get(&entry).copied().unwrap_or(0);
            assert_eq!(times(format!("flash_whole_{dtype}_64")), 1, "{ran:?}");
            // One sequence grows beyond a chunk of 64 keys.
            replays(&format!("{name}, {dtype}"), &[50, 1, 62], 3, |c| wide(&gpu, dtype, None, c));
            let split = gpu.launches().get(&format!("flash_split_{dtype}_64")).copied().unwrap_or(0);
            // Four runs, each with at least four decode steps.
            assert!(split >= 16, "{split} launches");
        }
    }
}

/// A first use inside a capture would put a compilation of seconds into a decode step.
fn what_a_model_runs_is_ready_when_its_engine_is_made() {
    for name in &here() {
        for mode in [Mode::Reference, Mode::Invariant, Mode::Fast] {
            let gpu = cuda(name, mode).unwrap();
            let dtype = Float::Bf16;
            // Several spans: what `split` leaves is merged.
            let config = EngineConfig { max_context: 300, ..EngineConfig::default() };
            let mut engine = wide_of(&gpu, dtype, None, config);
            let ahead = gpu.loads();
            let prompt = (0..270).map(|i| 3 + i * 17 % 90).collect();
            engine.put(Request { prompt, max_new_tokens: 3, ..Request::default() }).unwrap();
            engine.run().unwrap();
            let ran = gpu.launches();
            if mode != Mode::Reference {
                assert!(
                    ran.contains_key("flash_merge_bf16") && !engine.captured_graphs().is_empty(),
                    "{ran:?}"
                );
            }
            assert_eq!(gpu.loads(), ahead, "{name}, {mode:?}: compiled when they were first launched");
        }
    }
}

/// Nine sequences decode in a bucket of twelve: the rows between write nothing.
fn padded_rows_of_a_bucket_change_nothing() {
    let lengths = [5, 1, 17, 2, 9, 16, 3, 15, 7];
    for name in &here() {
        let strict = cuda(name, Mode::Reference).unwrap();
        replays(&format!("{name}, llama"), &lengths, 12, |config| {
            open(&strict, &golden("llama"), EngineConfig { max_context: 32, ..config })
        });
        let usual = cuda(name, Mode::Invariant).unwrap();
        let dtype = Float::Bf16;
        replays(&format!("{name}, {dtype}"), &lengths, 12, |config| wide(&usual, dtype, None, config));
    }
}

fn encoders_have_the_cpus_bits() {
    let here = here();
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here {
        let gpu = cuda(name, Mode::Reference).unwrap();
        for dtype in [Float::F32, Float::Bf16] {
            let got = encoded(&gpu, dtype);
            assert!(got.iter().all(|bits| !bits.is_empty()) && got.len() == 3);
            assert!(got == encoded(&cpu, dtype), "{name}, {dtype}: BERT's bits are not the CPU's");
        }
    }
}

/// Every bit of what BERT says of three texts: hidden states of all layers, logits, pooled rows.
fn encoded<B: Backend>(backend: &Arc<B>, dtype: Float) -> Vec<Vec<u32>> {
    let config = EngineConfig { dtype, kv_dtype: dtype.into(), max_context: 32, ..EngineConfig::default() };
    let mut engine = open(backend, &golden("bert"), config);
    let vocab = engine.model().spec.vocab;
    let text = |(p, n): (usize, usize)| EncoderInput {
        ids: (0..n).map(|i| ((p * 31 + i) * 7919 % (vocab - 3) + 3) as u32).collect(),
        token_type_ids: (0..n).map(|i| u32::from(2 * i > n)).collect(),
        ..EncoderInput::default()
    };
    let texts: Vec<EncoderInput> = [5, 1, 17].into_iter().enumerate().map(text).collect();
    let all = engine.encode(&texts, Layers::All).unwrap();
    let values = |e: Encoded| [e.hidden.concat(), e.logits, e.pooled].concat();
    all.into_iter().map(|e| values(e).iter().map(|v| v.to_bits()).collect()).collect()
}

fn quantized_activations_have_the_cpus_bits_and_norms_store_them() {
    let here = here();
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    let w8a8 = Some(WeightFormat::W8A8);
    for name in &here {
        let gpu = cuda(name, Mode::Reference).unwrap();
        let (engine, got) = logits(&gpu, Float::Bf16, w8a8);
        let want = logits(&cpu, Float::Bf16, w8a8).1;
        assert!(got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()), "{name}");
        let ran = gpu.launches();
        let plan = InjectionPlan::new(gpu.as_ref(), engine.model(), Float::Bf16, Float::Bf16).unwrap();
        let complaints = complaints(&plan, &[], &ran);
        assert!(complaints.is_empty(), "{complaints:?}");
        let times = |entry: &str| ran.get(entry).copied().unwrap_or(0);
        // Queries to values, outputs, gate and up, down; the head. Before outputs and down there is no norm,
        // before the head rows are gathered.
        let (matmuls, quantized) = (times("int8_dense"), times("int8_rows"));
        println!("{name}: {matmuls} matmuls, rows quantized apart for {quantized}");
        assert_eq!((matmuls, quantized), (5, 3), "{ran:?}");
    }
}

/// cuBLASLt for this device: the double over the software driver, or NVIDIA's where the system has it.
fn blaslt(name: &str) -> PathBuf {
    if name.starts_with("cuda:soft") {
        // Cargo builds it next to this program.
        return soft_cublaslt::file().unwrap();
    }
    let opens = |file: &PathBuf| {
        let config = CudaConfig { mode: Mode::Fast, cublaslt: Some(file.clone()), ..CudaConfig::default() };
        cuda_with(name, config).is_ok()
    };
    let [newer, older] = ["libcublasLt.so.13", "libcublasLt.so.12"].map(PathBuf::from);
    if opens(&newer) { newer } else { older }
}

fn cublaslt_takes_matmuls_of_many_rows_where_it_is_given() {
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here() {
        let file = Some(blaslt(name));
        for mode in [Mode::Reference, Mode::Invariant] {
            let config = CudaConfig { mode, cublaslt: file.clone(), ..CudaConfig::default() };
            let text = cuda_with(name, config).unwrap_err().to_string();
            assert!(text.contains("cublaslt") && text.contains("mode Fast"), "{text}");
        }
        for dtype in [Float::Bf16, Float::F16] {
            let config = CudaConfig { mode: Mode::Fast, cublaslt: file.clone(), ..CudaConfig::default() };
            let gpu = match cuda_with(name, config) {
                Err(e) if !name.starts_with("cuda:soft") => {
                    println!("{name}: cuBLASLt is not checked: {e}");
                    return;
                }
                other => other.unwrap(),
            };
            let ran = launches(&gpu, &cpu, dtype);
            let matmuls = ran.get("cublasLtMatmul").copied().unwrap_or(0);
            println!("{name}, {dtype}: {matmuls} matmuls by cuBLASLt");
            // Queries to values, outputs, down, the head; gate and up have an activation behind them.
            assert!(matmuls >= 4, "{ran:?}");
        }
    }
}

/// Comparisons of a spec on a device, run at once and recorded (then the library is not asked).
fn passes<S: OpSpec<Case = linear::Case>>(gpu: &Arc<Cuda>, spec: S, case: &linear::Case, what: &str) {
    for record in [false, true] {
        let got = spec.run(&mut Device::new(gpu, record).unwrap(), case).unwrap();
        for (got, want) in got.iter().zip(spec.oracle(case, Madd::Fused)) {
            let worst = compare::against(got, &want).unwrap();
            assert!(worst.passes(), "{what}, recorded: {record}: {worst:?}");
        }
    }
}

fn cublaslt_and_the_own_kernels_are_within_the_same_budgets() {
    for name in &here() {
        for file in [None, Some(blaslt(name))] {
            let (mode, asked) = (Mode::Fast, file.is_some());
            let gpu = match cuda_with(name, CudaConfig { mode, cublaslt: file, ..CudaConfig::default() }) {
                Err(e) if asked && !name.starts_with("cuda:soft") => {
                    println!("{name}: cuBLASLt is not checked: {e}");
                    return;
                }
                other => other.unwrap(),
            };
            for dtype in [Float::Bf16, Float::F16] {
                for seed in 0..5 {
                    let mut case = linear::many(dtype, &mut Dice::new(seed));
                    passes(&gpu, linear::Linear, &case, &format!("{name}, asked: {asked}, linear"));
                    case.out = dtype;
                    passes(&gpu, linear::LinearAdd, &case, &format!("{name}, asked: {asked}, linear_add"));
                }
            }
            let matmuls = gpu.launches().get("cublasLtMatmul").copied().unwrap_or(0);
            println!("{name}: {matmuls} of 20 matmuls by cuBLASLt");
            // Where an output does not begin at a multiple of 16 bytes it is not asked.
            assert_eq!(matmuls > 5, asked, "{matmuls}");
        }
    }
}

/// Launches of attention by the kernel for many queries and by the one for few, of so many prompts of so many
/// tokens in one step.
fn attention_of(gpu: &Arc<Cuda>, seqs: usize, queries: usize) -> (u64, u64) {
    let config = EngineConfig { max_seqs: 16, ..EngineConfig::default() };
    let mut engine = wide(gpu, Float::Bf16, None, config);
    let times = |entry: &str| gpu.launches().get(entry).copied().unwrap_or(0);
    let now = || (times("flash_whole_bf16_64"), times("flash_split_bf16_64"));
    let before = now();
    for p in 0..seqs {
        let prompt = (0..queries).map(|i| (3 + (p * 31 + i * 17) % 90) as u32).collect();
        engine.put(Request { prompt, max_new_tokens: 1, ..Request::default() }).unwrap();
    }
    assert_eq!(engine.run().unwrap().len(), seqs);
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}

/// No bit tells which kernel takes a sequence: only what is launched does.
fn the_kernel_for_many_queries_runs_above_the_threshold_alone() {
    for name in &here() {
        let gpu = cuda(name, Mode::Invariant).unwrap();
        // Up to four queries of up to eight sequences are few; of more sequences one.
        for (seqs, queries, whole) in
            [(1, 3, 0), (1, 4, 0), (1, 5, 1), (8, 4, 0), (8, 5, 1), (9, 1, 0), (9, 2, 1), (9, 4, 1)]
        {
            let got = attention_of(&gpu, seqs, queries);
            assert_eq!(got, (whole, 1), "{name}: {seqs} sequences of {queries} queries");
        }
    }
}

fn models_keep_the_laws_and_equal_the_cpu() {
    let here = here();
    let cpu = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, isa: None }).unwrap();
    for name in &here {
        let strict = cuda(name, Mode::Reference).unwrap();
        for case in CASES {
            laws(&strict, &cpu, case, Float::F32);
        }
        laws(&strict, &cpu, CASES[0], Float::Bf16);
        let (dtype, greedy) = (Float::F16, SamplingParams::default());
        let usual = EngineConfig { dtype, kv_dtype: dtype.into(), ..config() };
        let [got, want] = [
            run(&strict, CASES[1], usual.clone(), greedy, true),
            run(&cpu, CASES[1], usual.clone(), greedy, true),
        ];
        same("f16: the device against the CPU", &got, &want, true);
        let invariant = cuda(name, Mode::Invariant).unwrap();
        laws(&invariant, &cpu, CASES[0], Float::F32);
        laws(&invariant, &cpu, CASES[0], Float::Bf16);
        laws(&invariant, &cpu, CASES[1], Float::F16);
    }
}
