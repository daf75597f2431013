//! Rules for tokens, which the host applies, and probabilities of sampled tokens: what a request gives by
//! them is, bit for bit, what it gives alone.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::encoder_decoder::{NEW, Texts, alone, config, engine, of, request, rest, steps};
use super::support::cpu;
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::named;
use conformance::trials::Named;
use engraft_core::backend::Backend;
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request, Want};
use engraft_core::numerics::Mode;
use engraft_core::sample::{Rules, SamplingParams, TimeRules};
use std::sync::Arc;

/// The laws, by name.
pub const TESTS: &[Named] = &named![
    rules_hold_everywhere,
    empty_rules_change_nothing,
    forks_go_on_by_rules,
    probabilities_of_tokens_are_those_of_their_logits,
];
pub const ON_CUDA: &[Named] = &named![rules_hold_on_cuda];
pub const ON_WGPU: &[Named] = &named![rules_hold_on_wgpu];

/// Tokens and their probabilities.
type Ruled = (Vec<u32>, Vec<f32>);

/// A request with rules of every sort, for a vocabulary of so many tokens.
fn ruled(case: &str, seed: u32, vocab: u32) -> Request {
    let (first, none, end) = (vocab - 20, vocab - 21, vocab - 22);
    let times = Some(TimeRules { first, none, end, max_initial: Some(3) });
    let rules = Rules {
        suppress: (0..vocab - 30).step_by(2).collect(),
        begin_suppress: vec![first],
        times,
        ..Rules::default()
    };
    let base = of(case, request(seed, 9, 2));
    let sampling = SamplingParams { repetition_penalty: 1.0, ..base.sampling };
    let want = Want { logprobs: true, ..Want::default() };
    Request { rules: Some(Arc::new(rules)), want, sampling, ..base }
}

fn ruled_rest<B: Backend>(engine: &mut Engine<B>, id: u64, texts: Texts) -> Ruled {
    let tokens = rest(engine, texts).remove(&id).unwrap();
    (tokens, engine.take_kept(id).unwrap().logprobs)
}

fn ruled_alone<B: Backend>(backend: &Arc<B>, case: &str, request: &Request) -> Ruled {
    let mut engine = engine(backend, case, config(16));
    let id = engine.put(request.clone()).unwrap();
    ruled_rest(&mut engine, id, Texts::new())
}

/// Holds what a request of [`ruled`] gave to its rules.
fn is_by_rules(of: &str, (tokens, logprobs): &Ruled, vocab: u32) {
    let first = vocab - 20;
    assert_eq!((tokens.len(), logprobs.len()), (NEW, NEW), "{of}");
    assert!(tokens[0] > first && tokens[0] <= first + 3 && tokens[1] < first, "{of}: {tokens:?}");
    assert!(tokens.iter().all(|id| *id >= vocab - 30 || id % 2 == 1), "{of}: {tokens:?}");
    let times: Vec<u32> = tokens.iter().copied().filter(|id| *id >= first).collect();
    assert!(times.is_sorted(), "{of}: {tokens:?}");
    assert!(logprobs.iter().all(|p| *p <= 0.0 && p.is_finite()), "{of}: {logprobs:?}");
}

/// Rules hold whoever runs next to a request, however far steps run ahead, wherever it is taken up.
fn rules_hold_everywhere() {
    let cpu = cpu();
    for case in ["t5", "whisper"] {
        let vocab = engine(&cpu, case, config(4)).model().spec.vocab as u32;
        let all = [1, 2, 3].map(|seed| ruled(case, seed, vocab));
        let want = all.each_ref().map(|request| ruled_alone(&cpu, case, request));
        want.iter().for_each(|got| is_by_rules(case, got, vocab));
        let mate = of(case, request(9, 5, 3));
        let plain = alone(&cpu, case, mate.clone());
        for ahead in [0, 1] {
            let sizes = EngineConfig { steps_ahead: Some(ahead), ..config(4) };
            let mut engine = engine(&cpu, case, sizes);
            let (mut texts, mut ids) = (Texts::new(), Vec::new());
            let other = engine.put(mate.clone()).unwrap();
            for request in &all {
                ids.push(engine.put(request.clone()).unwrap());
                steps(&mut engine, 1, &mut texts);
            }
            assert!(engine.preempt(ids[0]).unwrap(), "{case}");
            steps(&mut engine, 1, &mut texts);
            let texts = rest(&mut engine, texts);
            assert_eq!(texts[&other], plain, "{case}");
            for (id, want) in ids.iter().zip(&want) {
                let got = (texts[id].clone(), engine.take_kept(*id).unwrap().logprobs);
                assert_eq!(got, *want, "{case}, {ahead} steps ahead");
            }
        }
        let (mut from, mut to) = (engine(&cpu, case, config(4)), engine(&cpu, case, config(5)));
        let id = from.put(all[1].clone()).unwrap();
        let mut texts = Texts::new();
        steps(&mut from, 4, &mut texts);
        let saved = from.save(id).unwrap();
        let known = from.sampled(id).unwrap().len();
        assert!(known > 1, "{case}: {known}");
        let again = to.restore(&saved).unwrap();
        assert!(to.want(again).logprobs);
        let (tokens, logprobs) = ruled_rest(&mut to, again, Texts::new());
        assert_eq!((&tokens[..], logprobs), (&want[1].0[known..], want[1].1.clone()), "{case}");
    }
}

/// Rules that forbid nothing change no token: the host samples, under a repetition penalty, as devices do.
fn empty_rules_change_nothing() {
    let cpu = cpu();
    for case in ["t5", "whisper"] {
        for (seed, penalty) in [(1, 1.0), (2, 1.3), (3, 4.0)] {
            let base = of(case, request(seed, 9, 2));
            let sampling = SamplingParams { repetition_penalty: penalty, ..base.sampling };
            let plain = Request { sampling, ..base };
            let ruled = Request { rules: Some(Arc::new(Rules::default())), ..plain.clone() };
            assert_eq!(alone(&cpu, case, ruled), alone(&cpu, case, plain), "{case} under {penalty}");
        }
    }
}

/// A fork goes on by the rules of what it was forked from, and can be saved as that can.
fn forks_go_on_by_rules() {
    let (cpu, case) = (cpu(), "whisper");
    let mut from = engine(&cpu, case, EngineConfig { steps_ahead: Some(0), ..config(4) });
    let request = ruled(case, 1, from.model().spec.vocab as u32);
    let whole = ruled_alone(&cpu, case, &request).0;
    let first = from.put(request.clone()).unwrap();
    let mut texts = Texts::new();
    steps(&mut from, 4, &mut texts);
    let known = texts[&first].len();
    assert!((1..NEW - 1).contains(&known), "{known}");
    let fork = from.fork(first, request.sampling, request.subsequence).unwrap();
    steps(&mut from, 1, &mut texts);
    let mut to = engine(&cpu, case, config(5));
    let again = to.restore(&from.save(fork).unwrap()).unwrap();
    let behind = known + texts[&fork].len();
    assert_eq!(rest(&mut to, Texts::new())[&again], whole[behind..]);
    let texts = rest(&mut from, texts);
    assert_eq!(texts[&first], whole);
    assert_eq!(texts[&fork], whole[known..]);
}

/// The probabilities of tokens that devices sample are those of their rows of logits.
fn probabilities_of_tokens_are_those_of_their_logits() {
    let cpu = cpu();
    let mut engine = engine(&cpu, "t5", config(4));
    let (mut plain, mut both) = (request(4, 9, 1), request(4, 9, 1));
    plain.want.logprobs = true;
    (both.want.logprobs, both.want.logits) = (true, true);
    let cols = engine.model().spec.logit_cols();
    let ids = [plain, both].map(|request| engine.put(request).unwrap());
    let texts = rest(&mut engine, Texts::new());
    let [one, all] = ids.map(|id| engine.take_kept(id).unwrap());
    assert_eq!((one.logprobs.len(), &one.logprobs), (NEW, &all.logprobs));
    let rows = all.logits.chunks(cols).skip(all.logits.len() / cols - NEW);
    for ((logprob, id), row) in one.logprobs.iter().zip(&texts[&ids[0]]).zip(rows) {
        let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
        let want = f64::from(row[*id as usize]) - sum.ln();
        assert!((f64::from(*logprob) - want).abs() < 1e-4, "{logprob} for {want}");
    }
}

/// As [`ruled_alone`], with another request in the same captured steps.
fn ruled_with_a_mate<B: Backend>(backend: &Arc<B>, case: &str, request: &Request) -> Ruled {
    let mut engine = engine(backend, case, config(16));
    engine.put(of(case, self::request(9, 5, 3))).unwrap();
    let id = engine.put(request.clone()).unwrap();
    ruled_rest(&mut engine, id, Texts::new())
}

/// The host reads the rows of logits that captured steps leave on a device.
fn rules_hold_on_cuda() {
    let (cpu, case) = (cpu(), "whisper");
    let vocab = engine(&cpu, case, config(4)).model().spec.vocab as u32;
    let request = ruled(case, 2, vocab);
    let want = ruled_alone(&cpu, case, &request);
    for name in cuda_names() {
        let gpu = cuda(&name, Mode::Reference).unwrap();
        assert_eq!(ruled_alone(&gpu, case, &request), want, "{name}");
        assert_eq!(ruled_with_a_mate(&gpu, case, &request), want, "{name}");
    }
}

/// Its sums are others than the CPU's, and so may its tokens be.
fn rules_hold_on_wgpu() {
    let case = "whisper";
    let vocab = engine(&cpu(), case, config(4)).model().spec.vocab as u32;
    let request = ruled(case, 2, vocab);
    for name in adapters() {
        let gpu = wgpu(Some(&name), false).unwrap();
        let alone = ruled_alone(&gpu, case, &request);
        is_by_rules(&name, &alone, vocab);
        assert_eq!(ruled_with_a_mate(&gpu, case, &request), alone, "{name}");
    }
}
