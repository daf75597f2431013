//! Ranks as threads of one process.
//!
//! The calling thread is rank 0 and has the engine; every other rank is a thread with a runner of its own,
//! which reads its part of the model, takes the engine's checked configuration, and carries out orders until
//! the engine is gone.

use crate::ThreadBoard;
use engraft_core::backend::{Backend, Board};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Followers, Runner, StepOrder};
use engraft_core::model::Model;
use engraft_core::policy::Rank;
use engraft_core::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Reads what a rank has of a model, on its own thread: the backend that it runs on, and the model.
pub type Load<B> = dyn Fn(Rank) -> Result<(Arc<B>, Model<<B as Backend>::Device>)> + Send + Sync;

/// What a rank that follows is sent.
enum Message {
    /// The engine's checked configuration: once, first.
    Config(Box<EngineConfig>),
    /// A step.
    Order(Arc<StepOrder>),
}

/// A rank that follows, seen from the engine.
struct Follower {
    rank: usize,
    /// None once it is to end.
    to: Option<Sender<Message>>,
    /// That it has its model, then that it has its runner.
    ready: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
}

/// All of them.
struct Threads {
    followers: Vec<Follower>,
    /// Ends the group because rank 0 failed.
    fail: Box<dyn Fn(&str)>,
}

/// Shares a model among `world` threads: `load` is called for each rank, and the engine of all is returned to
/// the calling thread, which is rank 0. The others end when it is dropped.
///
/// # Errors
/// Those of `load`, [`Engine::of_group`] and [`Runner::new`] on any rank; `Config` for a degree that is not
/// 1, 2, 4 or 8.
pub fn spawn<B: Backend>(world: usize, config: EngineConfig, load: Arc<Load<B>>) -> Result<Engine<B>> {
    let mut boards = ThreadBoard::group(world)?.into_iter();
    let Some(board) = boards.next() else { return Err(Error::internal("a group without ranks")) };
    let fail = Box::new(board.breaker());
    let followers = boards.map(|board| Follower::start(board, load.clone())).collect::<Result<Vec<_>>>()?;
    let mut threads = Threads { followers, fail };
    let (backend, model) = load(Rank::new(0, world)?)?;
    // What the ranks read is not needed any more.
    drop(load);
    threads.wait()?;
    let comm = backend.group(Box::new(board))?;
    Engine::of_group(backend, model, config, comm, Box::new(threads))
}

impl Follower {
    fn start<B: Backend>(board: ThreadBoard, load: Arc<Load<B>>) -> Result<Self> {
        let (rank, world) = (board.rank(), board.world());
        let ((to, orders), (say, ready)) = (channel(), channel());
        let named = thread::Builder::new().name(format!("engraft rank {rank}"));
        let body = move || follow::<B>(board, load, &orders, &say);
        let thread = named.spawn(body).map_err(|error| {
            let what = format!("its thread could not be started: {error}");
            Error::Comm { rank, world, what }
        })?;
        Ok(Self { rank, to: Some(to), ready, thread: Some(thread) })
    }
}

/// The life of a rank that follows.
fn follow<B: Backend>(
    board: ThreadBoard,
    load: Arc<Load<B>>,
    orders: &Receiver<Message>,
    say: &Sender<Result<()>>,
) {
    let (rank, world, fail) = (board.rank(), board.world(), board.breaker());
    let loaded = Rank::new(rank, world).and_then(|rank| load(rank));
    drop(load);
    let (backend, model) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            fail(&error.to_string());
            let _ = say.send(Err(error));
            return;
        }
    };
    let _ = say.send(Ok(()));
    // Some groups come together when they are made: rank 0 waits there before it has an engine.
    let comm = backend.group(Box::new(board));
    // Without an engine there is nothing to follow.
    let Ok(Message::Config(config)) = orders.recv() else { return };
    let made = comm.and_then(|comm| Runner::new(backend, model, &config, comm));
    let mut runner = match made {
        Ok(runner) => runner,
        Err(error) => {
            fail(&error.to_string());
            let _ = say.send(Err(error));
            return;
        }
    };
    let _ = say.send(Ok(()));
    while let Ok(Message::Order(order)) = orders.recv() {
        if let Err(error) = runner.follow(&order) {
            // Another rank's failure is that rank's to report.
            if !matches!(error, Error::Comm { rank: other, .. } if other != rank) {
                tracing::error!("rank {rank} of {world}: {error}");
                fail(&error.to_string());
            }
            return;
        }
    }
}

impl Threads {
    /// Waits until every rank says that it is ready.
    fn wait(&mut self) -> Result<()> {
        let world = self.followers.len() + 1;
        for Follower { rank, ready, .. } in &self.followers {
            let gone = |_| Error::Comm { rank: *rank, world, what: "its thread has ended".into() };
            ready.recv().map_err(gone)??;
        }
        Ok(())
    }

    fn send(&self, message: impl Fn() -> Message) -> Result<()> {
        let world = self.followers.len() + 1;
        for Follower { rank, to, .. } in &self.followers {
            let gone = || Error::Comm { rank: *rank, world, what: "its thread has ended".into() };
            let to = to.as_ref().ok_or_else(gone)?;
            to.send(message()).map_err(|_| gone())?;
        }
        Ok(())
    }
}

impl Followers for Threads {
    fn start(&mut self, config: &EngineConfig) -> Result<()> {
        self.send(|| Message::Config(Box::new(config.clone())))?;
        self.wait()
    }

    fn order(&mut self, order: &StepOrder) -> Result<()> {
        let order = Arc::new(order.clone());
        self.send(|| Message::Order(order.clone()))
    }

    fn fail(&mut self, why: &str) {
        (self.fail)(why);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Who waits for rank 0 in an exchange would wait for long.
        (self.fail)("it has ended");
        self.followers.iter_mut().for_each(|follower| follower.to = None);
        for follower in &mut self.followers {
            if let Some(thread) = follower.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
