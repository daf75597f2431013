//! Whatever serving does to a request changes no bit of it: who runs beside it, how its prompt is split, the
//! size and order of pages, steps ahead, what the prefix cache has of it, when it gives its pages up, that it
//! is saved and goes on elsewhere, that it is forked. Tokens and logits are those of the request alone.
//!
//! Every length of a hit is taken; all else is chosen anew for each by ENGRAFT_SEED. Some families are
//! chosen, all of them with ENGRAFT_FULL. For one family whatever happens between two steps happens before
//! every step. Each event happens in a story that does not depend on the seed, too, on the CPU and on every
//! device: no law holds because nothing has happened. `switch` has the same for texts on both sides of the
//! length from which LongRoPE rotates otherwise.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::support::{cpu, engine, folder};
use conformance::backends::{adapters, cuda, cuda_names, wgpu};
use conformance::dice::Dice;
use conformance::named;
use conformance::trials::Named;
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

/// The laws, by name.
pub const TESTS: &[Named] =
    &named![nothing_that_serving_does_changes_a_bit, whatever_happens_before_any_step_changes_no_bit,];
pub const ON_CUDA: &[Named] = &named![nothing_that_serving_does_changes_a_bit_on_cuda];
pub const ON_WGPU: &[Named] = &named![nothing_that_serving_does_changes_a_bit_on_wgpu];

const LEN: usize = 17;
pub(super) const NEW: usize = 6;
pub(super) const CONTEXT: usize = 48;
/// Prompts of `phi3_longrope` of more tokens are rotated by other divisors; no other case has such a length.
pub(super) const SWITCH: usize = 32;
/// A step that no story has.
const NEVER: usize = usize::MAX;

fn seed() -> u64 {
    std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Whether everything is run, or what the seed chooses.
pub(super) fn full() -> bool {
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

pub(super) fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| 3 + (at * 7 + at * at) % 50).collect()
}

fn sampling(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, repetition_penalty: 1.2, seed: Some(9), ..SamplingParams::default() }
}

pub(super) fn request(prompt: Vec<u32>, new: usize) -> Request {
    Request { prompt, max_new_tokens: new, sampling: sampling(1.2), ..Request::default() }
}

/// What a request gives alone, on an engine that caches nothing and takes every prompt whole.
pub(super) struct Alone {
    prompt: Vec<u32>,
    pub(super) tokens: Vec<u32>,
    /// Rows that follow the last token of the prompt and every sampled one but the last.
    logits: Vec<Vec<f32>>,
}

pub(super) fn alone<B: Backend>(backend: &Arc<B>, case: &str, dtype: Float, prompt: Vec<u32>) -> Alone {
    let sizes = EngineConfig {
        dtype,
        kv_dtype: dtype.into(),
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
    let id = engine.put(Request { want, ..request(prompt.clone(), NEW) }).unwrap();
    let tokens = engine.run().unwrap().remove(&id).unwrap();
    let rows = engine.take_kept(id).unwrap().logits;
    let logits = rows.chunks_exact(engine.model().spec.vocab).map(<[f32]>::to_vec);
    Alone { prompt, tokens, logits: logits.skip(len - 1).collect() }
}

/// Sizes that change no bit of a request whose prompt has so many tokens.
fn sizes(dice: &mut Dice, dtype: Float, len: usize) -> EngineConfig {
    let page_size = 1 + dice.below(6);
    let enough = (len + NEW).div_ceil(page_size);
    EngineConfig {
        dtype,
        kv_dtype: dtype.into(),
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

/// What serving may do to a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// A part of its prompt is found in the prefix cache.
    Hit,
    /// It gives its pages up between two steps.
    Preempted,
    /// It is saved, and another engine goes on with the keys and values of the bytes.
    Saved,
    Forked,
    /// Pages of its prompt come back from a store.
    Swapped,
}

pub(super) const EVENTS: [Event; 5] =
    [Event::Swapped, Event::Preempted, Event::Saved, Event::Forked, Event::Hit];

/// How often something happened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    hits: u64,
    /// Of all requests, for whatever reason.
    preempted: u64,
    /// Of the request alone, between two steps.
    given_up: u64,
    saved: u64,
    /// Positions that came with the bytes of a saved request.
    imported: u64,
    forked: u64,
    /// Pages that came back from a store.
    restored: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.preempted += other.preempted;
        self.given_up += other.given_up;
        self.saved += other.saved;
        self.imported += other.imported;
        self.forked += other.forked;
        self.restored += other.restored;
    }

    fn of(&self, event: Event) -> u64 {
        match event {
            Event::Hit => self.hits,
            Event::Preempted => self.given_up,
            // An engine that computed all positions anew would have ignored the bytes.
            Event::Saved => self.saved.min(self.imported),
            Event::Forked => self.forked,
            Event::Swapped => self.restored,
        }
    }

    /// A law that holds because something never happened says nothing.
    pub(super) fn assert_all(&self, place: &str) {
        for event in EVENTS {
            assert!(self.of(event) > 0, "{place}: {event:?} has never happened: {self:?}");
        }
    }
}

/// What happens to a request, and where.
#[derive(Debug)]
pub(super) struct Story {
    /// Tokens that it has in common with a request before.
    hit: usize,
    sizes: EngineConfig,
    /// Bytes that a store for pages has room for, where there is one.
    store: Option<usize>,
    /// Whether the logits behind its prompt are asked for before it comes.
    asked: bool,
    mates: Vec<Request>,
    /// Whether its mates have ended when it comes.
    ended: bool,
    /// Steps before which it gives its pages up, is saved, and is forked.
    at: [usize; 3],
    /// How many of its sampled tokens a later text begins with, behind its prompt.
    later: usize,
    /// Of the engine that restores it.
    elsewhere: EngineConfig,
    /// What has to happen in it.
    sure: Option<Event>,
}

/// The seed's story of a request whose prompt has so many tokens, of which `hit` are those of another one
/// before.
pub(super) fn by_seed(case: &str, dtype: Float, len: usize, hit: usize) -> Story {
    let mut dice = Dice::new(seed().wrapping_mul(31) ^ (hit as u64) << 8 ^ case.len() as u64);
    let sizes = sizes(&mut dice, dtype, len);
    // Of all pages, or of a few.
    let store = dice.once_in(2).then(|| if dice.once_in(3) { 4000 } else { 1 << 20 });
    let asked = dice.once_in(3);
    let mut mates = Vec::new();
    for mate in 0..dice.below(3) as u32 {
        let mate: Vec<u32> = (0..1 + dice.below(12) as u32).map(|at| 3 + (17 * mate + at) % 50).collect();
        mates.push(Request { cache_salt: "another".into(), ..request(mate, 1 + dice.below(9)) });
    }
    let at = [(); 3].map(|()| dice.below(16));
    let (mut later, elsewhere) = (dice.below(NEW), self::sizes(&mut dice, dtype, len));
    if len <= SWITCH {
        // A prompt beyond it is another text, with other logits.
        later = later.min(SWITCH - len);
    }
    Story { hit, sizes, store, asked, mates, ended: false, at, later, elsewhere, sure: None }
}

/// A story in which `event` happens to a request whose prompt has so many tokens, whatever the seed.
pub(super) fn fixed(event: Event, dtype: Float, len: usize) -> Story {
    let page_size = 4;
    let sizes = EngineConfig {
        dtype,
        kv_dtype: dtype.into(),
        max_context: CONTEXT,
        max_seqs: 4,
        max_step_tokens: 8,
        page_size,
        page_seed: Some(3),
        logit_rows: Some(usize::MAX),
        steps_ahead: Some(1),
        ..EngineConfig::default()
    };
    let story = Story {
        hit: len,
        elsewhere: EngineConfig { page_size: 3, ..sizes.clone() },
        sizes,
        store: None,
        asked: false,
        mates: Vec::new(),
        ended: false,
        at: [NEVER; 3],
        later: 2,
        sure: Some(event),
    };
    // All of its prompt but a token is found: before this step it has two tokens, and one in flight.
    let step = 3;
    match event {
        Event::Hit => story,
        Event::Preempted => Story { at: [step, NEVER, NEVER], ..story },
        Event::Saved => Story { at: [NEVER, step, NEVER], ..story },
        Event::Forked => Story { at: [NEVER, NEVER, step], ..story },
        Event::Swapped => {
            // One of another salt takes all pages of the pool, which every page of the prompt leaves for it.
            let mate: Vec<u32> = (0..len as u32).map(|at| 3 + (at + 20) % 50).collect();
            let mates = vec![Request { cache_salt: "another".into(), ..request(mate, NEW) }];
            let kv_pages = Some((len + NEW).div_ceil(page_size));
            let sizes = EngineConfig { kv_pages, ..story.sizes.clone() };
            Story { sizes, store: Some(1 << 20), mates, ended: true, ..story }
        }
    }
}

/// The logits that follow a text.
fn logits_behind<B: Backend>(engine: &mut Engine<B>, text: Vec<u32>) -> Vec<f32> {
    let want = ForwardWant { hidden: Pick::None, logits: Pick::Last };
    engine.forward(Batch::Ragged(&[text]), &want).unwrap().remove(0).logits
}

/// Holds a request to what it gives alone; how many steps it took until all had ended.
fn run<B: Backend>(backend: &Arc<B>, case: &str, alone: &Alone, story: &Story, counts: &mut Counts) -> usize {
    let (whole, hit, sizes) = (&alone.prompt, story.hit, &story.sizes);
    let len = whole.len();
    let what = format!("{case}, {hit} of {len} tokens alike, events before steps {:?}, {sizes:?}", story.at);
    let mut engine = engine(backend, case, sizes.clone());
    if let Some(bytes) = story.store {
        engine.set_page_store(HostPages::new(bytes)).unwrap();
    }
    let other: Vec<u32> = whole[hit..].iter().map(|token| 3 + (token - 2) % 50).chain([2]).collect();
    engine.put(request([&whole[..hit], &other[..]].concat(), 1)).unwrap();
    engine.run().unwrap();
    let found = hit.min(len - 1) / sizes.page_size * sizes.page_size;
    if story.asked {
        // Behind what is found of it.
        let seen = logits_behind(&mut engine, whole.clone());
        assert!(seen == alone.logits[0], "{what}: logits of the prompt's last token");
    }
    let before = engine.prefix_stats().hit;
    for mate in &story.mates {
        engine.put(mate.clone()).unwrap();
    }
    if story.ended {
        engine.run().unwrap();
    }
    let id = engine.put(request(whole.clone(), NEW)).unwrap();
    let done = serve(&mut engine, id, story.at, counts);
    assert_eq!(done.tokens, alone.tokens, "{what}: tokens");
    if let Some((known, fork)) = done.fork {
        assert!((1..NEW).contains(&known), "{what}: forked behind {known} tokens");
        assert_eq!(fork, alone.tokens[known..], "{what}: a fork behind {known} tokens");
    }
    let hits = engine.prefix_stats().hit - before;
    // Where there is room: mates may have needed the pages.
    assert!(hits >= found as u64 || sizes.kv_pages.is_some(), "{what}: found {hits} of {found}");
    assert_eq!(engine.free_pages().0, engine.free_pages().1, "{what}: pages leak");
    // Behind what it has left in the cache, at any token.
    let text = [&whole[..], &alone.tokens[..story.later]].concat();
    let seen = logits_behind(&mut engine, text);
    assert!(seen == alone.logits[story.later], "{what}: logits behind {} sampled tokens", story.later);
    if let Some((known, bytes)) = done.saved {
        let mut elsewhere = self::engine(backend, case, story.elsewhere.clone());
        let id = elsewhere.restore(&bytes).unwrap();
        let rest = elsewhere.run().unwrap().remove(&id).unwrap_or_default();
        assert!(known < NEW, "{what}: saved behind {known} tokens");
        assert_eq!(rest, alone.tokens[known..], "{what}: restored behind {known} tokens");
        counts.imported += elsewhere.prefix_stats().hit;
    }
    counts.hits += hits;
    counts.preempted += engine.preemptions();
    counts.restored += engine.prefix_stats().restored;
    done.steps
}

/// A request that is served.
struct Served {
    tokens: Vec<u32>,
    /// How many tokens were known when it was forked, and those of the fork.
    fork: Option<(usize, Vec<u32>)>,
    /// How many tokens were known when it was saved, and the bytes.
    saved: Option<(usize, Vec<u8>)>,
    steps: usize,
}

/// Tokens of a request that is saved or forked now: those that are reported, and what was in flight.
fn known<B: Backend>(engine: &Engine<B>, id: u64, reported: usize) -> usize {
    let (known, ahead) = (engine.sampled(id).unwrap().len(), engine.steps_ahead());
    let some = (reported..=reported + ahead).contains(&known);
    assert!(some, "request {id}: {known} tokens, of which {reported} are reported, {ahead} ahead");
    known
}

/// Steps until all have ended; gives the pages of one up, saves and forks it before the steps `at`.
fn serve<B: Backend>(engine: &mut Engine<B>, id: u64, at: [usize; 3], counts: &mut Counts) -> Served {
    let [preempt, save, fork] = at;
    let mut tokens: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let (mut out, mut steps): (Vec<Output>, usize) = (Vec::new(), 0);
    let (mut saved, mut forked) = (None, None);
    loop {
        let reported = tokens.get(&id).map_or(0, Vec::len);
        if steps == preempt {
            // It may wait, or have ended.
            counts.given_up += u64::from(engine.preempt(id).unwrap());
        }
        // It may have ended.
        if steps == save
            && let Ok(bytes) = engine.save(id)
        {
            saved = Some((known(engine, id, reported), bytes));
            counts.saved += 1;
        }
        // It may wait, or have ended, or no page may be free.
        if steps == fork
            && let Ok(new) = engine.fork(id, sampling(1.2), 0)
        {
            forked = Some((known(engine, id, reported), new));
            counts.forked += 1;
        }
        if engine.is_idle() {
            break;
        }
        engine.step(&mut out).unwrap();
        out.iter().for_each(|o| tokens.entry(o.id).or_default().extend(o.token));
        steps += 1;
    }
    let fork = forked.map(|(known, new)| (known, tokens.remove(&new).unwrap_or_default()));
    Served { tokens: tokens.remove(&id).unwrap_or_default(), fork, saved, steps }
}

/// What every story of a case is compared with.
fn expected<B: Backend>(backend: &Arc<B>, case: &str, dtype: Float, len: usize) -> Alone {
    let alone = alone(backend, case, dtype, prompt(len));
    assert_eq!((alone.tokens.len(), alone.logits.len()), (NEW, NEW), "{case}");
    alone
}

/// Holds requests whose prompt has so many tokens to what they give alone.
pub(super) fn law<B: Backend>(
    backend: &Arc<B>,
    case: &str,
    dtype: Float,
    len: usize,
    stories: &[Story],
) -> Counts {
    let (alone, mut all) = (expected(backend, case, dtype, len), Counts::default());
    for story in stories {
        let mut counts = Counts::default();
        run(backend, case, &alone, story, &mut counts);
        if let Some(event) = story.sure {
            assert!(counts.of(event) > 0, "{case}, {dtype}: no {event:?} in a story of it: {counts:?}");
        }
        all.add(&counts);
    }
    all
}

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
        let mut stories: Vec<Story> = (0..=LEN).map(|hit| by_seed(case, dtype, LEN, hit)).collect();
        stories.push(fixed(EVENTS[i % EVENTS.len()], dtype, LEN));
        all.add(&law(&cpu, case, dtype, LEN, &stories));
    }
    let stories = (chosen.len() * (LEN + 1)) as u64;
    println!("{stories} stories, and {} of one event: {all:?}", chosen.len());
    all.assert_all("the CPU");
    assert!(all.hits > 4 * stories, "{all:?}");
    assert!(all.preempted > stories / 4 && all.saved > stories / 4 && all.forked > stories / 10, "{all:?}");
}

/// Of the first family that the seed chooses: pages are given up before every step of a request; it is saved
/// and forked before every step.
fn whatever_happens_before_any_step_changes_no_bit() {
    let (cpu, mut dice, families) = (cpu(), Dice::new(seed()), families());
    let case = &families[dice.below(families.len())];
    let alone = expected(&cpu, case, Float::F32, LEN);
    let hits: Vec<usize> = if full() { (0..=LEN).collect() } else { vec![dice.below(LEN), LEN] };
    println!("seed {}: {case}, {hits:?} tokens alike", seed());
    for hit in hits {
        for (ahead, roomy) in [(0, true), (1, true), (1, false)] {
            let mut story = Story { at: [NEVER; 3], ..by_seed(case, Float::F32, LEN, hit) };
            let enough = (LEN + NEW).div_ceil(story.sizes.page_size);
            story.sizes.steps_ahead = Some(ahead);
            story.sizes.kv_pages = (!roomy).then_some(enough);
            let steps = run(&cpu, case, &alone, &story, &mut Counts::default());
            let mut all = Counts::default();
            for step in 0..steps {
                for at in [[step, NEVER, NEVER], [NEVER, step, step]] {
                    story.at = at;
                    run(&cpu, case, &alone, &story, &mut all);
                }
            }
            // It runs before every step that samples but the first, and can be saved before all of them; for
            // want of pages it waits, and has no fork.
            let (every, later) = (NEW as u64, NEW as u64 - 1);
            let enough = all.given_up >= later && all.saved >= every && all.forked >= later;
            assert!(enough || !roomy, "{case}, {hit} tokens alike, {ahead} ahead, {steps} steps: {all:?}");
        }
    }
}

/// Cases that devices run, and tokens of their prompts: of one the text passes LongRoPE's switch.
const ON_DEVICES: [(&str, usize); 8] = [
    ("llama_gqa_llama3", LEN),
    ("gemma2", LEN),
    ("mixtral", LEN),
    ("bloom", LEN),
    ("gpt_oss", LEN),
    ("deepseek_v3", LEN),
    ("longcat_flash", LEN),
    ("phi3_longrope", SWITCH - 2),
];

/// The law for some cases on one device, where all that may happen to a request does; `make` gets the number
/// of the case.
fn on_device<B: Backend>(name: &str, make: impl Fn(usize) -> Arc<B>, dice: &mut Dice) {
    let (dtype, mut all) = (Float::F32, Counts::default());
    for (i, (case, len)) in ON_DEVICES.into_iter().enumerate() {
        // About as many of a longer prompt.
        let all_hits = (0..=len).step_by(len.div_ceil(LEN));
        let hits: Vec<usize> = if full() { all_hits.collect() } else { vec![dice.below(len + 1)] };
        let events = if full() { EVENTS.to_vec() } else { vec![EVENTS[i % EVENTS.len()]] };
        let chosen = hits.into_iter().map(|hit| by_seed(case, dtype, len, hit));
        let sure = events.into_iter().map(|event| fixed(event, dtype, len));
        all.add(&law(&make(i), case, dtype, len, &chosen.chain(sure).collect::<Vec<_>>()));
    }
    println!("{name}: {all:?}");
    all.assert_all(name);
}

/// In the modes that promise bits, which take turns: the seed says which case is in which.
fn nothing_that_serving_does_changes_a_bit_on_cuda() {
    let mut dice = Dice::new(seed());
    let mode = |case: usize| match seed().wrapping_add(case as u64) % 2 {
        0 => Mode::Reference,
        _ => Mode::Invariant,
    };
    for name in cuda_names() {
        on_device(&name, |case| cuda(&name, mode(case)).unwrap(), &mut dice);
    }
}

fn nothing_that_serving_does_changes_a_bit_on_wgpu() {
    let mut dice = Dice::new(seed());
    for name in adapters() {
        on_device(&name, |_| wgpu(Some(&name), false).unwrap(), &mut dice);
    }
}
