//! A capture that fails costs time, not the answer: the engine keeps the reason and runs those steps op by
//! op.

use crate::backend::Broken;
use conformance::backends::folder;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::Cpu;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Two requests of different lengths: decode steps of two sequences, then of one.
fn run(backend: &Arc<Broken>) -> (Engine<Broken>, BTreeMap<u64, Vec<u32>>) {
    let files = checkpoint::open(&folder().join("golden/llama"), Access::Map).unwrap();
    let (registry, options) = (Registry::default(), LoadOptions::default());
    let model = inject(backend, &files, &registry, 4096, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { max_context: 48, ..EngineConfig::default() };
    let mut engine = Engine::new(backend.clone(), model, config).unwrap();
    for (prompt, max_new_tokens) in [(vec![3, 5, 7], 4), (vec![11, 4, 9], 8)] {
        let sampling = SamplingParams { temperature: 0.9, seed: Some(7), ..SamplingParams::default() };
        engine.put(Request { prompt, max_new_tokens, sampling, ..Request::default() }).unwrap();
    }
    let sampled = engine.run().unwrap();
    (engine, sampled)
}

#[test]
fn a_step_that_cannot_be_captured_runs_op_by_op_and_says_why() {
    let cpu: Arc<Cpu> = crate::cpu(1);
    let (whole, want) = run(&Broken::that_refuses(&cpu, 0));
    assert_eq!(whole.captured_graphs(), [1, 2]);
    assert!(whole.refused_graphs().is_empty());
    // Every capture refused, then the first alone: its bucket is not tried again, the other one is captured.
    let cases: [(usize, &[usize], &[usize]); 2] = [(100, &[], &[1, 2]), (1, &[1], &[2])];
    for (refusals, captured, refused) in cases {
        let backend = Broken::that_refuses(&cpu, refusals);
        let (engine, sampled) = run(&backend);
        assert_eq!(sampled, want, "{refusals} refusals");
        assert_eq!(engine.captured_graphs(), captured, "{refusals} refusals");
        assert_eq!(refusals - backend.refusals_left(), refused.len(), "each bucket is tried once");
        let sizes: Vec<usize> = engine.refused_graphs().iter().map(|(size, _)| *size).collect();
        assert_eq!(sizes, refused);
        assert!(engine.refused_graphs().iter().all(|(_, why)| why.contains("a planted refusal")));
    }
}
