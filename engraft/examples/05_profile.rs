//! Where the time goes: per op, per layer, and a trace for a browser.
//!
//! `cargo run --release -p engraft --example 05_profile [TRACE.json]`
//!
//! With an argument the trace is written there; open it at `chrome://tracing` or in Perfetto.

use engraft::engraft_core::engine::{Engine, Request};
use engraft::engraft_core::inject::inject;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, Error, Registry, demo_files};
use engraft_cpu::{Cpu, CpuConfig};

fn main() -> engraft::Result<()> {
    let (files, backend) = (demo_files()?, Cpu::new(CpuConfig::default())?);
    let model = inject(&backend, &files, &Registry::default(), 512, LoadOptions::default(), &mut |_, _| {})?;
    let mut engine = Engine::new(backend, model, EngineConfig::default())?;

    // Profiled steps run op by op, with an event around each.
    engine.set_profiling(true);
    engine.put(Request { prompt: (1..101).collect(), max_new_tokens: 16, ..Request::default() })?;
    engine.run()?;
    let times = engine.model_times();
    println!("{} steps; the prompt took {:.2} ms, a token {:.2} ms", times.len(), times[0], times[1]);

    let Some(profile) = engine.take_profile() else { return Ok(()) };
    println!("\nop                    calls        ms");
    for (op, us, calls) in profile.by_op() {
        println!("{:<20} {calls:>6} {:>9.3}", op.name(), us / 1e3);
    }
    println!("\nlayer       ms");
    for (layer, us) in profile.by_layer() {
        let layer = layer.map_or("none".to_string(), |l| l.to_string());
        println!("{layer:<6} {:>7.3}", us / 1e3);
    }
    if let Some(path) = std::env::args_os().nth(1) {
        std::fs::write(&path, profile.chrome_trace()).map_err(|e| Error::io(path, e))?;
    }
    Ok(())
}
