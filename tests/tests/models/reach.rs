//! Tables that are computed (rotations, sines, factors of queries) reach as far as a model is loaded for:
//! what lies within has the bits of the whole table, what goes beyond is refused.

use engraft_core::Result;
use engraft_core::checkpoint::{Access, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request, Want};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use std::path::Path;

/// An engine that allows more positions than the model is loaded for.
fn engine(golden: &str, positions: usize) -> Result<Engine<Cpu>> {
    let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
    let files = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(golden), Access::default())?;
    let options = LoadOptions::default();
    let model = inject(&backend, &files, &Registry::default(), positions, options, &mut |_, _| {})?;
    let config = EngineConfig { max_context: 4096, ..EngineConfig::default() };
    Engine::new(backend, model, EngineConfig { logit_rows: Some(usize::MAX), page_size: 4, ..config })
}

fn request(tokens: u32) -> Request {
    let want = Want { logits: true, ..Want::default() };
    Request { prompt: (1..=tokens).collect(), max_new_tokens: 4, want, ..Request::default() }
}

/// Tokens of a prompt of 8, and the bits of their logits.
fn answer(engine: &mut Engine<Cpu>) -> (Vec<u32>, Vec<u32>) {
    let id = engine.put(request(8)).unwrap();
    let tokens = engine.run().unwrap().remove(&id).unwrap();
    let logits = engine.take_kept(id).unwrap().logits;
    (tokens, logits.iter().map(|v| v.to_bits()).collect())
}

#[test]
fn a_model_that_was_loaded_for_few_positions_refuses_more() {
    for golden in ["llama", "ministral3", "pegasus", "m2m_100"] {
        let (mut short, mut whole) = (engine(golden, 16).unwrap(), engine(golden, 4096).unwrap());
        let expected = answer(&mut whole);
        assert_eq!(answer(&mut short), expected, "{golden}");
        whole.put(request(17)).unwrap();
        let refusal = short.put(request(17)).expect_err(golden).to_string();
        assert!(refusal.contains("17 tokens") && refusal.contains("16"), "{golden}: {refusal}");
        assert_eq!(answer(&mut short), expected, "{golden}, behind what was refused");
    }
}
