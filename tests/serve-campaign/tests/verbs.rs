//! What a handle does to a running request, while steps fail.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use conformance::backends::folder;
use conformance::null::Null;
use engraft::engraft_core::checkpoint::{self, Access};
use engraft::engraft_core::engine::Engine;
use engraft::engraft_core::inject::inject;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, EngineHandle, Error, Event, Registry, Request, SamplingParams};
use std::sync::mpsc::channel;
use std::time::Duration;

const CONTEXT: usize = 64;

/// Saving and forking collect what is in flight first: whoever is in a step that fails then has an end.
#[test]
fn a_step_that_a_verb_saw_fail_ends_its_requests() {
    let (null, mut seen) = (Null::new(), 0);
    let own = null.clone();
    let make = move || {
        let files = checkpoint::open(&folder().join("golden/llama"), Access::Map)?;
        let options = LoadOptions::default();
        let model = inject(&own, &files, &Registry::default(), CONTEXT, options, &mut |_, _| {})?;
        let config = EngineConfig { max_context: CONTEXT, steps_ahead: Some(1), ..EngineConfig::default() };
        Engine::new(own, model, config)
    };
    let handle = EngineHandle::over("null", make).unwrap();
    for ops in 0..200 {
        let request = |prompt| handle.submit(Request { prompt, max_new_tokens: 50, ..Request::default() });
        let (first, second) = (request(vec![5, 6, 7]).unwrap(), request(vec![9, 8]).unwrap());
        null.fail_in(ops);
        let saved = first.save();
        // An op's failure, which is none of the request's own: a step's, or that of reading its pages.
        seen += usize::from(matches!(saved, Err(Error::OutOfMemory { .. })));
        let forked = first.fork(SamplingParams::default(), 0).unwrap();
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let ends = [first, second, forked].map(|events| events.last());
            sender.send(ends).unwrap();
        });
        let ends = ended.recv_timeout(Duration::from_secs(120)).expect("a request without an end");
        assert!(ends.iter().all(|end| matches!(end, Some(Err(_) | Ok(Event::Finished(_))))), "{ends:?}");
    }
    assert!(seen > 0, "no verb saw a failure");
    let stats = handle.stats();
    assert_eq!((stats.running, stats.free_pages), (0, stats.total_pages));
}
