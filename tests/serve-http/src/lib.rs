//! A model of texts that computes nothing: the demo model's sizes and tokenizer on [`Null`].

use engraft::engraft_core::engine::Engine;
use engraft::engraft_core::inject::inject;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, EngineHandle, Registry, Result, TextGenerator, demo_files};
use null_backend::{Fault, Null, Oracle};
pub use sample::Dice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often it is looked whether a planned failure has happened.
const TICK: Duration = Duration::from_millis(10);

/// The demo model on `null`, and what it gives.
///
/// # Errors
/// Those of the engine.
pub fn over(null: &Arc<Null>, config: EngineConfig) -> Result<(TextGenerator, Oracle)> {
    let (backend, (made, oracle)) = (null.clone(), channel());
    let handle = EngineHandle::over("null", move || {
        let (files, context, load) = (demo_files()?, config.max_context, LoadOptions::default());
        let model = inject(&backend, &files, &Registry::default(), context, load, &mut |_, _| {})?;
        let engine = Engine::new(backend, model, config)?;
        let model = engine.model();
        let _ = made.send(Oracle::new(&model.spec, &model.rope_shifts(), engine.config().max_context));
        Ok(engine)
    })?;
    let oracle = oracle.recv().map_err(|_| engraft::Error::internal("an engine without an oracle"))?;
    Ok((TextGenerator::over(handle, demo_files()?)?, oracle))
}

/// Failures that were planned so far: those that have happened, and one more for each engine.
static FAILURES: AtomicU64 = AtomicU64::new(0);

/// How often engines have failed in this process, at most.
pub fn failures() -> u64 {
    FAILURES.load(Relaxed)
}

/// Lets `null` fail as long as it is there, each time behind some `mean` ops: of four failures two are errors
/// of a step, one is a panic of the engine's thread, one the loss of the device.
pub fn keep_failing(null: &Arc<Null>, mean: usize, seed: u64) {
    let (null, mut dice) = (Arc::downgrade(null), Dice::new(seed));
    std::thread::spawn(move || {
        while let Some(null) = Weak::upgrade(&null) {
            if null.has_failed() {
                let fault = dice.pick(&[Fault::Error, Fault::Error, Fault::Panic, Fault::Lost]);
                FAILURES.fetch_add(1, Relaxed);
                null.fault_in((mean / 2 + dice.below(mean)) as u64, fault);
            }
            drop(null);
            std::thread::sleep(TICK);
        }
    });
}
