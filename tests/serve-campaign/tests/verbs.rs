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
use std::time::{Duration, Instant};

const CONTEXT: usize = 64;

/// Saving and forking collect what is in flight first: whoever is in a step that fails then has an end.
#[test]
fn a_step_that_a_verb_saw_fail_ends_its_requests() {
    let (null, mut seen) = (Null::new(), 0);
    // Slow enough for a request to be there while it is saved.
    null.wait_every(1);
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
        let (mut first, second) = (request(vec![5, 6, 7]).unwrap(), request(vec![9, 8]).unwrap());
        // From now on a step is in flight.
        let _ = first.next();
        null.fail_in(ops % 50);
        let saved = first.save();
        // An op's failure, which is none of the request's own: a step's, or that of reading its pages.
        seen += usize::from(matches!(saved, Err(Error::OutOfMemory { .. })));
        let mut forked = first.fork(SamplingParams::default(), 0).unwrap();
        let said = forked.next();
        seen += usize::from(matches!(said, Some(Err(Error::OutOfMemory { .. }))));
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let last = forked.last().or(said);
            let ends = [first.last(), second.last(), last];
            sender.send(ends).unwrap();
        });
        let ends = ended.recv_timeout(Duration::from_secs(120)).expect("a request without an end");
        assert!(ends.iter().all(|end| matches!(end, Some(Err(_) | Ok(Event::Finished(_))))), "{ends:?}");
    }
    assert!(seen > 0, "no verb saw a failure");
    // Counts are those of the last step, which may have a part of a request that was told its end.
    let left = || {
        let stats = handle.stats();
        (stats.running, stats.total_pages - stats.free_pages)
    };
    let begin = Instant::now();
    while left() != (0, 0) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(left(), (0, 0), "requests that run, pages that are held");
}
