//! Prompts whose beginning is taken from the prefix cache: what they give, and the keys and values that they
//! read, are bit for bit those of an engine that computes every prompt, for every length of what is found.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{Types, cpu, engine};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::{Backend, Composed};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Layers, Output, Pick, Request, Want};
use engraft_core::inject::describe;
use engraft_core::mem::{Float, KvFormat};
use engraft_core::numerics::Mode;
use engraft_core::policy::{Family, Registry};
use engraft_core::sample::SamplingParams;
use std::path::Path;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    a_hit_of_any_length_changes_no_bit,
    hits_of_every_family_change_no_bit,
    preempted_requests_give_what_they_would_have_given,
    a_preemption_before_any_step_changes_no_bit,
    prompts_on_both_sides_of_a_long_context_share_nothing,
    logits_of_the_last_tokens_are_computed_behind_a_hit,
    what_asks_for_all_positions_computes_them_and_leaves_them_to_others,
];
pub const ON_CUDA: &[Named] = &named![hits_and_preemptions_on_cuda];
pub const ON_WGPU: &[Named] = &named![hits_and_preemptions_on_wgpu];

const NEW: usize = 4;
const PAGE: usize = 4;

/// Decoders among the reference models.
pub(super) fn decoders() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists() && is_decoder(path))
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn is_decoder(path: &Path) -> bool {
    let files = checkpoint::open(path, Access::Map).unwrap();
    describe(&files, &Registry::default())
        .is_ok_and(|(spec, ..)| spec.family == Family::Decoder && spec.encoder.is_none())
}

fn config(prefix_cache: bool, types: impl Into<Types>) -> EngineConfig {
    let Types { dtype, kv_dtype } = types.into();
    EngineConfig {
        dtype,
        kv_dtype,
        max_context: 48,
        max_seqs: 3,
        max_step_tokens: 9,
        page_size: PAGE,
        page_seed: Some(5),
        prefix_cache,
        ..EngineConfig::default()
    }
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + (i * 7 + i * i) % 50).collect()
}

fn request(prompt: Vec<u32>, salt: &str) -> Request {
    let sampling = SamplingParams {
        temperature: 1.2,
        repetition_penalty: 1.2,
        seed: Some(9),
        ..SamplingParams::default()
    };
    let cache_salt = salt.into();
    Request { prompt, max_new_tokens: NEW, sampling, cache_salt, ..Request::default() }
}

/// Keys and values of every layer once the first token is there, then the tokens.
type Answer = (Vec<[Vec<f32>; 2]>, Vec<u32>);

/// Logits and hidden states, where a request asked for some; tokens.
type Kept = (Option<(Vec<f32>, Vec<Vec<f32>>)>, Vec<u32>);

fn answer<B: Backend>(engine: &mut Engine<B>, request: Request) -> Answer {
    let id = engine.put(request).unwrap();
    let (mut out, mut tokens): (Vec<Output>, Vec<u32>) = (Vec::new(), Vec::new());
    while tokens.is_empty() {
        engine.step(&mut out).unwrap();
        tokens.extend(out.iter().filter(|o| o.id == id).filter_map(|o| o.token));
    }
    // What is in flight is collected here, and reported by the next step.
    let layers = 0..engine.model().blocks.len();
    let read = layers.map(|layer| engine.cached(id, layer).unwrap()).collect();
    tokens.extend(engine.run().unwrap().remove(&id).unwrap_or_default());
    (read, tokens)
}

/// The first value that differs would be lost in a listing of all: its layer is named.
fn check(got: &Answer, want: &Answer, what: &str) {
    assert_eq!(got.1, want.1, "{what}: tokens");
    let layer = got.0.iter().zip(&want.0).position(|(got, want)| got != want);
    assert_eq!(
        (layer, got.0.len()),
        (None, want.0.len()),
        "{what}: keys and values, the first layer that differs"
    );
}

/// A prompt of `len` tokens of which another one left the first `alike`, for every `alike`.
fn law<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    len: usize,
    shared: impl Iterator<Item = usize>,
    types: impl Into<Types>,
) {
    let types = types.into();
    let whole = prompt(len);
    let cold = answer(&mut engine(backend, case, config(false, types)), request(whole.clone(), ""));
    let positions = cold.0.iter().map(|[k, _]| k.len()).max().unwrap_or(0);
    assert!(positions > 0, "{case}: nothing is cached");
    let mut engine = engine(backend, case, config(true, types));
    for alike in shared {
        let (salt, before) = (alike.to_string(), engine.prefix_stats());
        let other: Vec<u32> = whole[alike..].iter().map(|token| token + 1).chain([2]).collect();
        answer(&mut engine, request([&whole[..alike], &other[..]].concat(), &salt));
        assert_eq!(engine.prefix_stats().hit, before.hit, "{case}: another salt is another prefix");
        let warm = answer(&mut engine, request(whole.clone(), &salt));
        let found = (alike / PAGE * PAGE).min((len - 1) / PAGE * PAGE) as u64;
        assert_eq!(
            engine.prefix_stats().hit - before.hit,
            found,
            "{case}: {alike} of {len} tokens are alike"
        );
        check(&warm, &cold, &format!("{case} behind a hit of {found}"));
        assert_eq!(engine.free_pages(), (36, 36), "{case}: pages leak");
    }
}

fn a_hit_of_any_length_changes_no_bit() {
    let cpu = cpu();
    for case in ["llama_gqa_llama3", "gpt2"] {
        law(&cpu, case, 17, 0..=17, Float::F32);
        law(&cpu, case, 16, 0..=16, Float::Bf16);
        law(&cpu, case, 17, 0..=17, (Float::F32, KvFormat::INT8));
        law(&cpu, case, 17, [5, 12, 17].into_iter(), (Float::F16, KvFormat::FP8));
    }
    law(&Arc::new(Composed::new(cpu)), "llama", 17, [0, 8, 15, 17].into_iter(), Float::F32);
}

fn hits_of_every_family_change_no_bit() {
    let (cpu, cases) = (cpu(), decoders());
    assert!(cases.len() >= 30, "{} decoders", cases.len());
    for case in &cases {
        law(&cpu, case, 17, [9, 16].into_iter(), Float::F32);
        law(&cpu, case, 17, [9].into_iter(), (Float::F32, KvFormat::INT8));
    }
}

/// What devices are asked for.
const ON_DEVICES: [&str; 8] = [
    "llama_gqa_llama3",
    "gemma2",
    "mixtral",
    "bloom",
    "gpt_oss",
    "deepseek_v3",
    "longcat_flash",
    "glm_moe_dsa",
];

fn hits_and_preemptions_on_cuda() {
    for name in cuda_names() {
        let gpu = || cuda(&name, Mode::Invariant).unwrap();
        for case in ON_DEVICES {
            law(&gpu(), case, 17, [9, 16].into_iter(), Float::F32);
        }
        for (case, types) in [
            ("llama_gqa_llama3", (Float::F32, KvFormat::INT8)),
            ("gemma2", (Float::Bf16, KvFormat::FP8)),
            ("glm_moe_dsa", (Float::F32, KvFormat::INT8)),
        ] {
            law(&gpu(), case, 17, [9, 16].into_iter(), types);
        }
        preempted_at_every_step(&gpu(), "llama_gqa_llama3");
    }
}

fn hits_and_preemptions_on_wgpu() {
    for name in adapters() {
        for case in ON_DEVICES {
            law(&wgpu(Some(&name), false).unwrap(), case, 17, [9, 16].into_iter(), Float::F32);
        }
        for (case, types) in [
            ("llama_gqa_llama3", (Float::F32, KvFormat::INT8)),
            ("gemma2", (Float::Bf16, KvFormat::FP8)),
            ("deepseek_v3", (Float::F32, KvFormat::INT8)),
            ("glm_moe_dsa", (Float::F32, KvFormat::INT8)),
        ] {
            law(&wgpu(Some(&name), false).unwrap(), case, 17, [9, 16].into_iter(), types);
        }
        preempted_at_every_step(&wgpu(Some(&name), false).unwrap(), "llama_gqa_llama3");
    }
}

/// What requests give that run side by side in a pool of so many pages: tokens, logits and hidden states of
/// all layers; and preemptions.
fn served<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    pages: usize,
    ahead: usize,
    cache: bool,
) -> (Vec<Kept>, u64) {
    let sizes = EngineConfig {
        kv_pages: Some(pages),
        steps_ahead: Some(ahead),
        logit_rows: Some(usize::MAX),
        ..config(cache, Float::F32)
    };
    let mut engine = engine(backend, case, sizes);
    let want = [
        Want { logits: true, hidden: Layers::All, logprobs: false },
        Want { logits: true, ..Want::default() },
        Want { hidden: Layers::Last, ..Want::default() },
        Want::default(),
    ];
    let ids = (0..7).map(|i| {
        let prompt = prompt(3 + 2 * i);
        let request = Request { want: want[i % 4], max_new_tokens: 24, ..request(prompt, &i.to_string()) };
        engine.put(request).unwrap()
    });
    let ids: Vec<u64> = ids.collect();
    let mut tokens = engine.run().unwrap();
    assert_eq!(engine.free_pages(), (pages, pages), "{case}: pages leak");
    let kept = ids.into_iter().map(|id| (engine.take_kept(id), tokens.remove(&id).unwrap()));
    let kept = kept.map(|(kept, tokens)| (kept.map(|kept| (kept.logits, kept.hidden)), tokens)).collect();
    (kept, engine.preemptions())
}

fn preempted_requests_give_what_they_would_have_given() {
    let cpu = cpu();
    for case in ["llama_gqa_llama3", "gemma2", "phi3_longrope", "falcon_alibi"] {
        for (ahead, cache) in [(0, true), (1, true), (1, false)] {
            let (roomy, none) = served(&cpu, case, 36, ahead, cache);
            assert_eq!(none, 0, "{case}");
            for pages in [10, 13, 16] {
                let (tight, preempted) = served(&cpu, case, pages, ahead, cache);
                assert!(preempted > 0, "{case}, {pages} pages: nothing is preempted");
                for (i, (tight, roomy)) in tight.iter().zip(&roomy).enumerate() {
                    assert_eq!(
                        tight.1, roomy.1,
                        "{case}, {pages} pages, ahead {ahead}: tokens of request {i}"
                    );
                    let same = tight.0 == roomy.0;
                    assert!(same, "{case}, {pages} pages, ahead {ahead}: what request {i} kept differs");
                }
            }
        }
    }
}

/// Tokens, and logits and hidden states of all layers, of two requests side by side; the first one is
/// preempted before step `at`. Also whether it ran then.
fn preempted<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    ahead: usize,
    cache: bool,
    at: usize,
) -> (Vec<Kept>, bool) {
    let sizes =
        EngineConfig { steps_ahead: Some(ahead), logit_rows: Some(usize::MAX), ..config(cache, Float::F32) };
    let mut engine = engine(backend, case, sizes);
    let want = Want { logits: true, hidden: Layers::All, logprobs: false };
    let request = |len| Request { want, max_new_tokens: 6, ..request(prompt(len), "") };
    let ids = [14, 5].map(|len| engine.put(request(len)).unwrap());
    let (mut out, mut tokens, mut ran) = (Vec::new(), [Vec::new(), Vec::new()], false);
    for step in 0.. {
        if step == at {
            ran = engine.preempt(ids[0]).unwrap();
            assert_eq!(engine.preemptions(), u64::from(ran));
        }
        if engine.is_idle() {
            break;
        }
        engine.step(&mut out).unwrap();
        out.iter().for_each(|o| tokens[usize::from(o.id == ids[1])].extend(o.token));
    }
    assert_eq!(engine.free_pages(), (36, 36), "{case}: pages leak");
    let kept = ids
        .into_iter()
        .zip(tokens)
        .map(|(id, tokens)| (engine.take_kept(id).map(|kept| (kept.logits, kept.hidden)), tokens));
    (kept.collect(), ran)
}

/// A request that gives its pages up before any of its steps, with one in flight or not, and with a cache to
/// come back to or not.
fn preempted_at_every_step<B: Backend>(backend: &Arc<B>, case: &str) {
    for (ahead, cache) in [(0, true), (0, false), (1, true), (1, false)] {
        let (want, none) = preempted(backend, case, ahead, cache, usize::MAX);
        assert!(!none && want[0].1.len() == 6, "{case}: {:?}", want[0].1);
        let mut counted = 0;
        for at in 0..12 {
            let (got, ran) = preempted(backend, case, ahead, cache, at);
            counted += usize::from(ran);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let what = format!("{case}, ahead {ahead}, cache {cache}, before step {at}, request {i}");
                assert_eq!(got.1, want.1, "{what}: tokens");
                let same = got.0 == want.0;
                assert!(same, "{what}: logits or hidden states differ");
            }
        }
        assert!(counted >= 6, "{case}: preempted {counted} times");
    }
}

fn a_preemption_before_any_step_changes_no_bit() {
    let cpu = cpu();
    for case in ["llama_gqa_llama3", "gemma2", "phi3_longrope", "gpt2"] {
        preempted_at_every_step(&cpu, case);
    }
}

fn prompts_on_both_sides_of_a_long_context_share_nothing() {
    // Beyond 32 tokens every position is rotated by other divisors.
    let cpu = cpu();
    let (short, long) = (prompt(30), prompt(40));
    let cold =
        answer(&mut engine(&cpu, "phi3_longrope", config(false, Float::F32)), request(long.clone(), ""));
    let mut engine = engine(&cpu, "phi3_longrope", config(true, Float::F32));
    answer(&mut engine, request(short, ""));
    let warm = answer(&mut engine, request(long.clone(), ""));
    assert_eq!(engine.prefix_stats().hit, 0, "the short prompt's keys are no use to the long one");
    check(&warm, &cold, "another shift");
    check(&answer(&mut engine, request(long, "")), &cold, "the same shift");
    assert_eq!(engine.prefix_stats().hit, 36);
}

fn logits_of_the_last_tokens_are_computed_behind_a_hit() {
    let cpu = cpu();
    let whole = prompt(17);
    for (case, dtype) in [("llama_gqa_llama3", Float::F32), ("gemma2", Float::Bf16), ("bloom", Float::F32)] {
        let mut cold = engine(&cpu, case, config(false, dtype));
        let mut warm = engine(&cpu, case, config(true, dtype));
        answer(&mut warm, request(whole.clone(), ""));
        for (logits, found) in
            [(Pick::Last, 16), (Pick::Some(vec![16, 13]), 12), (Pick::Some(vec![0]), 0), (Pick::All, 0)]
        {
            let (want, batch) =
                (ForwardWant { hidden: Pick::None, logits }, Batch::Ragged(std::slice::from_ref(&whole)));
            let before = warm.prefix_stats().hit;
            let same = warm.forward(batch, &want).unwrap() == cold.forward(batch, &want).unwrap();
            assert!(same, "{case}: {want:?}");
            assert_eq!(warm.prefix_stats().hit - before, found, "{case}: {want:?}");
        }
    }
}

fn what_asks_for_all_positions_computes_them_and_leaves_them_to_others() {
    let cpu = cpu();
    let sizes = EngineConfig { logit_rows: Some(usize::MAX), ..config(true, Float::F32) };
    let mut engine = engine(&cpu, "llama", sizes);
    let want = Want { logits: true, ..Want::default() };
    let mut logits = Vec::new();
    for _ in 0..2 {
        let id = engine.put(Request { want, ..request(prompt(17), "") }).unwrap();
        engine.run().unwrap();
        logits.push(engine.take_kept(id).unwrap().logits);
    }
    assert_eq!(engine.prefix_stats().hit, 0);
    assert!(!logits[0].is_empty());
    assert_eq!(logits[0], logits[1]);
    let skipping = Request { skip_prefix_cache: true, ..request(prompt(17), "") };
    let skipped = answer(&mut engine, skipping);
    assert_eq!(engine.prefix_stats().hit, 0);
    check(&answer(&mut engine, request(prompt(17), "")), &skipped, "not skipping");
    assert_eq!(engine.prefix_stats().hit, 16);
}
