//! Whatever serving does to a request changes no bit of it: who runs beside it, how its prompt is split, the
//! size and order of pages, steps ahead, what the prefix cache has of it, when it gives its pages up, that it
//! is saved and goes on elsewhere, that it is forked. Tokens and logits are those of the request alone.
//!
//! Every length of a hit is taken; all else is chosen anew for each by ENGRAFT_SEED. Some families are
//! chosen, all of them with ENGRAFT_FULL.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{cpu, engine, folder};
use conformance::backends::{self, adapters, cuda, cuda_names, wgpu};
use conformance::dice::Dice;
use engraft_core::backend::Backend;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, Engine, ForwardWant, Output, Pick, Request, Want};
use engraft_core::inject::describe;
use engraft_core::kv::HostPages;
use engraft_core::mem::Float;
use engraft_core::numerics::Mode;
use engraft_core::policy::{Family, HeadSpec, Registry};
use engraft_core::sample::SamplingParams;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const LEN: usize = 17;
const NEW: usize = 6;
const CONTEXT: usize = 48;

fn seed() -> u64 {
    std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Whether everything is run, or what the seed chooses.
fn full() -> bool {
    std::env::var_os("ENGRAFT_FULL").is_some()
}

/// Models that continue text.
fn families() -> Vec<String> {
    let continues = |path: &PathBuf| {
        let files = checkpoint::open(path, Access::Map).unwrap();
        describe(&files, &Registry::default()).is_ok_and(|(spec, ..)| {
            // Those that have an encoder have tests of their own: their texts are not cut.
            let own = spec.encoder.is_none() && spec.family == Family::Decoder;
            own && matches!(spec.head, HeadSpec::Tokens { .. })
        })
    };
    let entries = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.filter(|path| path.join("config.json").exists() && continues(path));
    let mut names: Vec<String> =
        found.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| 3 + (at * 7 + at * at) % 50).collect()
}

fn sampling(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, repetition_penalty: 1.2, seed: Some(9), ..SamplingParams::default() }
}

fn request(prompt: Vec<u32>, new: usize) -> Request {
    Request { prompt, max_new_tokens: new, sampling: sampling(1.2), ..Request::default() }
}

/// What a request gives alone, on an engine that caches nothing and takes every prompt whole.
struct Alone {
    tokens: Vec<u32>,
    /// Rows that follow the last token of the prompt and every sampled one but the last.
    logits: Vec<Vec<f32>>,
}

fn alone<B: Backend>(backend: &Arc<B>, case: &str, dtype: Float, prompt: Vec<u32>) -> Alone {
    let sizes = EngineConfig {
        dtype,
        kv_dtype: dtype,
        max_context: CONTEXT,
        max_seqs: 1,
        logit_rows: Some(usize::MAX),
        prefix_cache: false,
        graphs: false,
        steps_ahead: Some(0),
        ..EngineConfig::default()
    };
    let mut engine = engine(backend, case, sizes);
    let (len, want) = (prompt.len(), Want { logits: true, ..Want::default() });
    let id = engine.put(Request { want, ..request(prompt, NEW) }).unwrap();
    let tokens = engine.run().unwrap().remove(&id).unwrap();
    let rows = engine.take_kept(id).unwrap().logits;
    let logits = rows.chunks_exact(engine.model().spec.vocab).map(<[f32]>::to_vec);
    Alone { tokens, logits: logits.skip(len - 1).collect() }
}

/// Sizes that change no bit.
fn sizes(dice: &mut Dice, dtype: Float) -> EngineConfig {
    let page_size = 1 + dice.below(6);
    let enough = (LEN + NEW).div_ceil(page_size);
    EngineConfig {
        dtype,
        kv_dtype: dtype,
        max_context: CONTEXT,
        max_seqs: 4,
        max_step_tokens: 4 + dice.below(9),
        page_size,
        page_seed: Some(dice.bits()),
        // Room for one, or for all.
        kv_pages: dice.once_in(2).then(|| enough + dice.below(enough)),
        logit_rows: Some(usize::MAX),
        graphs: dice.once_in(2),
        steps_ahead: Some(dice.below(2)),
        ..EngineConfig::default()
    }
}

/// How often something happened.
#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    preempted: u64,
    saved: usize,
    forked: usize,
    /// Pages that came back from a store.
    restored: u64,
}

/// What happens to a request of which `hit` tokens are those of another one before.
fn story<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    dtype: Float,
    alone: &Alone,
    hit: usize,
    counts: &mut Counts,
) {
    let mut dice = Dice::new(seed().wrapping_mul(31) ^ (hit as u64) << 8 ^ case.len() as u64);
    let (whole, sizes) = (prompt(LEN), sizes(&mut dice, dtype));
    let what = format!("{case}, {dtype}, {hit} tokens alike, {sizes:?}");
    let mut engine = engine(backend, case, sizes.clone());
    if dice.once_in(2) {
        // Of all pages, or of a few.
        engine.set_page_store(HostPages::new(if dice.once_in(3) { 4000 } else { 1 << 20 })).unwrap();
    }
    let other: Vec<u32> = whole[hit..].iter().map(|token| 3 + (token - 2) % 50).chain([2]).collect();
    engine.put(request([&whole[..hit], &other[..]].concat(), 1)).unwrap();
    engine.run().unwrap();
    let found = hit.min(LEN - 1) / sizes.page_size * sizes.page_size;
    if dice.once_in(3) {
        // Its logits, behind what is found.
        let want = ForwardWant { hidden: Pick::None, logits: Pick::Last };
        let seen = engine.forward(Batch::Ragged(std::slice::from_ref(&whole)), &want).unwrap();
        assert!(seen[0].logits == alone.logits[0], "{what}: logits of the prompt's last token");
    }
    let before = engine.prefix_stats().hit;
    for mate in 0..dice.below(3) as u32 {
        let mate: Vec<u32> = (0..1 + dice.below(12) as u32).map(|at| 3 + (17 * mate + at) % 50).collect();
        engine.put(Request { cache_salt: "another".into(), ..request(mate, 1 + dice.below(9)) }).unwrap();
    }
    let id = engine.put(request(whole.clone(), NEW)).unwrap();
    let done = serve(&mut engine, id, &mut dice, counts);
    assert_eq!(done.tokens, alone.tokens, "{what}: tokens");
    if let Some(fork) = done.fork {
        assert!(alone.tokens.ends_with(&fork) && fork.len() < NEW, "{what}: a fork gave {fork:?}");
    }
    let hits = engine.prefix_stats().hit - before;
    // Where there is room: mates may have needed the pages.
    assert!(hits >= found as u64 || sizes.kv_pages.is_some(), "{what}: found {hits} of {found}");
    assert_eq!(engine.free_pages().0, engine.free_pages().1, "{what}: pages leak");
    // Behind what it has left in the cache, at any token.
    let at = dice.below(alone.logits.len());
    let text = [&whole[..], &alone.tokens[..at]].concat();
    let want = ForwardWant { hidden: Pick::None, logits: Pick::Last };
    let seen = engine.forward(Batch::Ragged(&[text]), &want).unwrap();
    assert!(seen[0].logits == alone.logits[at], "{what}: logits behind {at} sampled tokens");
    if let Some(saved) = done.saved {
        let mut elsewhere = self::engine(backend, case, self::sizes(&mut dice, dtype));
        let id = elsewhere.restore(&saved).unwrap();
        let rest = elsewhere.run().unwrap().remove(&id).unwrap_or_default();
        assert!(alone.tokens.ends_with(&rest) && rest.len() < NEW + 1, "{what}: restored gave {rest:?}");
        assert!(rest.len() + done.known >= NEW, "{what}: restored gave {rest:?} behind {}", done.known);
    }
    counts.hits += hits;
    counts.preempted += engine.preemptions();
    counts.restored += engine.prefix_stats().restored;
}

/// A request that is served, with a fork and the bytes that it was saved as.
struct Served {
    tokens: Vec<u32>,
    fork: Option<Vec<u32>>,
    saved: Option<Vec<u8>>,
    /// Tokens known when it was saved, at most.
    known: usize,
}

/// Steps until all have ended; gives the pages of one up, saves and forks it at steps that are chosen.
fn serve<B: Backend>(engine: &mut Engine<B>, id: u64, dice: &mut Dice, counts: &mut Counts) -> Served {
    let [preempt, save, fork] = [(); 3].map(|()| dice.below(16));
    let mut tokens: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let (mut out, mut forked, mut saved, mut known): (Vec<Output>, _, _, _) = (Vec::new(), None, None, 0);
    for step in 0.. {
        if step == preempt {
            engine.preempt(id).unwrap();
        }
        if step == save {
            // It may have ended.
            saved = engine.save(id).ok();
            known = tokens.get(&id).map_or(0, Vec::len) + 1;
            counts.saved += usize::from(saved.is_some());
        }
        if step == fork {
            // It may wait, or have ended, or no page may be free.
            forked = engine.fork(id, sampling(1.2), 0).ok();
            counts.forked += usize::from(forked.is_some());
        }
        if engine.is_idle() {
            break;
        }
        engine.step(&mut out).unwrap();
        out.iter().for_each(|o| tokens.entry(o.id).or_default().extend(o.token));
    }
    let fork = forked.map(|fork| tokens.remove(&fork).unwrap_or_default());
    Served { tokens: tokens.remove(&id).unwrap_or_default(), fork, saved, known }
}

fn law<B: Backend>(backend: &Arc<B>, case: &str, dtype: Float, hits: impl Iterator<Item = usize>) -> Counts {
    let (alone, mut counts) = (alone(backend, case, dtype, prompt(LEN)), Counts::default());
    assert_eq!((alone.tokens.len(), alone.logits.len()), (NEW, NEW), "{case}");
    for hit in hits {
        story(backend, case, dtype, &alone, hit, &mut counts);
    }
    counts
}

#[test]
fn nothing_that_serving_does_changes_a_bit() {
    let (cpu, mut dice, families) = (cpu(), Dice::new(seed()), families());
    assert!(families.len() >= 30, "{} families", families.len());
    let full = full();
    let choose = |_| families[dice.below(families.len())].clone();
    let chosen: Vec<String> = if full { families.clone() } else { (0..8).map(choose).collect() };
    println!("seed {}: {chosen:?}", seed());
    let mut all = Counts::default();
    for (i, case) in chosen.iter().enumerate() {
        let dtype = if i % 3 == 2 { Float::Bf16 } else { Float::F32 };
        let counts = law(&cpu, case, dtype, 0..=LEN);
        all.hits += counts.hits;
        all.preempted += counts.preempted;
        all.saved += counts.saved;
        all.forked += counts.forked;
        all.restored += counts.restored;
    }
    let stories = chosen.len() * (LEN + 1);
    println!("{stories} stories: {all:?}");
    assert!(all.hits > 4 * stories as u64 && all.restored > 0, "{all:?}");
    assert!(
        all.preempted > stories as u64 / 4 && all.saved > stories / 4 && all.forked > stories / 10,
        "{all:?}"
    );
}

#[test]
fn nothing_that_serving_does_changes_a_bit_on_devices() {
    let cases = ["llama_gqa_llama3", "gemma2", "mixtral", "bloom", "gpt_oss", "deepseek_v3"];
    let mut dice = Dice::new(seed());
    let mut hits = || {
        let all = if full() { (0..=LEN).collect() } else { vec![dice.below(LEN + 1), LEN] };
        all.into_iter()
    };
    for name in cuda_names() {
        for case in cases {
            law(&cuda(&name, Mode::Invariant).unwrap(), case, Float::F32, hits());
        }
    }
    for name in adapters() {
        for case in cases {
            law(&wgpu(Some(&name), false).unwrap(), case, Float::F32, hits());
        }
    }
    println!("skipped: {:?}", backends::absent());
    let missing = backends::missing_here();
    assert!(missing.is_empty(), "{missing:?} required");
}

/// Prompts of up to 32 tokens are rotated by other divisors than longer ones: a short and a long one that
/// begin alike share no page, those on one side share all there are.
#[test]
fn prompts_on_both_sides_of_the_switch_share_nothing() {
    let cpu = cpu();
    let lens = [29, 31, 32, 33, 34, 38];
    let alone = lens.map(|len| alone(&cpu, "phi3_longrope", Float::F32, prompt(len)));
    for (first, second) in (0..lens.len()).flat_map(|i| (0..lens.len()).map(move |j| (i, j))) {
        for page_size in [1, 4, 5] {
            let sizes = EngineConfig {
                max_context: CONTEXT,
                max_step_tokens: 9,
                page_size,
                page_seed: Some(3),
                ..EngineConfig::default()
            };
            let mut engine = engine(&cpu, "phi3_longrope", sizes);
            for at in [first, second] {
                let before = engine.prefix_stats().hit;
                let id = engine.put(request(prompt(lens[at]), NEW)).unwrap();
                let tokens = engine.run().unwrap().remove(&id).unwrap();
                let what = format!("{} behind {} tokens, pages of {page_size}", lens[second], lens[first]);
                assert_eq!(tokens, alone[at].tokens, "{what}");
                if at == second && first != second {
                    let same_side = (lens[first] > 32) == (lens[second] > 32);
                    let most = lens[first].min(lens[second] - 1) / page_size * page_size;
                    let found = engine.prefix_stats().hit - before;
                    assert_eq!(found, if same_side { most as u64 } else { 0 }, "{what}");
                }
            }
        }
    }
}
