//! A group of ranks under requests that come and go, and under failures: schedules give what one rank gives,
//! a step that fails on one rank ends the group by name, memory that is left free is left by all.

use conformance::backends::folder;
use conformance::dice::Dice;
use conformance::golden::{Types, open_with};
use engraft_core::backend::{Backend, Communicator, Mem};
use engraft_core::checkpoint::{self, Access};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Followers, Layers, Output, Request, Runner, StepOrder, Want};
use engraft_core::inject::inject;
use engraft_core::mem::{Float, MatMut};
use engraft_core::model::Model;
use engraft_core::policy::Registry;
use engraft_core::sample::SamplingParams;
use engraft_core::weights::LoadOptions;
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuConfig};
use engraft_ranks::ThreadBoard;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

const CASE: &str = "llama";

fn golden() -> PathBuf {
    folder().join("golden").join(CASE)
}

fn cpu() -> Arc<Cpu> {
    Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap()
}

fn engine(tp: usize, config: EngineConfig) -> Engine<Cpu> {
    engine_of(&golden(), tp, config)
}

fn engine_of(golden: &Path, tp: usize, config: EngineConfig) -> Engine<Cpu> {
    let types = Types { tp, ..Float::F32.into() };
    open_with(&cpu(), golden, config, &Registry::default(), types).unwrap()
}

/// What a random schedule of requests, forks and cancels gives, with few pages.
fn schedule(tp: usize, seed: u64) -> Vec<Output> {
    let config = EngineConfig {
        max_context: 40,
        max_seqs: 3,
        kv_pages: Some(7),
        page_size: 8,
        max_step_tokens: 11,
        steps_ahead: Some((seed % 2) as usize),
        page_seed: Some(seed),
        ..EngineConfig::default()
    };
    let (mut engine, mut dice) = (engine(tp, config), Dice::new(seed));
    let vocab = engine.model().spec.vocab;
    let (mut given, mut out, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..60u64 {
        let sampling = SamplingParams {
            temperature: dice.below(2) as f32 * 0.8,
            repetition_penalty: 1.0 + dice.below(2) as f32 * 0.3,
            seed: Some(turn),
            ..SamplingParams::default()
        };
        match dice.below(6) {
            0 | 1 => {
                let prompt = (0..=dice.below(14)).map(|_| 3 + dice.below(vocab - 3) as u32).collect();
                let max_new_tokens = 1 + dice.below(9);
                ids.extend(engine.put(Request { prompt, max_new_tokens, sampling, ..Request::default() }));
            }
            2 if !ids.is_empty() => drop(engine.cancel(ids[dice.below(ids.len())]).unwrap()),
            // A request that waits or has ended cannot be forked.
            3 if !ids.is_empty() => ids.extend(engine.fork(ids[dice.below(ids.len())], sampling, 1)),
            _ => {
                engine.step(&mut out).unwrap();
                given.append(&mut out);
            }
        }
    }
    while !engine.is_idle() {
        engine.step(&mut out).unwrap();
        given.append(&mut out);
    }
    let (free, all) = engine.free_pages();
    assert_eq!(free, all, "pages of seed {seed} are lost");
    given
}

/// A rank has some of the gates whose mean and deviation are those of all; one may have none.
#[test]
fn a_cutoff_spans_the_gates_of_all_ranks() {
    let case = folder().join("golden").join("gemma3n_sparse");
    let kept = |tp: usize| {
        let mut engine = engine_of(&case, tp, EngineConfig { max_context: 32, ..EngineConfig::default() });
        let want = Want { logits: true, hidden: Layers::All, logprobs: false };
        let prompt = (1..12).collect();
        let request = Request { prompt, max_new_tokens: 3, want, ..Request::default() };
        let id = engine.put(request).unwrap();
        engine.run().unwrap();
        engine.take_kept(id).unwrap()
    };
    let one = kept(1);
    assert_eq!((one.hidden.len(), one.logits.len() % 71), (5, 0));
    for tp in [2, 4, 8] {
        let all = kept(tp);
        assert!(all.hidden == one.hidden && all.logits == one.logits, "{tp} ranks");
    }
}

#[test]
fn random_schedules_give_what_one_rank_gives() {
    let mut tokens = 0;
    for seed in 0..45 {
        let tp = [2, 4, 8][seed as usize % 3];
        let one = schedule(1, seed);
        assert!(schedule(tp, seed) == one, "seed {seed}, {tp} ranks");
        tokens += one.len();
    }
    assert!(tokens > 500, "{tokens}");
}

#[test]
fn the_cache_of_a_rank_is_refused_by_name() {
    let mut one = engine(2, EngineConfig { max_context: 40, ..EngineConfig::default() });
    let id = one.put(Request { prompt: vec![3, 4, 5], max_new_tokens: 4, ..Request::default() }).unwrap();
    one.step(&mut Vec::new()).unwrap();
    let error = one.cached(id, 0).map(drop).unwrap_err().to_string();
    assert!(error.contains("its own heads alone"), "{error}");
}

/// A communicator that raises an error once.
struct Faulty {
    inner: Box<dyn Communicator<Cpu>>,
    calls: usize,
    at: usize,
}

impl Communicator<Cpu> for Faulty {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn world(&self) -> usize {
        self.inner.world()
    }
    fn all_reduce(
        &mut self,
        stream: &mut <Cpu as Backend>::Stream,
        x: MatMut<'_, Mem<Cpu>>,
        adds: bool,
    ) -> Result<()> {
        self.calls += 1;
        if self.calls == self.at {
            Err(Error::internal("a bad cable"))
        } else {
            self.inner.all_reduce(stream, x, adds)
        }
    }
    fn all_gather(
        &mut self,
        stream: &mut <Cpu as Backend>::Stream,
        x: MatMut<'_, Mem<Cpu>>,
        columns: &[Range<usize>],
    ) -> Result<()> {
        self.inner.all_gather(stream, x, columns)
    }
}

enum Message {
    Config(Box<EngineConfig>),
    Order(Box<StepOrder>),
}

/// One rank that follows, on a thread of this test; `tamper` changes what it is sent.
struct One {
    to: Sender<Message>,
    ready: Receiver<()>,
    tamper: fn(StepOrder) -> Vec<StepOrder>,
}

impl Followers for One {
    fn start(&mut self, config: &EngineConfig) -> Result<()> {
        self.to.send(Message::Config(Box::new(config.clone()))).unwrap();
        self.ready.recv().map_err(|_| Error::internal("no rank 1"))
    }
    fn order(&mut self, order: &StepOrder) -> Result<()> {
        let gone = |_| Error::Comm { rank: 1, world: 2, what: "its thread has ended".into() };
        (self.tamper)(order.clone())
            .into_iter()
            .try_for_each(|o| self.to.send(Message::Order(Box::new(o))).map_err(gone))
    }
    /// Says nothing to anybody: the group must end by what the engine and the board know.
    fn fail(&mut self, _: &str) {}
}

fn model(rank: usize) -> Model<<Cpu as Backend>::Device> {
    let files = checkpoint::open(&golden(), Access::default()).unwrap();
    let options = LoadOptions { rank, world: 2, ..LoadOptions::default() };
    inject(&cpu(), &files, &Registry::default(), 40, options, &mut |_, _| {}).unwrap()
}

/// What two ranks say, request by request, and rank 1 at its end; an exchange of rank `faulty.0` fails at its
/// call number `faulty.1`.
fn two(
    faulty: (usize, usize),
    tamper: fn(StepOrder) -> Vec<StepOrder>,
) -> (Vec<Result<usize>>, Option<Error>) {
    let [first, second]: [ThreadBoard; 2] =
        ThreadBoard::group_with_patience(2, Duration::from_secs(3)).unwrap().try_into().ok().unwrap();
    let comm = move |board: ThreadBoard, rank: usize| -> Box<dyn Communicator<Cpu>> {
        let inner = cpu().group(Box::new(board)).unwrap();
        if faulty.0 == rank { Box::new(Faulty { inner, calls: 0, at: faulty.1 }) } else { inner }
    };
    let ((to, orders), (say, ready)) = (channel(), channel());
    let follower = thread::spawn(move || {
        let Ok(Message::Config(config)) = orders.recv() else { panic!("no configuration") };
        let mut runner = Runner::new(cpu(), model(1), &config, comm(second, 1)).unwrap();
        say.send(()).unwrap();
        while let Ok(Message::Order(order)) = orders.recv() {
            if let Err(error) = runner.follow(&order) {
                return Some(error);
            }
        }
        None
    });
    // Captured steps are replayed without a call.
    let config = EngineConfig { max_context: 40, graphs: false, ..EngineConfig::default() };
    let followers = Box::new(One { to, ready, tamper });
    let mut engine = Engine::of_group(cpu(), model(0), config, comm(first, 0), followers).unwrap();
    let mut said = Vec::new();
    for length in [3, 1, 5] {
        let prompt = (0..length).map(|i| 7 + i * 3).collect();
        let asked = engine.put(Request { prompt, max_new_tokens: 6, ..Request::default() });
        said.push(asked.and_then(|id| Ok(engine.run()?.remove(&id).unwrap_or_default().len())));
        let failed = engine.take_failed().len();
        assert_eq!(failed, usize::from(said[said.len() - 1].is_err()), "requests that failed, by name");
    }
    drop(engine);
    (said, follower.join().unwrap())
}

#[test]
fn two_ranks_by_hand_give_all_tokens() {
    let (said, follower) = two((2, 0), |order| vec![order]);
    assert!(said.iter().all(|one| matches!(one, Ok(6))) && follower.is_none(), "{said:?}, {follower:?}");
}

/// Whoever fails, at whichever exchange: that request ends with the reason, every later one by the name of
/// the group, and nobody is given a token that the ranks did not share.
#[test]
fn a_step_that_fails_on_one_rank_ends_the_group() {
    for rank in [0, 1] {
        for at in [1, 2, 5, 9] {
            let (said, follower) = two((rank, at), |order| vec![order]);
            let what = format!("rank {rank}, exchange {at}: {said:?}, {follower:?}");
            assert!(said.iter().all(Result::is_err), "{what}");
            assert!(
                follower.is_some_and(|error| error.to_string().contains(["cable", "rank 0 of 2"][1 - rank])),
                "{what}"
            );
            let later = said[1..].iter().flat_map(|one| one.as_ref().err());
            assert!(later.into_iter().all(|error| matches!(error, Error::Comm { .. })), "{what}");
        }
    }
}

/// Orders that come twice, or not at all, are seen when they come.
#[test]
fn an_order_that_is_not_the_next_one_is_refused() {
    let twice: fn(StepOrder) -> Vec<StepOrder> = |order| match order.number {
        3 => vec![order.clone(), order],
        _ => vec![order],
    };
    let lost: fn(StepOrder) -> Vec<StepOrder> = |order| if order.number == 3 { vec![] } else { vec![order] };
    for (tamper, want) in [(twice, "was sent step 3, 4 expected"), (lost, "it did not reach exchange")] {
        let (said, follower) = two((2, 0), tamper);
        let errors: Vec<String> =
            said.iter().flat_map(|s| s.as_ref().err()).map(ToString::to_string).collect();
        let follower = follower.map(|error| error.to_string());
        assert!(said[0].is_err() && said[2].is_err(), "{said:?}");
        assert!(errors.iter().chain(&follower).any(|error| error.contains(want)), "{errors:?}, {follower:?}");
    }
}

/// All ranks together leave free what is to stay free.
#[test]
fn ranks_divide_what_a_reserve_leaves() {
    const ROOM: u64 = 1 << 30;
    let whole = cpu().free_bytes();
    let Some(free) = whole else {
        // Past the capture of tests.
        writeln!(std::io::stderr(), "left out: this system does not say how much memory is free").unwrap();
        return;
    };
    for tp in [1, 2, 4, 8] {
        let reserve = free.saturating_sub(ROOM);
        let config = EngineConfig {
            max_context: 64,
            max_seqs: 10_000,
            max_step_tokens: 64,
            ..EngineConfig::default()
        };
        let engine = engine(tp, EngineConfig { kv_reserve: Some(reserve), ..config });
        let all = tp as u64 * engine.memory().total();
        // What is free changes from one look to the next.
        assert!(all < ROOM + ROOM / 4, "{tp} ranks take {all} bytes of {ROOM}");
    }
}
