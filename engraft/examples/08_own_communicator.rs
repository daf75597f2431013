//! Ranks with a rendezvous of your own: DeepSpeed's `mpu`.
//!
//! `cargo run --release -p engraft --example 08_own_communicator`
//!
//! Two ranks share the demo model, a thread each, and exchange over a pair of channels, where yours might use
//! sockets or a fabric. A [`Board`] is all that it takes; a `Communicator` of your own does the same on a
//! device's stream. The text is that of one rank.

use engraft::engraft_core::backend::{Backend, Board};
use engraft::engraft_core::engine::{Engine, Followers, Request, Runner, StepOrder};
use engraft::engraft_core::inject::Injector;
use engraft::engraft_core::model::Model;
use engraft::engraft_core::numerics::tree_of_ranks;
use engraft::engraft_core::weights::LoadOptions;
use engraft::{EngineConfig, Error, Registry, Result, demo_files};
use engraft_cpu::{Cpu, CpuConfig};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// One end of the line between two ranks.
struct Line {
    rank: usize,
    to: Sender<Vec<f32>>,
    from: Receiver<Vec<f32>>,
    sent: Arc<AtomicUsize>,
}

impl Line {
    fn pair() -> [Line; 2] {
        let ((to_first, first), (to_second, second)) = (channel(), channel());
        let sent = Arc::new(AtomicUsize::new(0));
        [(0, to_second, first), (1, to_first, second)].map(|(rank, to, from)| Line {
            rank,
            to,
            from,
            sent: sent.clone(),
        })
    }

    /// Sends the other rank these values and waits for its own.
    fn exchange(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        self.sent.fetch_add(4 * values.len(), Relaxed);
        let gone = || gone(1 - self.rank);
        self.to.send(values).map_err(|_| gone())?;
        self.from.recv().map_err(|_| gone())
    }
}

fn gone(rank: usize) -> Error {
    Error::Comm { rank, world: 2, what: "it has ended".into() }
}

impl Board for Line {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        2
    }
    fn all_reduce(&self, x: &mut [f32], adds: bool) -> Result<()> {
        // What does not add has zeros, whatever x holds.
        let own = if adds { x.to_vec() } else { vec![0.0; x.len()] };
        let other = self.exchange(own.clone())?;
        // In the order of ranks on both: the same bits.
        let (first, second) = if self.rank == 0 { (own, other) } else { (other, own) };
        for ((x, first), second) in x.iter_mut().zip(first).zip(second) {
            *x = tree_of_ranks([first, second]);
        }
        Ok(())
    }
    fn all_gather(&self, x: &mut [f32], cols: usize, columns: &[Range<usize>]) -> Result<()> {
        let (own, others) = (columns[self.rank].clone(), columns[1 - self.rank].clone());
        let values = x.chunks(cols).flat_map(|row| row[own.clone()].to_vec()).collect();
        let received = self.exchange(values)?;
        for (row, values) in x.chunks_mut(cols).zip(received.chunks(others.len().max(1))) {
            row[others.clone()].copy_from_slice(values);
        }
        Ok(())
    }
}

/// The other rank, as the engine sees it.
struct Follower {
    config: Sender<EngineConfig>,
    orders: Sender<StepOrder>,
}

impl Followers for Follower {
    fn start(&mut self, config: &EngineConfig) -> Result<()> {
        self.config.send(config.clone()).map_err(|_| gone(1))
    }
    fn order(&mut self, order: &StepOrder) -> Result<()> {
        self.orders.send(order.clone()).map_err(|_| gone(1))
    }
    fn fail(&mut self, why: &str) {
        eprintln!("rank 0 ends: {why}");
    }
}

fn main() -> Result<()> {
    let [first, second] = Line::pair();
    let sent = first.sent.clone();
    let ((config, configs), (orders, to_carry_out)) = (channel(), channel());
    let other = thread::spawn(move || -> Result<()> {
        let (backend, model) = load(1, 2)?;
        let comm = backend.group(Box::new(second))?;
        let Ok(config) = configs.recv() else { return Ok(()) };
        let mut runner = Runner::new(backend, model, &config, comm)?;
        // Until the engine is gone.
        to_carry_out.iter().try_for_each(|order| runner.follow(&order))
    });
    let (backend, model) = load(0, 2)?;
    let comm = backend.group(Box::new(first))?;
    let followers = Box::new(Follower { config, orders });
    let shared = text(Engine::of_group(backend, model, EngineConfig::default(), comm, followers)?)?;
    other.join().map_err(|_| gone(1))??;

    let (backend, model) = load(0, 1)?;
    let alone = text(Engine::new(backend, model, EngineConfig::default())?)?;
    println!("two ranks: {shared}\none rank:  {alone}");
    println!("{} KB were exchanged", sent.load(Relaxed) >> 10);
    if shared == alone { Ok(()) } else { Err(Error::internal("two ranks write something else than one")) }
}

/// What a rank has of the demo model.
fn load(rank: usize, world: usize) -> Result<(Arc<Cpu>, Model<Cpu>)> {
    let (files, registry) = (demo_files()?, Registry::default());
    let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
    let options = LoadOptions { rank, world, ..LoadOptions::default() };
    let model = Injector::new(&registry, 512, options).inject(&backend, &files, &mut |_, _| {})?;
    Ok((backend, model))
}

fn text(mut engine: Engine<Cpu>) -> Result<String> {
    let tokenizer = engraft::Tokenizer::from_files("the demo model", demo_files()?.tokenizer)?;
    let prompt = tokenizer.encode("This package provides", true)?;
    let id = engine.put(Request { prompt, max_new_tokens: 16, ..Request::default() })?;
    let sampled = engine.run()?;
    Ok(tokenizer.decode(&sampled[&id], true)?.replace('\n', " "))
}
