//! Models of an encoder and a decoder in the engine: what a request gives is, bit for bit, what it gives
//! alone, whoever runs next to it, however its pages lie, and wherever it is taken up again.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{self, cpu};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::Error;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{EncoderInput, Engine, ForwardWant, Layers, Output, Pick, Pooling, Request, Want};
use engraft_core::inject::inject;
use engraft_core::kv::HostPages;
use engraft_core::numerics::Mode;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    mates_and_pages_change_nothing,
    chunks_of_the_decoders_prompt_change_nothing,
    the_keys_of_a_text_are_found_again_and_those_of_another_are_not,
    sounds_are_found_again_and_checked,
    sounds_have_lengths_of_their_own,
    steps_have_room_for_a_sound,
    a_preempted_request_goes_on_with_the_same_tokens,
    requests_that_do_not_fit_together_take_turns,
    a_saved_request_goes_on_elsewhere,
    a_saved_sound_is_checked,
    forks_and_continuations_share_what_was_encoded,
    the_penalty_of_repetitions_is_for_the_decoders_tokens,
    profiled_steps_are_counted_once,
    forward_gives_the_rows_of_the_decoder,
    what_does_not_fit_is_refused_by_name,
    targets_are_scored_given_what_the_encoder_reads,
];
pub const ON_CUDA: &[Named] = &named![mates_on_cuda];
pub const ON_WGPU: &[Named] = &named![mates_on_wgpu];

pub(super) const NEW: usize = 7;
const CASES: [&str; 6] = ["t5", "bart", "umt5", "m2m_100", "whisper", "moonshine"];

pub(super) type Texts = BTreeMap<u64, Vec<u32>>;

pub(super) fn config(page_size: usize) -> EngineConfig {
    EngineConfig {
        max_context: 64,
        max_seqs: 4,
        max_step_tokens: 24,
        page_size,
        page_seed: Some(3),
        ..EngineConfig::default()
    }
}

pub(super) fn engine<B: Backend>(backend: &Arc<B>, case: &str, config: EngineConfig) -> Engine<B> {
    let engine = support::engine(backend, case, config);
    assert!(engine.model().encoder.is_some(), "{case}");
    engine
}

/// A text of `len` tokens for the encoder; the decoder begins with `begins` more than its own first token.
pub(super) fn request(seed: u32, len: u32, begins: u32) -> Request {
    let sampling = SamplingParams {
        temperature: 1.3,
        repetition_penalty: 1.1,
        seed: Some(u64::from(seed)),
        ..SamplingParams::default()
    };
    let ids = |count: u32, step: u32| (0..count).map(|i| 3 + (i * step + seed * 5 + i * i) % 48).collect();
    let (prompt, decoder_prompt) = (ids(len, 7), ids(begins, 11));
    Request { prompt, decoder_prompt, max_new_tokens: NEW, sampling, ..Request::default() }
}

/// The same of a model that reads sound: features in the place of the prompt, of its own.
pub(super) fn of(case: &str, request: Request) -> Request {
    let count = match case {
        // 40 frames of 16 bands: 20 rows of the encoder.
        "whisper" => 40 * 16,
        // As many rows as the prompt has tokens, and some samples that make none.
        "moonshine" => 895 + 384 * (request.prompt.len() - 1) + request.prompt.len() % 200,
        _ => return request,
    };
    let mut state = request.prompt.iter().fold(1u32, |hash, id| hash.wrapping_mul(31).wrapping_add(*id));
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let features = (0..count).map(|_| next()).collect();
    Request { prompt: Vec::new(), features, ..request }
}

pub(super) fn steps<B: Backend>(engine: &mut Engine<B>, count: usize, texts: &mut Texts) {
    let mut out: Vec<Output> = Vec::new();
    for _ in 0..count {
        engine.step(&mut out).unwrap();
        out.iter().for_each(|o| texts.entry(o.id).or_default().extend(o.token));
    }
}

/// The rest of everything that runs.
pub(super) fn rest<B: Backend>(engine: &mut Engine<B>, mut texts: Texts) -> Texts {
    for (id, tokens) in engine.run().unwrap() {
        texts.entry(id).or_default().extend(tokens);
    }
    let (free, all) = engine.free_pages();
    assert_eq!(free, all, "pages leak");
    texts
}

pub(super) fn alone<B: Backend>(backend: &Arc<B>, case: &str, request: Request) -> Vec<u32> {
    let mut engine = engine(backend, case, config(16));
    let id = engine.put(request).unwrap();
    rest(&mut engine, Texts::new()).remove(&id).unwrap()
}

/// Requests that come while others decode, in pages of any size.
fn mates<B: Backend>(backend: &Arc<B>, case: &str, page_size: usize) {
    let all = [request(1, 11, 0), request(2, 1, 4), request(3, 8, 9), request(4, 17, 1)];
    let all = all.map(|request| of(case, request));
    let mut engine = engine(backend, case, config(page_size));
    let (mut texts, mut ids) = (Texts::new(), Vec::new());
    for request in &all {
        ids.push(engine.put(request.clone()).unwrap());
        steps(&mut engine, 2, &mut texts);
    }
    let texts = rest(&mut engine, texts);
    for (id, request) in ids.iter().zip(all) {
        assert_eq!(texts[id].len(), NEW, "{case}, pages of {page_size}");
        assert_eq!(texts[id], alone(backend, case, request), "{case}, pages of {page_size}");
    }
}

fn mates_and_pages_change_nothing() {
    let cpu = cpu();
    for case in CASES {
        for page_size in [1, 4, 5, 16] {
            mates(&cpu, case, page_size);
        }
    }
}

/// One of a text and two of sounds.
const ON_DEVICES: [&str; 3] = ["t5", "whisper", "moonshine"];

fn mates_on_cuda() {
    for name in cuda_names() {
        for case in ON_DEVICES {
            mates(&cuda(&name, Mode::Invariant).unwrap(), case, 4);
        }
    }
}

fn mates_on_wgpu() {
    for name in adapters() {
        for case in ON_DEVICES {
            mates(&wgpu(Some(&name), false).unwrap(), case, 4);
        }
    }
}

/// The decoder's prompt is read in as many steps as it takes; the encoder's text never is.
fn chunks_of_the_decoders_prompt_change_nothing() {
    let cpu = cpu();
    for case in ["t5", "bart"] {
        let long = Request {
            want: Want { logits: true, hidden: Layers::All, logprobs: false },
            ..request(5, 6, 13)
        };
        let kept = |max_step_tokens| {
            let sizes = EngineConfig { max_step_tokens, max_seqs: 1, ..config(4) };
            let mut engine = engine(&cpu, case, sizes);
            let id = engine.put(long.clone()).unwrap();
            let texts = rest(&mut engine, Texts::new());
            let kept = engine.take_kept(id).unwrap();
            assert_eq!(kept.hidden[0].len() % (14 + NEW - 1), 0, "a row for every token of the decoder");
            (texts[&id].clone(), kept.logits, kept.hidden)
        };
        assert_eq!(kept(6), kept(64), "{case}");
    }
}

/// The same text is encoded once; one that only begins alike is not taken for it.
fn the_keys_of_a_text_are_found_again_and_those_of_another_are_not() {
    let cpu = cpu();
    for case in ["t5", "mbart"] {
        let mut engine = engine(&cpu, case, config(4));
        let first = request(6, 10, 3);
        let mut other = first.clone();
        other.prompt[9] = 3 + (other.prompt[9] + 1) % 40;
        let mut hits = Vec::new();
        for request in [&first, &first, &other, &first] {
            let before = engine.prefix_stats().hit;
            let id = engine.put((*request).clone()).unwrap();
            let texts = rest(&mut engine, Texts::new());
            assert_eq!(texts[&id], alone(&cpu, case, request.clone()), "{case}");
            hits.push(engine.prefix_stats().hit - before);
        }
        // 12 positions in front; of the decoder's four the last one samples.
        assert_eq!(hits, [0, 12, 0, 12], "{case}");
    }
}

/// A sound is encoded once; one that differs in a single value is not taken for it, and what no encoder of
/// sound reads is refused.
fn sounds_are_found_again_and_checked() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "whisper", config(4));
    let first = of("whisper", request(6, 10, 3));
    let with = |change: &dyn Fn(&mut Vec<f32>)| {
        let mut features = first.features.to_vec();
        change(&mut features);
        Request { features: features.into(), ..first.clone() }
    };
    let other = with(&|features| features[39 * 16 + 15] += 0.5);
    let mut hits = Vec::new();
    for request in [&first, &first, &other, &first] {
        let before = engine.prefix_stats().hit;
        let id = engine.put((*request).clone()).unwrap();
        let texts = rest(&mut engine, Texts::new());
        assert_eq!(texts[&id], alone(&cpu, "whisper", request.clone()));
        hits.push(engine.prefix_stats().hit - before);
    }
    assert_eq!(hits, [0, 20, 0, 20]);
    for (bad, what) in [
        (request(1, 3, 0), "a prompt of 3 tokens"),
        (Request::default(), "0 features; the encoder reads 40 frames of 16"),
        (with(&|features| features.truncate(600)), "600 features"),
        (with(&|features| features[7] = f32::NAN), "feature 7 is NaN"),
    ] {
        let error = engine.put(bad).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let error = self::engine(&cpu, "t5", config(4)).put(first.clone()).unwrap_err().to_string();
    assert!(error.contains("this model reads tokens"), "{error}");
}

/// Sounds of any length are read, down to the shortest that makes a row.
fn sounds_have_lengths_of_their_own() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "moonshine", config(4));
    let sound = |len| of("moonshine", request(6, len, 3));
    let mut hits = Vec::new();
    for request in [sound(10), sound(3), sound(10), sound(3)] {
        let before = engine.prefix_stats().hit;
        let id = engine.put(request.clone()).unwrap();
        let texts = rest(&mut engine, Texts::new());
        assert_eq!(texts[&id], alone(&cpu, "moonshine", request));
        hits.push(engine.prefix_stats().hit - before);
    }
    // Found by the sound itself, in whole pages.
    assert_eq!(hits, [0, 0, 12, 4]);
    let begin = |count: usize| Request { features: sound(10).features[..count].into(), ..sound(10) };
    engine.put(begin(895)).unwrap();
    let error = engine.put(begin(894)).unwrap_err().to_string();
    assert!(error.contains("894 features; the encoder reads 895 to 480000 frames of 1"), "{error}");
    // A step that was asked for holds sounds to it.
    let long = Request { features: vec![0.1; 895 + 384 * 80].into(), ..sound(10) };
    let error = engine.put(long).unwrap_err().to_string();
    assert!(error.contains("81 tokens; the encoder reads 24"), "{error}");
}

/// A step has room for a sound, whatever was asked for.
fn steps_have_room_for_a_sound() {
    let cpu = cpu();
    let sizes = EngineConfig { max_step_tokens: 5, max_seqs: 3, ..config(4) };
    let engine = engine(&cpu, "whisper", sizes);
    assert_eq!(engine.config().max_step_tokens, 20);
}

fn a_preempted_request_goes_on_with_the_same_tokens() {
    let cpu = cpu();
    for case in ["t5", "marian", "whisper", "moonshine"] {
        let [one, other] = [request(7, 9, 2), request(8, 20, 12)].map(|request| of(case, request));
        for (host, prefix_cache) in [(false, true), (false, false), (true, true)] {
            let want = alone(&cpu, case, one.clone());
            for before in 1..NEW {
                let mut engine =
                    engine(&cpu, case, EngineConfig { prefix_cache, kv_pages: Some(12), ..config(4) });
                if host {
                    engine.set_page_store(HostPages::new(1 << 20)).unwrap();
                }
                let id = engine.put(one.clone()).unwrap();
                let mut texts = Texts::new();
                steps(&mut engine, before, &mut texts);
                assert!(engine.preempt(id).unwrap());
                // One that needs nearly all pages goes first: those that were given up are evicted.
                let mate = engine.put(Request { priority: -1, ..other.clone() }).unwrap();
                let texts = rest(&mut engine, texts);
                assert_eq!(texts[&id], want, "{case}, preempted behind {before} steps");
                assert_eq!(texts[&mate], alone(&cpu, case, other.clone()), "{case}");
            }
        }
    }
}

/// Pages run out by themselves: some request gives its own up, and goes on later.
fn requests_that_do_not_fit_together_take_turns() {
    let cpu = cpu();
    let all: Vec<Request> = (0..6).map(|i| request(20 + i, 5 + 3 * i, i)).collect();
    let mut engine = engine(&cpu, "t5", EngineConfig { kv_pages: Some(11), ..config(4) });
    let ids: Vec<u64> = all.iter().map(|request| engine.put(request.clone()).unwrap()).collect();
    let texts = rest(&mut engine, Texts::new());
    for (id, request) in ids.iter().zip(all) {
        assert_eq!(texts[id], alone(&cpu, "t5", request));
    }
}

fn a_saved_request_goes_on_elsewhere() {
    let cpu = cpu();
    for case in ["t5", "bart", "whisper", "moonshine"] {
        let (one, rows) = (of(case, request(9, 11, 2)), if case == "whisper" { 20usize } else { 11 });
        let want = alone(&cpu, case, one.clone());
        for (before, page_size) in [(1, 4), (3, 4), (5, 4), (3, 5), (4, 16)] {
            let (mut from, mut to) = (engine(&cpu, case, config(4)), engine(&cpu, case, config(page_size)));
            let id = from.put(one.clone()).unwrap();
            let mut texts = Texts::new();
            steps(&mut from, before, &mut texts);
            let saved = from.save(id).unwrap();
            let known = texts[&id].len();
            assert_eq!(rest(&mut from, texts)[&id], want, "{case}: saving changed what follows");
            let id = to.restore(&saved).unwrap();
            let restored = rest(&mut to, Texts::new());
            let all = &restored[&id];
            assert!(all.len() <= NEW - known && want.ends_with(all), "{case}, pages of {page_size}");
            // Where what the encoder reads takes as many positions, the whole pages in front are not computed
            // anew.
            let (hit, same) =
                (to.prefix_stats().hit, rows.next_multiple_of(page_size) == rows.next_multiple_of(4));
            assert_eq!(hit >= 12, same, "{case}: {hit}");
        }
    }
}

/// The sound of a saved request is checked as that of any other is.
fn a_saved_sound_is_checked() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "whisper", config(4));
    let id = engine.put(of("whisper", request(9, 11, 2))).unwrap();
    steps(&mut engine, 2, &mut Texts::new());
    let saved = engine.save(id).unwrap();
    rest(&mut engine, Texts::new());
    let header = 12 + u32::from_le_bytes(saved[8..12].try_into().unwrap()) as usize;
    let mut refused = |at: usize, value: f32, what: &str| {
        let mut bytes = saved[..saved.len() - 4].to_vec();
        bytes[header + 4 * at..header + 4 * at + 4].copy_from_slice(&value.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        let error = engine.restore(&bytes).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        assert!(engine.is_idle(), "nothing is queued");
    };
    refused(7, f32::NAN, "feature 7 is NaN");
    refused(639, f32::INFINITY, "feature 639 is inf");
}

fn forks_and_continuations_share_what_was_encoded() {
    let cpu = cpu();
    for case in ["t5", "pegasus", "whisper"] {
        let one = of(case, request(10, 10, 1));
        let mut engine = engine(&cpu, case, config(4));
        let ids = engine.put_several(one.clone(), 3).unwrap();
        let texts = rest(&mut engine, Texts::new());
        for (subsequence, id) in ids.iter().enumerate() {
            let own = Request { subsequence: subsequence as u32, ..one.clone() };
            assert_eq!(texts[id], alone(&cpu, case, own), "{case}: continuation {subsequence}");
        }
        let first = engine.put(Request { sampling: SamplingParams::default(), ..one.clone() }).unwrap();
        let mut texts = Texts::new();
        steps(&mut engine, 3, &mut texts);
        let before = texts.get(&first).map_or(0, Vec::len);
        let fork = engine.fork(first, SamplingParams::default(), 0).unwrap();
        let texts = rest(&mut engine, texts);
        assert_eq!(texts[&first][before..], texts[&fork], "{case}");
    }
}

/// What the encoder has read counts as no repetition, and what the decoder has is one.
fn the_penalty_of_repetitions_is_for_the_decoders_tokens() {
    let cpu = cpu();
    let first = |prompt: Vec<u32>, decoder_prompt: Vec<u32>, repetition_penalty: f32| {
        let sampling = SamplingParams { repetition_penalty, ..SamplingParams::default() };
        let plain = Request { prompt, decoder_prompt, max_new_tokens: 1, sampling, ..Request::default() };
        alone(&cpu, "t5", plain)[0]
    };
    let (mut looked, mut again_without) = (0, 0);
    for seed in 0..40 {
        let mut prompt = request(seed, 7, 0).prompt;
        let likely = first(prompt.clone(), vec![], 1.0);
        prompt[6] = likely;
        // Texts whose first token stays the same where they have it themselves.
        if first(prompt.clone(), vec![], 1.0) != likely {
            continue;
        }
        looked += 1;
        assert_eq!(first(prompt.clone(), vec![], 1e4), likely);
        let again = first(prompt.clone(), vec![likely], 1.0);
        let other = first(prompt, vec![likely], 1e4);
        again_without += usize::from(again == likely);
        assert_ne!(other, likely, "a token that the decoder has is taken again");
    }
    assert!(looked > 2 && again_without > 0, "{looked} texts, {again_without} of them repeat a token");
}

/// The step that runs the encoder is one, with what both of them do.
fn profiled_steps_are_counted_once() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "t5", config(4));
    engine.set_profiling(true);
    engine.put(request(13, 9, 0)).unwrap();
    rest(&mut engine, Texts::new());
    assert_eq!(engine.model_times().len(), NEW);
    let profile = engine.take_profile().unwrap();
    let dense = profile.spans.iter().filter(|span| span.op.name() == "attend_dense").count();
    assert_eq!(dense, engine.model().encoder.as_ref().unwrap().blocks.len());
}

/// Logits and hidden states of a decoder's tokens, given what the encoder read.
fn forward_gives_the_rows_of_the_decoder() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "t5", config(4));
    let text = |seed| {
        let Request { prompt, decoder_prompt, .. } = request(seed, 9, 4);
        EncoderInput { ids: prompt, decoder: decoder_prompt, ..EncoderInput::default() }
    };
    let want = ForwardWant { hidden: Pick::Last, logits: Pick::All };
    let vocab = engine.model().spec.vocab;
    let both = engine.forward_texts(&[text(11), text(12)], &want).unwrap();
    let one = engine.forward_texts(&[text(12)], &want).unwrap();
    assert_eq!((both.len(), both[0].logits.len()), (2, 5 * vocab));
    assert_eq!(both[1], one[0]);
    assert_ne!(both[0].logits, both[1].logits);
    let last = ForwardWant { hidden: Pick::None, logits: Pick::Last };
    let last = engine.forward_texts(&[text(12)], &last).unwrap();
    assert_eq!(last[0].logits[..], one[0].logits[4 * vocab..]);
}

fn what_does_not_fit_is_refused_by_name() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "bart", EngineConfig { max_context: 96, ..config(4) });
    let refused = |outcome: Result<u64, Error>, what: &[&str]| {
        let text = outcome.unwrap_err().to_string();
        assert!(what.iter().all(|what| text.contains(what)), "{text}");
    };
    refused(engine.put(request(1, 0, 0)), &["empty"]);
    refused(engine.put(request(1, 25, 0)), &["25 tokens", "24", "max_step_tokens"]);
    refused(engine.put(request(1, 8, 48)), &["49 tokens", "8", "48"]);
    let beyond = Request { decoder_prompt: vec![9999], ..request(1, 3, 0) };
    refused(engine.put(beyond), &["9999", "vocabulary"]);
    let files =
        checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/llama"), Access::Map).unwrap();
    let model =
        inject(&cpu, &files, &Registry::default(), 64, LoadOptions::default(), &mut |_, _| {}).unwrap();
    let mut plain = Engine::new(cpu.clone(), model, config(4)).unwrap();
    refused(plain.put(request(1, 3, 2)), &["decoder", "no encoder"]);
    let embedded = engine.embed(&[EncoderInput::from(vec![3, 4])], Pooling::Mean, false);
    refused(embedded.map(|_| 0), &["embed", "forward"]);
    refused(engine.score(&[vec![3, 4]]).map(|_| 0), &["no tokens to score", "`decoder`"]);
    refused(engine.encode(&[EncoderInput::from(vec![3])], Layers::Last).map(|_| 0), &["encode"]);
    assert!(plain.is_idle() && engine.is_idle(), "nothing is queued");
}

/// Every token that a decoder writes has a score: the logits of the row before it say so.
fn targets_are_scored_given_what_the_encoder_reads() {
    let cpu = cpu();
    for case in ["t5", "bart", "marian", "whisper"] {
        let mut engine = engine(&cpu, case, EngineConfig { logit_rows: Some(usize::MAX), ..config(4) });
        let input = |seed, len, begins| {
            let Request { prompt: ids, features, decoder_prompt: decoder, .. } =
                of(case, request(seed, len, begins));
            EncoderInput { ids, features, decoder, ..EncoderInput::default() }
        };
        let inputs = [input(1, 9, 5), input(2, 3, 1), input(3, 12, 8)];
        let scores = engine.score(&inputs).unwrap();
        let want = ForwardWant { hidden: Pick::None, logits: Pick::All };
        let rows = engine.forward_texts(&inputs, &want).unwrap();
        let cols = engine.model().spec.logit_cols();
        for ((input, scores), one) in inputs.iter().zip(&scores).zip(&rows) {
            assert_eq!(scores.len(), input.decoder.len(), "{case}");
            for (score, (id, row)) in scores.iter().zip(input.decoder.iter().zip(one.logits.chunks(cols))) {
                let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
                let want = f64::from(row[*id as usize]) - sum.ln();
                assert!((f64::from(*score) - want).abs() < 1e-4, "{case}: {score} for {want}");
            }
        }
    }
}
