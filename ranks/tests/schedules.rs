//! Random schedules of requests that come, fork, are cancelled, give their pages up and end early: ranks give
//! what one rank gives, call by call, and lose no page. There are as many as `ENGRAFT_SCHEDULES` says, else
//! ten thousand under `ENGRAFT_FULL` and 200 without; they begin at `ENGRAFT_SEED`.
#![allow(clippy::unwrap_used)]

use engraft_core::Result;
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Output, Request};
use engraft_core::inject::inject;
use engraft_core::model::Model;
use engraft_core::policy::{Rank, Registry};
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_cpu::{Cpu, CpuConfig};
use sample::Dice;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Schedules that a group runs before it is made anew in another configuration.
const OF_A_GROUP: u64 = 25;
/// Calls of a schedule before what is left runs to its end.
const TURNS: usize = 40;
/// Tokens of the model.
const VOCAB: u64 = 442;

/// What a schedule chooses.
struct Random(Dice);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.bits() % n
    }

    fn request(&mut self, seed: u64) -> Request {
        let prompt = (0..=self.below(14)).map(|_| (3 + self.below(VOCAB - 3)) as u32).collect();
        let sampling = self.sampling(seed);
        Request { prompt, max_new_tokens: 1 + self.below(6) as usize, sampling, ..Request::default() }
    }

    fn sampling(&mut self, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.below(2) as f32 * 0.8,
            repetition_penalty: 1.0 + self.below(2) as f32 * 0.3,
            seed: Some(seed),
            ..SamplingParams::default()
        }
    }
}

fn load(rank: Rank) -> Result<(Arc<Cpu>, Model<Cpu>)> {
    let cpu = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/llama");
    let files = checkpoint::open(&golden, Access::default())?;
    let options = LoadOptions { rank: rank.index, world: rank.world, ..LoadOptions::default() };
    let model = inject(&cpu, &files, &Registry::default(), 40, options, &mut |_, _| {})?;
    Ok((cpu, model))
}

/// An engine with few pages, so that requests wait and give theirs up.
fn engine(world: usize, group: u64) -> Engine<Cpu> {
    let config = EngineConfig {
        max_context: 40,
        max_seqs: 2 + (group % 3) as usize,
        kv_pages: Some(6 + (group % 4) as usize),
        page_size: 8,
        max_step_tokens: 7 + (group % 6) as usize,
        steps_ahead: Some((group % 2) as usize),
        page_seed: Some(group),
        ..EngineConfig::default()
    };
    let made = match world {
        1 => load(Rank::new(0, 1).unwrap()).and_then(|(cpu, model)| Engine::new(cpu, model, config)),
        _ => engraft_ranks::spawn(world, config, Arc::new(load)),
    };
    let mut engine = made.unwrap();
    engine.set_auditing(true);
    engine
}

/// What a schedule gave.
#[derive(Debug, Default, PartialEq)]
struct Given {
    outputs: Vec<Output>,
    cancelled: usize,
    forked: usize,
    given_up: usize,
}

fn schedule(engine: &mut Engine<Cpu>, seed: u64) -> Given {
    let (mut random, mut given) = (Random(Dice::new(seed)), Given::default());
    let (mut out, mut ids) = (Vec::new(), Vec::<u64>::new());
    for turn in 0..TURNS as u64 {
        let one = ids.get(random.below(ids.len().max(1) as u64) as usize).copied();
        match (random.below(9), one) {
            (0 | 1, _) => ids.extend(engine.put(random.request(turn))),
            (2, _) => ids.extend(engine.put_several(random.request(turn), 2).into_iter().flatten()),
            (3, Some(id)) => given.cancelled += usize::from(engine.cancel(id).unwrap()),
            // A request that waits or has ended cannot be forked, nor has it pages to give up.
            (4, Some(id)) => {
                let fork = engine.fork(id, random.sampling(turn), 1);
                given.forked += usize::from(fork.is_ok());
                ids.extend(fork);
            }
            (5, Some(id)) => given.given_up += usize::from(engine.preempt(id).unwrap_or(false)),
            _ => {
                engine.step(&mut out).unwrap();
                given.outputs.append(&mut out);
            }
        }
    }
    // Of some schedules all that is open is cancelled.
    let all_end = random.below(4) == 0;
    for id in ids.into_iter().filter(|_| all_end) {
        given.cancelled += usize::from(engine.cancel(id).unwrap());
    }
    while !engine.is_idle() {
        engine.step(&mut out).unwrap();
        given.outputs.append(&mut out);
    }
    let (free, all) = engine.free_pages();
    assert_eq!(free, all, "pages are lost");
    given
}

#[test]
fn random_schedules_on_ranks_give_what_one_rank_gives() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let usual = if std::env::var_os("ENGRAFT_FULL").is_some() { 10_000 } else { 200 };
    let (count, first) = (number("ENGRAFT_SCHEDULES").unwrap_or(usual), number("ENGRAFT_SEED").unwrap_or(1));
    let (began, mut all, mut tokens) = (Instant::now(), Given::default(), 0);
    for group in 0..count / OF_A_GROUP {
        // Every degree with every configuration, one after the other.
        let (world, group) = ([2, 4, 8][(group % 3) as usize], first.wrapping_add(group / 3));
        let (mut one, mut ranks) = (engine(1, group), engine(world, group));
        for number in 0..OF_A_GROUP {
            let seed = group.wrapping_mul(1 << 20).wrapping_add(number * 8 + world as u64);
            let (want, got) = (schedule(&mut one, seed), schedule(&mut ranks, seed));
            assert!(got == want, "group {group}, schedule {number}, {world} ranks: {got:?}, {want:?}");
            tokens += got.outputs.iter().filter(|output| output.token.is_some()).count();
            all.cancelled += got.cancelled;
            all.forked += got.forked;
            all.given_up += got.given_up;
        }
    }
    let Given { cancelled, forked, given_up, .. } = all;
    println!(
        "{count} schedules, {tokens} tokens, {cancelled} cancels, {forked} forks, {given_up} requests gave \
         their pages up, in {:?}",
        began.elapsed()
    );
    let least = [tokens, cancelled, forked, given_up].into_iter().min().unwrap_or(0);
    assert!(least as u64 > count / 20, "the schedules do too little");
}
