//! Caches of codes: what a request gives does not depend on chunks, pages, mates, threads or vectors, nor on
//! whether ops are fused; what is cached are values that such a cache holds; memory is what the plan says.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::prefix::decoders;
use super::support::{cpu, engine, folder};
use conformance::backends::{cuda, cuda_names};
use conformance::budget;
use conformance::named;
use conformance::null::Null;
use conformance::oracle::kv_row;
use conformance::trials::Named;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Layers, Request, Want};
use engraft_core::inject::Sketch;
use engraft_core::mem::{Float, KvCode, KvFormat};
use engraft_core::numerics::{Madd, Mode};
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig, Isa};
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    nothing_that_serving_chooses_changes_a_bit,
    cached_rows_are_rows_of_codes,
    memory_is_what_the_plan_says,
    logits_stay_within_the_budget_of_the_codes,
    a_backend_without_kernels_refuses_by_name,
];
pub const ON_CUDA: &[Named] = &named![cuda_has_the_cpus_bits];

const BOTH: [KvFormat; 2] = [KvFormat::INT8, KvFormat::FP8];
const NEW: usize = 6;

fn sizes(kv_dtype: KvFormat, dtype: Float, [page_size, tokens]: [usize; 2]) -> EngineConfig {
    EngineConfig {
        dtype,
        kv_dtype,
        max_context: 48,
        max_seqs: 3,
        max_step_tokens: tokens,
        page_size,
        page_seed: Some(5),
        logit_rows: Some(usize::MAX),
        ..EngineConfig::default()
    }
}

fn request(len: usize) -> Request {
    let sampling = SamplingParams { temperature: 1.2, seed: Some(9), ..SamplingParams::default() };
    let prompt = (0..len as u32).map(|i| 3 + (i * 7 + i * i) % 50).collect();
    let want = Want { logits: true, hidden: Layers::Last, ..Want::default() };
    Request { prompt, max_new_tokens: NEW, sampling, want, ..Request::default() }
}

/// Tokens, logits and last states of a request.
type Served = (Vec<u32>, Vec<f32>, Vec<Vec<f32>>);

/// What three requests give side by side.
fn served<B: Backend>(engine: &mut Engine<B>) -> Vec<Served> {
    let ids = [19, 7, 12].map(|len| engine.put(request(len)).unwrap());
    let mut tokens = engine.run().unwrap();
    let of = |id| {
        let kept = engine.take_kept(id).unwrap();
        (tokens.remove(&id).unwrap(), kept.logits, kept.hidden)
    };
    ids.map(of).into()
}

fn nothing_that_serving_chooses_changes_a_bit() {
    for (case, dtype) in
        [("llama_gqa_llama3", Float::F32), ("gemma2", Float::Bf16), ("deepseek_v3", Float::F32)]
    {
        for kv in BOTH {
            let want = served(&mut engine(&cpu(), case, sizes(kv, dtype, [16, 64])));
            let plain = served(&mut engine(&cpu(), case, sizes(Float::F32.into(), dtype, [16, 64])));
            assert!(plain[0].1 != want[0].1, "{case}: nothing was rounded to {kv}");
            for by in [[1, 3], [3, 5], [7, 64], [64, 17]] {
                let got = served(&mut engine(&cpu(), case, sizes(kv, dtype, by)));
                let what = || sample::difference(&got, &want);
                assert!(got == want, "{case}, {kv}: pages and tokens of a step {by:?}: {}", what());
            }
            for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512].map(Isa::here) {
                let cpu = Cpu::new(CpuConfig { threads: 1, isa: Some(isa), ..CpuConfig::default() }).unwrap();
                let got = served(&mut engine(&cpu, case, sizes(kv, dtype, [16, 64])));
                let what = || sample::difference(&got, &want);
                assert!(got == want, "{case}, {kv}: one thread of {}: {}", isa.name(), what());
            }
            let composed = Arc::new(Composed::new(cpu()));
            let got = served(&mut engine(&composed, case, sizes(kv, dtype, [4, 9])));
            let what = || sample::difference(&got, &want);
            assert!(got == want, "{case}, {kv}: composed: {}", what());
        }
    }
}

/// In mode `Reference` CUDA has the CPU's tokens, logits and states; in the default one, whose matmuls are on
/// tensor cores, pages and steps change nothing either.
fn cuda_has_the_cpus_bits() {
    let fused = Cpu::new(CpuConfig { threads: 2, madd: Madd::Fused, ..CpuConfig::default() }).unwrap();
    for name in cuda_names() {
        let gpu = cuda(&name, Mode::Reference).unwrap();
        for (case, dtype, kv) in [
            ("llama_gqa_llama3", Float::F32, KvFormat::INT8),
            ("gemma2", Float::Bf16, KvFormat::FP8),
            ("deepseek_v3", Float::F32, KvFormat::INT8),
            ("glm_moe_dsa", Float::F32, KvFormat::FP8),
        ] {
            let want = served(&mut engine(&fused, case, sizes(kv, dtype, [16, 64])));
            let got = served(&mut engine(&gpu, case, sizes(kv, dtype, [4, 9])));
            let what = || sample::difference(&got, &want);
            assert!(got == want, "{case}, {kv} on {name}: {}", what());
        }
        let gpu = cuda(&name, Mode::Invariant).unwrap();
        for kv in BOTH {
            let types = |by| sizes(kv, Float::Bf16, by);
            let want = served(&mut engine(&gpu, "llama_gqa_llama3", types([16, 64])));
            for by in [[1, 3], [7, 17]] {
                let got = served(&mut engine(&gpu, "llama_gqa_llama3", types(by)));
                let what = || sample::difference(&got, &want);
                assert!(got == want, "{kv} on {name}: pages and tokens of a step {by:?}: {}", what());
            }
        }
    }
}

/// What is read of a cache are values of its format: rounded once more they stay.
fn cached_rows_are_rows_of_codes() {
    for kv in BOTH {
        let mut engine = engine(&cpu(), "llama_gqa_llama3", sizes(kv, Float::F32, [4, 9]));
        let id = engine.put(request(19)).unwrap();
        let mut out = Vec::new();
        while out.is_empty() {
            engine.step(&mut out).unwrap();
        }
        let layers = engine.model().spec.blocks.clone();
        for (layer, block) in layers.iter().enumerate() {
            let kept = engine.cached(id, layer).unwrap();
            for (rows, width) in kept.iter().zip([block.heads.k_dim, block.heads.v_dim]) {
                assert!(rows.len() >= 19 * width && rows.iter().any(|v| *v != 0.0));
                let codes =
                    |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<std::collections::BTreeSet<_>>();
                assert!(rows.chunks(width).any(|row| codes(row).len() > 2), "rows of one value");
                assert!(kv_row::rounded(kv, width, rows) == *rows, "{kv}, layer {layer}");
            }
        }
        engine.run().unwrap();
    }
}

/// A head's row is a byte for a column, and four for the scale.
fn memory_is_what_the_plan_says() {
    let files = checkpoint::open(&folder("llama_gqa_llama3"), Access::Map).unwrap();
    let of = |kv: KvFormat| {
        let (options, types) = (LoadOptions::default(), (Float::F32, kv));
        let bytes =
            Sketch::new(cpu().as_ref(), &files, &Registry::default(), options, types).unwrap().kv_bytes;
        let engine = engine(&cpu(), "llama_gqa_llama3", sizes(kv, Float::F32, [16, 9]));
        let (pages, slabs) = (engine.config().pool_pages(), engine.memory().keys_and_values);
        let pad = slabs - (bytes * pages * 16) as u64;
        assert!(pad < 4096, "{kv}: {slabs} bytes of slabs, {bytes} of a token, {pages} pages");
        let heads = engine.model().spec.blocks[0].heads;
        (bytes, heads.kv_heads * engine.model().blocks.len(), heads.k_dim + heads.v_dim)
    };
    let (plain, heads, columns) = of(Float::F32.into());
    assert_eq!(plain, heads * columns * 4);
    assert_eq!(of(KvFormat::INT8).0, heads * (columns + 8));
    assert_eq!(of(KvFormat::FP8).0, of(KvFormat::INT8).0);
}

/// What rounding keys and values costs, against a cache in f32. Models that choose experts or keys are left
/// out: where a choice falls otherwise, what follows is another model's.
fn logits_stay_within_the_budget_of_the_codes() {
    let (mut left_out, mut ran) = (0, 0);
    for case in decoders() {
        let logits = |kv: KvFormat| {
            let mut engine = engine(&cpu(), &case, sizes(kv, Float::F32, [16, 64]));
            let spec = &engine.model().spec;
            if spec.blocks.iter().any(|block| block.moe.is_some() || block.index.is_some()) {
                return None;
            }
            let id = engine.put(Request { max_new_tokens: 1, ..request(24) }).unwrap();
            engine.run().unwrap();
            Some(engine.take_kept(id).unwrap().logits)
        };
        let Some(plain) = logits(Float::F32.into()) else {
            left_out += 1;
            continue;
        };
        ran += 1;
        let scale = plain.iter().fold(1f64, |most, v| most.max(f64::from(v.abs())));
        for (kv, code) in BOTH.into_iter().zip([KvCode::Int8, KvCode::Fp8]) {
            let rounded = logits(kv).unwrap();
            let off = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) / scale;
            let worst = plain.iter().zip(&rounded).map(off).fold(0.0, f64::max);
            assert!(worst > 0.0 && worst <= budget::golden_of_codes(code), "{case}, {kv}: {worst}");
        }
    }
    println!("{ran} models, {left_out} that choose experts or keys left out");
    assert!(ran >= 50, "{ran} models");
}

fn a_backend_without_kernels_refuses_by_name() {
    for kv in BOTH {
        let config = sizes(kv, Float::F32, [16, 64]);
        let caps = Null::new().caps().clone();
        let said = config.possible("null", &caps.dtypes, &caps.kv_formats).unwrap_err().to_string();
        for part in ["kv_dtype", kv.name(), "f32, f16, bf16", "null"] {
            assert!(said.contains(part), "{said}");
        }
        config.possible("cpu", &cpu().caps().dtypes, &cpu().caps().kv_formats).unwrap();
    }
}
