//! Several continuations of one prompt give what as many requests give, and the prompt runs once.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{cpu, engine};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::null::Null;
use conformance::trials::Named;
use engraft_core::Error;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Finish, MAX_CONTINUATIONS, Request, Want};
use engraft_core::numerics::Mode;
use engraft_core::sample::SamplingParams;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    continuations_are_those_of_requests,
    the_prompt_runs_once,
    a_cancelled_leader_leaves_the_others,
    what_cannot_be_continued_is_refused,
    continuations_whose_time_is_over_do_not_run,
    a_continuation_ends_with_the_step_that_was_to_write_its_prompt,
    more_continuations_than_are_taken_are_refused,
];
pub const ON_CUDA: &[Named] = &named![continuations_on_cuda];
pub const ON_WGPU: &[Named] = &named![continuations_on_wgpu];

const NEW: usize = 7;
const COUNT: usize = 4;

fn config(max_seqs: usize, prefix_cache: bool, ahead: usize) -> EngineConfig {
    EngineConfig {
        max_context: 48,
        max_seqs,
        max_step_tokens: 9,
        page_size: 4,
        page_seed: Some(5),
        prefix_cache,
        steps_ahead: Some(ahead),
        ..EngineConfig::default()
    }
}

fn request(len: usize, subsequence: u32) -> Request {
    let sampling = SamplingParams {
        temperature: 1.5,
        repetition_penalty: 1.2,
        seed: Some(9),
        ..SamplingParams::default()
    };
    let prompt = (0..len as u32).map(|i| 3 + (i * 7 + i * i) % 50).collect();
    Request { prompt, max_new_tokens: NEW, sampling, subsequence, stop_ids: vec![2], ..Request::default() }
}

/// Every continuation by itself.
fn alone<B: Backend>(backend: &Arc<B>, case: &str, len: usize) -> Vec<Vec<u32>> {
    let mut engine = engine(backend, case, config(1, false, 0));
    let of = |subsequence| {
        let id = engine.put(request(len, subsequence)).unwrap();
        engine.run().unwrap().remove(&id).unwrap()
    };
    (0..COUNT as u32).map(of).collect()
}

fn law<B: Backend>(backend: &Arc<B>, case: &str, len: usize) {
    let want = alone(backend, case, len);
    assert!(want.iter().any(|tokens| tokens != &want[0]), "{case}: one seed, several texts: {want:?}");
    for ahead in 0..2 {
        // As many slots as continuations, or fewer; with a cache for those that come later, or none.
        for (max_seqs, cache) in [(COUNT, true), (COUNT + 1, false), (2, true), (2, false), (1, true)] {
            let mut engine = engine(backend, case, config(max_seqs, cache, ahead));
            if max_seqs > COUNT {
                engine.put(request(5, 9)).unwrap();
            }
            let ids = engine.put_several(request(len, 0), COUNT).unwrap();
            let mut got = engine.run().unwrap();
            let got: Vec<Vec<u32>> = ids.iter().map(|id| got.remove(id).unwrap()).collect();
            assert_eq!(got, want, "{case}, {len} tokens, {max_seqs} at once, cache {cache}, ahead {ahead}");
            let (free, total) = engine.free_pages();
            assert_eq!(free, total, "{case}: pages leak");
        }
    }
}

fn continuations_are_those_of_requests() {
    let cpu = cpu();
    for case in ["llama_gqa_llama3", "gemma2", "phi3_longrope", "gpt2"] {
        // A prompt that fills its last page, one that does not, one of a token.
        for len in [16, 18, 1] {
            law(&cpu, case, len);
        }
    }
}

fn continuations_on_cuda() {
    for name in cuda_names() {
        law(&cuda(&name, Mode::Invariant).unwrap(), "llama_gqa_llama3", 18);
    }
}

fn continuations_on_wgpu() {
    for name in adapters() {
        law(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3", 18);
    }
}

/// The prompt of 18 tokens takes two steps of nine; behind it every step has a token of each.
fn the_prompt_runs_once() {
    for cache in [true, false] {
        let mut engine = engine(&cpu(), "llama", config(COUNT, cache, 0));
        let ids = engine.put_several(Request { stop_ids: vec![], ..request(18, 0) }, COUNT).unwrap();
        let (mut out, mut steps, mut firsts) = (Vec::new(), 0, Vec::new());
        while !engine.is_idle() {
            engine.step(&mut out).unwrap();
            steps += 1;
            if steps == 2 {
                firsts = out.iter().map(|o| o.id).collect();
            }
        }
        assert_eq!((steps, firsts), (2 + NEW - 1, ids), "cache {cache}");
    }
}

/// Whoever waits for a prompt goes on when the request that runs it is cancelled, before any of its steps.
fn a_cancelled_leader_leaves_the_others() {
    let cpu = cpu();
    let want = alone(&cpu, "llama", 18);
    for (ahead, at) in (0..2).flat_map(|ahead| (0..6).map(move |at| (ahead, at))) {
        for gone in 0..2 {
            let mut engine = engine(&cpu, "llama", config(COUNT, true, ahead));
            let ids = engine.put_several(request(18, 0), COUNT).unwrap();
            let (mut out, mut got) = (Vec::new(), vec![Vec::new(); COUNT]);
            for step in 0.. {
                if step == at {
                    assert!(engine.cancel(ids[gone]).unwrap(), "before step {at}");
                    assert!(!engine.cancel(ids[gone]).unwrap());
                }
                if engine.is_idle() {
                    break;
                }
                engine.step(&mut out).unwrap();
                out.iter().for_each(|o| got[(o.id - ids[0]) as usize].extend(o.token));
            }
            for i in (0..COUNT).filter(|i| *i != gone) {
                assert_eq!(got[i], want[i], "{i}, where {gone} is cancelled before step {at}");
            }
            assert!(want[gone].starts_with(&got[gone]));
            if at == 0 {
                // Whoever leads reads the prompt, and nobody else.
                assert_eq!(engine.prefix_stats().queried, 18, "{gone}");
            }
            assert_eq!(engine.free_pages().0, engine.free_pages().1);
        }
    }
}

fn what_cannot_be_continued_is_refused() {
    let mut engine = engine(&cpu(), "llama", config(2, true, 0));
    let want = Want { logits: true, ..Want::default() };
    let text = |error: Error| error.to_string();
    assert!(text(engine.put_several(request(3, 0), 0).unwrap_err()).contains("0 continuations"));
    let keeps = Request { want, ..request(3, 0) };
    assert!(text(engine.put_several(keeps, 2).unwrap_err()).contains("keep no logits"));
    assert!(text(engine.put_several(request(90, 0), 2).unwrap_err()).contains("90 tokens"));
    assert!(engine.is_idle());
}

/// They have waited as long as the one that they waited for.
fn continuations_whose_time_is_over_do_not_run() {
    let mut engine = engine(&Null::new(), "llama", config(2, true, 0));
    let time = Arc::new(AtomicU64::new(0));
    let now = time.clone();
    engine.set_clock(move || Duration::from_millis(now.load(Relaxed)));
    let within = |ms| Request { start_within: Some(Duration::from_millis(ms)), ..request(5, 0) };
    let late = engine.put_several(within(10), 3).unwrap();
    let soon = engine.put_several(within(5000), 2).unwrap();
    time.store(1000, Relaxed);
    let (mut out, mut ends) = (Vec::new(), BTreeMap::new());
    while !engine.is_idle() {
        engine.step(&mut out).unwrap();
        ends.extend(out.iter().filter_map(|o| o.finish.map(|finish| (o.id, finish))));
    }
    assert!(late.iter().all(|id| ends[id] == Finish::Expired), "{ends:?}");
    assert!(soon.iter().all(|id| ends[id] != Finish::Expired), "{ends:?}");
}

/// A step that was to write positions of the prompt's last page fails; the step behind it, which copies that
/// page for a continuation and samples its first token, has read what is not there.
fn a_continuation_ends_with_the_step_that_was_to_write_its_prompt() {
    let mut both = 0;
    for (page_size, ops) in [2, 4, 8].into_iter().flat_map(|size| (0..600).map(move |ops| (size, ops))) {
        let null = Null::new();
        let sizes = EngineConfig { page_size, max_step_tokens: 4, ..config(4, true, 1) };
        let mut engine = engine(&null, "llama", EngineConfig { graphs: false, ..sizes });
        let decoding = engine.put(Request { max_new_tokens: 40, stop_ids: vec![], ..request(1, 0) }).unwrap();
        let mut out = Vec::new();
        (0..3).for_each(|_| engine.step(&mut out).unwrap());
        // Chunks of three: the second one lies within a page of eight positions.
        let ids = engine.put_several(request(7, 0), 2).unwrap();
        null.fail_in(ops);
        while engine.step(&mut out).is_ok() && !engine.is_idle() {}
        let failed = engine.take_failed();
        if !failed.contains(&decoding) || !failed.contains(&ids[0]) {
            continue;
        }
        // Whatever runs on has joined nobody: it waits for admission, or has begun by itself.
        let goes_on = !failed.contains(&ids[1]);
        assert!(
            !goes_on || engine.counts() == (0, 1),
            "pages of {page_size}, failure in {ops} ops: {failed:?}"
        );
        both += usize::from(!goes_on);
    }
    assert!(both > 20, "{both} failures ended both");
}

fn more_continuations_than_are_taken_are_refused() {
    let mut engine = engine(&Null::new(), "llama", config(2, true, 0));
    for count in [0, MAX_CONTINUATIONS + 1, usize::MAX] {
        let said = engine.put_several(request(5, 0), count).unwrap_err().to_string();
        assert!(said.contains(&count.to_string()), "{said}");
    }
    assert!(engine.is_idle());
}
