//! Below the text: the engine itself, token ids, and a ragged batch.
//!
//! `cargo run --release -p engraft --example 02_stream_tokens`
//!
//! Three prompts of different lengths join at different times and run in the same steps. What a sequence
//! samples does not depend on its company: the first one is run again alone and gives the same tokens.

use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::engine::{Engine, Request};
use engraft::engraft_core::inject::inject;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, Registry, demo_files};
use engraft_cpu::{Cpu, CpuConfig};

fn main() -> engraft::Result<()> {
    let files = demo_files()?;
    let backend = Cpu::new(CpuConfig::default())?;
    println!("{}: {}", backend.name(), backend.caps().device);

    // Policy, names, weights, blocks: everything from a checkpoint to a model is `inject`.
    let config = EngineConfig { max_seqs: 3, max_step_tokens: 8, ..EngineConfig::default() };
    let model = inject(&backend, &files, &Registry::default(), 512, LoadOptions::default(), &mut |_, _| {})?;
    let mut engine = Engine::new(backend, model, config)?;

    let tokenizer = engraft::Tokenizer::from_files("the demo model", files.tokenizer)?;
    let request = |text: &str| -> engraft::Result<Request> {
        Ok(Request { prompt: tokenizer.encode(text, true)?, max_new_tokens: 12, ..Request::default() })
    };
    let first = engine.put(request("This package provides")?)?;
    engine.put(request("libssl-dev: ")?)?;

    let (mut outputs, mut sampled) = (Vec::new(), Vec::new());
    for step in 0.. {
        if step == 3 {
            // Joins while the others decode; its prompt shares the steps' token budget with them.
            engine.put(request("A small and fast, yet rather complete implementation of")?)?;
        }
        engine.step(&mut outputs)?;
        let shown: Vec<String> = outputs
            .iter()
            .filter_map(|o| {
                o.token.map(|t| format!("{}:{:?}", o.id, tokenizer.decode(&[t], true).unwrap_or_default()))
            })
            .collect();
        println!("step {step:2}  {}", shown.join("  "));
        sampled.extend(outputs.iter().filter(|o| o.id == first).filter_map(|o| o.token));
        if engine.is_idle() {
            break;
        }
    }

    let alone = engine.put(request("This package provides")?)?;
    let again = engine.run()?;
    println!("alone and in company the same tokens: {}", again[&alone] == sampled);
    Ok(())
}
