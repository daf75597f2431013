//! What ended requests leave behind.

use super::*;

/// A restored request reads pages that came in from outside: they go with it and with what was forked from
/// it, so that they take no room from those that others may find.
#[test]
fn what_came_from_outside_goes_with_the_last_that_reads_it() {
    let null = Null::new();
    let (mut engine, id, before) = half_way(&null);
    let saved = engine.save(id).unwrap();
    assert_eq!(rest(&mut engine).0[&id], whole_text()[before.len()..]);
    let pages = engine.prefix_stats().pages;
    let restored = engine.restore(&saved).unwrap();
    assert!(engine.prefix_stats().pages > pages, "the whole pages of what was saved");
    engine.step(&mut Vec::new()).unwrap();
    let fork = engine.fork(restored, penalised(&[], 0).sampling, 0).unwrap();
    assert!(engine.cancel(restored).unwrap());
    engine.step(&mut Vec::new()).unwrap();
    assert!(engine.prefix_stats().pages > pages, "the fork reads them");
    let (tokens, failed) = rest(&mut engine);
    assert!(failed.is_empty());
    assert!(whole_text().ends_with(&tokens[&fork]) && tokens[&fork].len() > 4, "{tokens:?}");
    assert_eq!(engine.prefix_stats().pages, pages, "what is left is what others may find");
    let (free, total) = engine.free_pages();
    assert_eq!(free, total);
}

/// A restored request waits where its priority puts it, whatever came first.
#[test]
fn what_is_restored_keeps_its_priority() {
    let null = Null::new();
    let mut engine = engine(&null, EngineConfig { max_context: 64, max_seqs: 1, ..EngineConfig::default() });
    let ask = |priority| Request { priority, ..penalised(&[7, 40, 9], 4) };
    // Nobody else is admitted while it runs.
    engine.put(ask(0)).unwrap();
    engine.step(&mut Vec::new()).unwrap();
    let [urgent, patient] = [-1, 1].map(|priority| {
        let id = engine.put(ask(priority)).unwrap();
        let saved = engine.save(id).unwrap();
        assert!(engine.cancel(id).unwrap());
        saved
    });
    let last = engine.restore(&patient).unwrap();
    let second = engine.put(ask(0)).unwrap();
    let first = engine.restore(&urgent).unwrap();
    let (mut out, mut ended) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        engine.step(&mut out).unwrap();
        ended.extend(out.iter().filter(|output| output.finish.is_some()).map(|output| output.id));
    }
    assert_eq!(ended[1..], [first, second, last]);
}

/// Requests that wait for the step that samples the first token of the one they continue wait like others.
#[test]
fn continuations_that_wait_are_counted() {
    let null = Null::new();
    let mut engine = engine(&null, EngineConfig { max_context: 64, ..EngineConfig::default() });
    engine.put_several(penalised(&[7, 40, 9], 4), 3).unwrap();
    assert_eq!(engine.counts(), (0, 3));
    engine.step(&mut Vec::new()).unwrap();
    assert_eq!(engine.counts(), (3, 0));
    assert_eq!(rest(&mut engine).0.len(), 3);
    assert_eq!(engine.counts(), (0, 0));
}

/// Logits that are no numbers say that something is wrong with what the request has read or written, of this
/// step or of those before: no other request finds it.
#[test]
fn what_is_in_doubt_is_found_by_none() {
    let null = Null::new();
    let config = EngineConfig {
        max_context: 64,
        max_seqs: 4,
        max_step_tokens: 4,
        page_size: 4,
        steps_ahead: Some(0),
        ..EngineConfig::default()
    };
    let mut engine = engine(&null, config);
    let ask = |seed: u32| Request {
        prompt: (0..9).map(|at| 3 + (seed * 31 + at * 7) % 50).collect(),
        max_new_tokens: 12,
        sampling: SamplingParams { seed: Some(seed.into()), ..SamplingParams::default() },
        ..Request::default()
    };
    let mut reference = reference();
    let mut ends =
        |finish| (0..).map(ask).find(|request| alone(&mut reference, request).1 == finish).unwrap();
    let (sound, doubtful) = (ends(Finish::Length), ends(Finish::NoToken));
    engine.put(doubtful).unwrap();
    engine.step(&mut Vec::new()).unwrap();
    assert_eq!(engine.prefix_stats().pages, 1, "the first chunk is there to be found");
    rest(&mut engine);
    assert_eq!(engine.prefix_stats().pages, 0);
    engine.put(sound).unwrap();
    rest(&mut engine);
    assert_eq!(engine.prefix_stats().pages, (9 + 12 - 1) / 4);
}
