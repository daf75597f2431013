//! Code of your own in the place of a block.
//!
//! `cargo run --release -p engraft --example 06_own_block`
//!
//! Which of the demo model's layers could it do without? Each is left out once, and the text that is left is
//! shown. The code below names no backend: it runs on every one.

use engraft::engraft_core::engine::{Engine, Request};
use engraft::engraft_core::inject::Injector;
use engraft::engraft_core::mem::Device;
use engraft::engraft_core::model::{Exec, OwnBlock, Place};
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, Registry, Result, demo_files};
use engraft_cpu::{Cpu, CpuConfig};

/// Hands the residual stream on as it came. `place.standard(x)` would run the layer that was there.
struct LeftOut;

impl<D: Device> OwnBlock<D> for LeftOut {
    fn forward(&self, _: &mut Exec<'_, D>, _: Place<'_, '_, D>) -> Result<()> {
        Ok(())
    }
}

fn main() -> Result<()> {
    let layers = text(None)?.1;
    println!("all {layers} layers\n  {}", text(None)?.0);
    for layer in 0..layers {
        println!("without layer {layer}\n  {}", text(Some(layer))?.0);
    }
    Ok(())
}

/// What the demo model writes without a layer, and how many it has.
fn text(without: Option<usize>) -> Result<(String, usize)> {
    let (files, backend, registry) = (demo_files()?, Cpu::new(CpuConfig::default())?, Registry::default());
    let mut injector = Injector::new(&registry, 512, LoadOptions::default());
    if let Some(without) = without {
        injector.register("left out", move |_, _, layer| {
            Ok(if layer == without { Some(Box::new(LeftOut) as Box<dyn OwnBlock<Cpu>>) } else { None })
        });
    }
    let model = injector.inject(&backend, &files, &mut |_, _| {})?;
    let layers = model.blocks.len();
    let mut engine = Engine::new(backend, model, EngineConfig { max_seqs: 1, ..EngineConfig::default() })?;
    let tokenizer = engraft::Tokenizer::from_files("the demo model", files.tokenizer)?;
    let prompt = tokenizer.encode("This package provides", true)?;
    let id = engine.put(Request { prompt, max_new_tokens: 16, ..Request::default() })?;
    let sampled = engine.run()?;
    Ok((tokenizer.decode(&sampled[&id], true)?.replace('\n', " "), layers))
}
