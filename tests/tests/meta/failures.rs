//! An op that fails costs the step, not the engine: what comes after it has the same tokens as ever.

use crate::backend::Broken;
use conformance::backends::folder;
use conformance::bug::{Bug, Strike};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request};
use engraft_core::inject::inject;
use engraft_core::ops::Op;
use engraft_core::policy::Registry;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use engraft_cpu::Cpu;

/// The first lookup of token rows fails, every later op is run as it is.
fn first_lookup_fails(strike: &mut Strike<'_>, op: Op<'_, Cpu>) -> Result<()> {
    match &op {
        Op::Embed(_) if strike.first_call() => Err(Error::internal("a planted failure")),
        _ => strike.run(op),
    }
}

/// An engine on a model whose embedding borrows the residual's memory while it projects (narrow token rows).
fn engine(bug: Option<Bug>) -> Engine<Broken> {
    let backend = Broken::new(&crate::cpu(1), bug);
    let files = checkpoint::open(&folder().join("golden/opt_postln_proj"), Access::Map).unwrap();
    let (registry, options) = (Registry::default(), LoadOptions::default());
    let model = inject(&backend, &files, &registry, 4096, options, &mut |_, _| {}).unwrap();
    let config = EngineConfig { max_context: 32, ..EngineConfig::default() };
    Engine::new(backend, model, config).unwrap()
}

fn tokens(engine: &mut Engine<Broken>) -> Vec<u32> {
    let request = Request { prompt: vec![3, 5, 7], max_new_tokens: 6, ..Request::default() };
    let id = engine.put(request).unwrap();
    engine.run().unwrap().remove(&id).unwrap()
}

#[test]
fn an_engine_serves_on_after_an_op_of_the_embedding_failed() {
    let want = tokens(&mut engine(None));
    assert_eq!(want.len(), 6);
    let bug = Bug::new("lookup", "embed", "a request after it", first_lookup_fails);
    let mut engine = engine(Some(bug));
    let id = engine.put(Request { prompt: vec![1, 2], max_new_tokens: 3, ..Request::default() }).unwrap();
    let failed = engine.step(&mut Vec::new()).unwrap_err();
    assert!(failed.to_string().contains("a planted failure"), "{failed}");
    assert_eq!(engine.take_failed(), [id], "the step ends whom it was launched for");
    assert!(!engine.cancel(id).unwrap() && engine.is_idle());
    assert_eq!(tokens(&mut engine), want);
}
