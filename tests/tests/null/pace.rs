//! Steps that are to be in time, on a device whose time is counted.

use super::*;
use conformance::null::Costs;
use std::time::Duration;

const MS: u64 = 1_000_000;

/// Milliseconds of every step that had sequences that decode, until a prompt of 100 tokens was read, too, and
/// how many steps that took.
fn steps(max_step_ms: Option<f64>, alone: usize) -> (Vec<f64>, usize) {
    let null = Null::with_costs(Costs { step: 20 * MS, token: 2 * MS, ..Costs::default() });
    let config =
        EngineConfig { max_context: 128, max_step_ms, steps_ahead: Some(0), ..EngineConfig::default() };
    let mut engine = loaded(&null, "phi3_longrope", config).unwrap();
    let clock = null.clone();
    engine.set_clock(move || Duration::from_nanos(clock.spent()));
    let decodes = |seed: u64| Request {
        prompt: vec![7, 40, 9],
        max_new_tokens: 120,
        sampling: SamplingParams { seed: Some(seed), ..SamplingParams::default() },
        ..Request::default()
    };
    (0..2).for_each(|seed| _ = engine.put(decodes(seed)).unwrap());
    let (mut out, mut times, mut needed) = (Vec::new(), Vec::new(), 0);
    for _ in 0..alone {
        engine.step(&mut out).unwrap();
    }
    let prompt =
        engine.put(Request { prompt: vec![5; 100], max_new_tokens: 1, ..Request::default() }).unwrap();
    loop {
        let before = null.spent();
        engine.step(&mut out).unwrap();
        needed += 1;
        times.push((null.spent() - before) as f64 / MS as f64);
        if out.iter().any(|output| output.id == prompt) {
            assert!(engine.counts().0 > 0, "sequences decode all the while");
            return (times, needed);
        }
    }
}

#[test]
fn a_prompt_does_not_make_others_wait_longer_than_they_may() {
    let (times, needed) = steps(None, 20);
    assert!(needed == 1 && times[0] > 200.0, "without a limit it is read at once: {times:?}");
    for alone in [1, 5, 20, 80] {
        let (times, needed) = steps(Some(60.0), alone);
        let late: Vec<f64> = times.iter().copied().filter(|ms| *ms > 63.0).collect();
        // What was in time before, twice.
        assert!(late.len() <= 2 && late.iter().all(|ms| *ms <= 90.0), "behind {alone} steps: {times:?}");
        assert!(needed <= 9, "behind {alone} steps the prompt takes {needed} more: {times:?}");
    }
}
