//! Whole models on CUDA: the laws, bit for bit; in reference mode the CPU's bits, logits and hidden states; the tokens that
//! the CPU draws; plans without a composed slot; kernels that are compiled once. Faults and what they leave alone are in
//! the backend's own tests.
//!
//! `ENGRAFT_REQUIRE=cuda:soft` runs them on the software driver; without that and without a device nothing runs, and each
//! test says so.
#![allow(clippy::unwrap_used, clippy::panic)]

mod whole;

use conformance::backends::{self, cuda, cuda_names, cuda_with};
use engraft_core::config::EngineConfig;
use engraft_core::engine::Request;
use engraft_core::inject::InjectionPlan;
use engraft_core::mem::Float;
use engraft_core::numerics::{Madd, Mode};
use engraft_cpu::{Cpu, CpuConfig};
use engraft_cuda::{CudaConfig, Loads};
use whole::{CASES, golden, laws, open};

/// The devices to test; the run fails where one that it asks for is not there.
fn here() -> Vec<String> {
    let missing = backends::missing_here();
    assert!(missing.is_empty(), "{} asks for {}", backends::REQUIRE, missing.join(", "));
    let here = cuda_names();
    println!("{} CUDA devices: {}", here.len(), here.join(", "));
    here
}

#[test]
fn every_slot_of_the_four_families_is_native() {
    for name in &here() {
        for mode in [Mode::Reference, Mode::Invariant, Mode::Fast] {
            let gpu = cuda(name, mode).unwrap();
            for case in ["llama", "gpt2", "opt", "bert"] {
                for dtype in [Float::F32, Float::F16, Float::Bf16] {
                    let config =
                        EngineConfig { dtype, kv_dtype: dtype, max_context: 32, ..EngineConfig::default() };
                    let engine = open(&gpu, &golden(case), config);
                    let plan = InjectionPlan::new(gpu.as_ref(), engine.model(), dtype);
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

#[test]
fn a_second_engine_start_compiles_nothing() {
    for name in &here() {
        let folder = tempfile::tempdir().unwrap();
        let kernel_cache = Some(folder.path().to_path_buf());
        let mut first: Option<(Loads, Vec<u32>)> = None;
        for start in 1..=3 {
            let config = CudaConfig { kernel_cache: kernel_cache.clone(), ..CudaConfig::default() };
            let gpu = cuda_with(name, config).unwrap();
            let config = EngineConfig { dtype: Float::Bf16, max_context: 32, ..EngineConfig::default() };
            let mut engine = open(&gpu, &golden("llama"), EngineConfig { kv_dtype: Float::Bf16, ..config });
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

#[test]
fn models_keep_the_laws_and_equal_the_cpu() {
    let here = here();
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
